package coordinator_test

import (
	"context"
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/avgpipe/avgpipe/internal/agent"
	"github.com/avgpipe/avgpipe/internal/coordinator"
	"github.com/avgpipe/avgpipe/internal/worker/control"
	"github.com/avgpipe/avgpipe/job"
)

// ways counts measurements of links, which take a moment each.
type ways struct {
	mu      sync.Mutex
	made    []string
	running int
	most    int // at once
}

func (w *ways) begin(pair string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.made, w.running = append(w.made, pair), w.running+1
	w.most = max(w.most, w.running)
}

func (w *ways) end() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.running--
}

func (w *ways) count() (n, most int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.made), w.most
}

// linked is an agent whose links are so fast.
type linked struct {
	agent.Agent
	node string
	ways *ways
}

func (l linked) Probe(ctx context.Context, node string) (agent.Link, error) {
	l.ways.begin(l.node + "-" + node)
	defer l.ways.end()
	select {
	case <-time.After(500 * time.Millisecond):
	case <-ctx.Done():
	}
	if node == "d" {
		return agent.Link{}, fmt.Errorf("no answer: %w", agent.ErrUnreachable)
	}
	return agent.Link{RTT: 150 * time.Microsecond, BytesPerSecond: 50e6}, ctx.Err()
}

// link gives the nodes of a rig links that can be measured.
func (r *rig) link() *ways {
	w := &ways{}
	for i := range r.members() {
		r.change(i, func(n *coordinator.Node) { n.Agent = linked{n.Agent, n.Name, w} })
	}
	return w
}

// TestLinksAreMeasured once for each pair of nodes, one at a time, and reasons say what was measured.
func TestLinksAreMeasured(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, "a", "b", "c")
		defer r.end()
		ways := r.link()
		time.Sleep(70 * time.Second)
		if n, most := ways.count(); n != 3 || most != 1 {
			t.Fatalf("%v, %d at once", ways.made, most)
		}
		known := r.Published().Links
		if l := known[[2]string{"a", "b"}]; len(known) != 3 || l.BitsPerSecond != 400e6 || l.RoundTrip != 150*time.Microsecond || l.Assumed {
			t.Errorf("links %+v", known)
		}
		want := "stage 0 on a, 1 on b: no node has 2 cores free; the link a-b has 400 Mbit/s, round trip 150µs, measured"
		id := r.submitWith("good", 100, func(j *job.Job) { j.Stages = 2 })
		r.until(id, "ends", ended)
		log, err := os.ReadFile(control.LogPath(agent.JobDir(r.agent.state, id)))
		if err != nil || !strings.Contains(string(log), want) {
			t.Errorf("the log (%v) has no %q: %s", err, want, log)
		}
	})
}

// TestALinkThatCannotBeMeasuredIsTriedAgainAfterAPause, and is taken to be as assumed meanwhile.
func TestALinkThatCannotBeMeasuredIsTriedAgainAfterAPause(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, "a", "d")
		defer r.end()
		ways := r.link()
		time.Sleep(210 * time.Second)
		if n, _ := ways.count(); n < 3 || n > 4 || len(r.Published().Links) > 0 {
			t.Errorf("%v in three and a half minutes, known %v", ways.made, r.Published().Links)
		}
	})
}
