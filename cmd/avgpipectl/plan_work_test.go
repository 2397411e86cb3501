package main

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/avgpipe/avgpipe/schedule"
)

// TestWhatDoesNotFitIsRefusedWithWhatDoes: nothing is made, and the count that is named fits.
func TestWhatDoesNotFitIsRefusedWithWhatDoes(t *testing.T) {
	request := schedule.Request{Devices: 64, MicroBatches: 65536}
	names := []string{"1f1b", "zb-v"}
	err := checkMemory(names, 1, request, schedule.Load{}, 1<<30)
	want := "the simulation of zb-v, 65536 micro-batches on 64 stages, takes about 1.81 GB of memory, found 1.07 GB free; want 38833 micro-batches at most, or another schedule"
	if err == nil || err.Error() != want {
		t.Errorf("%v\nwant %s", err, want)
	}
	request.MicroBatches = 38833
	if err := checkMemory(names, 1, request, schedule.Load{}, 1<<30); err != nil {
		t.Errorf("what was said to fit: %v", err)
	}
	err = checkMemory(names, 1, request, schedule.Load{Pipelines: 1 << 20}, 1<<30)
	if err == nil || !strings.HasSuffix(err.Error(), "want fewer stages, pipelines or batches") {
		t.Errorf("%v; want it to say that no number of micro-batches fits", err)
	}
}

// TestSimulationsEndWhenTheUserWants, although they compute.
func TestSimulationsEndWhenTheUserWants(t *testing.T) {
	costs := filepath.Join(t.TempDir(), "costs.yaml")
	if err := os.WriteFile(costs, []byte("{stages: 16, micro_batches: 4096, forward: 1, backward: 2, pipelines: 2, batches: 65536}"), 0o600); err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	stop()
	for _, args := range [][]string{{"compare", "-f", costs}, {"show", "--stages", "64", "--micro-batches", "4096", "-o", "json"}} {
		var out, messages bytes.Buffer
		if code := run(ctx, append([]string{"plan"}, args...), strings.NewReader(""), &out, &messages); code != exitInterrupted {
			t.Errorf("%v: exit code %d, want %d: %s", args, code, exitInterrupted, messages.String())
		}
	}
}

// TestProgressOfASimulationIsShown, in lines or in a bar, only when it takes long.
func TestProgressOfASimulationIsShown(t *testing.T) {
	for width, want := range map[int]string{0: "simulating zb-v, 7 of 9: 45%\n", 60: "simulating zb-v, 7 of 9  46% |████      |"} {
		var out strings.Builder
		p := &progress{out: &out, width: width}
		proceed := p.working(&call{ctx: t.Context()}, "zb-v", 6, 9)
		if err := proceed(1, 1000); err != nil || out.Len() > 0 {
			t.Errorf("at once: %q, %v; want nothing", out.String(), err)
		}
		p.printed = p.printed.Add(-2 * lineEvery)
		if err := proceed(459, 1000); err != nil || !strings.Contains(out.String(), want) {
			t.Errorf("later: %q, %v; want %q", out.String(), err, want)
		}
	}
}
