package worker

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/zap"
	"golang.org/x/sys/unix"

	"github.com/avgpipe/avgpipe/internal/api"
	"github.com/avgpipe/avgpipe/internal/envtest"
	"github.com/avgpipe/avgpipe/internal/pki"
	"github.com/avgpipe/avgpipe/internal/wire"
	"github.com/avgpipe/avgpipe/internal/wire/ucx"
	"github.com/avgpipe/avgpipe/internal/worker/control"
	"github.com/avgpipe/avgpipe/job"
	"github.com/avgpipe/avgpipe/schedule"
	"github.com/avgpipe/avgpipe/stage/device/cuda"
)

// hosts are nodes of a cluster that workers run on in this process: each has a certificate, and opens its port before its worker starts.
type hosts struct {
	authority *pki.Authority
	names     []string
}

func newHosts(t *testing.T, names ...string) *hosts {
	t.Helper()
	authority, err := pki.NewAuthority("c", time.Now())
	if err != nil {
		t.Fatal(err)
	}
	return &hosts{authority: authority, names: names}
}

// identify gives a node files with a certificate of some name.
func (h *hosts) identify(t *testing.T, name string) *control.LinkTLS {
	t.Helper()
	dir := t.TempDir()
	key, request, err := pki.NewKey()
	if err != nil {
		t.Fatal(err)
	}
	der, err := h.authority.Sign(request, pki.Subject{Role: pki.RoleNode, Name: name}, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	if err := pki.WriteIdentity(dir, key, der, h.authority.Certificate.Raw); err != nil {
		t.Fatal(err)
	}
	f := pki.FilesOf(dir)
	return &control.LinkTLS{Certificate: f.Certificate, Key: f.Key, Authority: f.Authority}
}

// assign lays an assignment over the nodes, stage k on node on[k].
func (h *hosts) assign(t *testing.T, a control.Assignment, on []int) []control.Assignment {
	t.Helper()
	all := make([]control.Assignment, len(h.names))
	places := make([]control.StagePlace, len(h.names))
	for i, name := range h.names {
		all[i] = a
		all[i].Node, all[i].Dir, all[i].TLS = name, t.TempDir(), h.identify(t, name)
		places[i], all[i].LinkFD = openPort(t, name)
	}
	for i := range all {
		all[i].Stages = make([]control.StagePlace, len(on))
		for k, node := range on {
			all[i].Stages[k] = places[node]
		}
	}
	return all
}

// openPort opens the port of a node's links, and returns its descriptor, which is the worker's.
func openPort(t *testing.T, name string) (control.StagePlace, int) {
	t.Helper()
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	file, err := l.(*net.TCPListener).File()
	if err != nil {
		t.Fatal(err)
	}
	fd, err := dup(file)
	if err != nil {
		t.Fatal(err)
	}
	return control.StagePlace{Node: name, Address: l.Addr().String()}, fd
}

// trainAll runs the workers of all nodes until they end.
func trainAll(t *testing.T, all []control.Assignment, drive func(node int, tr *trainer)) []outcome {
	t.Helper()
	got := make([]outcome, len(all))
	var group sync.WaitGroup
	for i := range all {
		group.Go(func() {
			var driven func(*trainer)
			if drive != nil {
				driven = func(tr *trainer) { drive(i, tr) }
			}
			got[i] = train(t, all[i], driven)
		})
	}
	group.Wait()
	return got
}

func TestNodesComputeTheBitsOfOneProcess(t *testing.T) {
	tied := func(j *job.Job) { j.Optimizer.ClipNorm = 0.5 } // gpt2 ties its first parameter to its last
	rounded := func(j *job.Job) { j.BoundaryPrecision, j.Recompute = "bf16", []string{"full"} }
	type layout struct {
		stages, pipelines int
		on                []int // the node of each device
		change            func(*job.Job)
	}
	layouts := []layout{
		{2, 1, []int{0, 1}, tied}, {3, 4, []int{0, 1, 2}, rounded}, {3, 2, []int{0, 1, 0}, tied}, {2, 2, []int{1, 0}, rounded},
	}
	for n, kind := range schedule.Names() {
		for i, l := range layouts {
			if n > 0 && i != n%len(layouts) { // every kind, and the first one laid out in every way
				continue
			}
			t.Run(fmt.Sprintf("%s/%d", kind, i), func(t *testing.T) {
				a := setup(t, l.stages, l.pipelines, func(j *job.Job) {
					l.change(j)
					j.Schedule, j.Train.Steps, j.Train.EvalEvery = kind, 4, 2
					j.Model.Config["n_layer"] = 4             // for six stages
					if strings.HasPrefix(kind, "pipedream") { // its stages do not wait for each other's norms and gradients
						j.Optimizer.ClipNorm, j.Model.Config["tie_word_embeddings"] = 0, false
					}
				})
				want := train(t, a, nil)
				plan, err := schedule.Parse(strings.Join(a.Plan, "\n"))
				if err != nil {
					t.Fatal(err)
				}
				var on []int
				for _, device := range plan.Placement() {
					on = append(on, l.on[device])
				}
				h := newHosts(t, []string{"a", "b", "c"}[:1+slices.Max(on)]...)
				got := trainAll(t, h.assign(t, a, on), nil)
				for k, node := range on {
					if d := got[node].shards[k].Digest; d != want.shards[k].Digest || d == "" {
						t.Errorf("stage %d: over nodes shard %.12s, in one process %.12s (the node ended with %v, one process with %v)",
							k, d, want.shards[k].Digest, got[node].err, want.err)
					}
				}
			})
		}
	}
}

// TestEveryWorkerReadsTheData, also one that feeds none of them, so no stage of a job may be placed where they are not. If that changes, so may
// coordinator.lackOf.
func TestEveryWorkerReadsTheData(t *testing.T) {
	a := setup(t, 3, 1, nil)
	all := newHosts(t, "a", "b", "c").assign(t, a, []int{0, 1, 2})
	plan, err := schedule.Parse(strings.Join(a.Plan, "\n"))
	if err != nil {
		t.Fatal(err)
	}
	gone := filepath.Join(t.TempDir(), "gone")
	for _, a := range all {
		a.Spec.Job.Data.Files = []string{gone}
		_, err := newHost(t.Context(), a, plan, cuda.Config{}, zap.NewNop())
		if err == nil || !strings.Contains(err.Error(), gone) {
			t.Errorf("node %s without the data: %v", a.Node, err)
		}
	}
}

func TestNodesStopAtOneRoundWithOneCursor(t *testing.T) {
	const steps = 1 << 20 // more than are trained until they are stopped, on a busy machine too
	a := setup(t, 3, 2, func(j *job.Job) { j.Train.Steps = steps })
	h := newHosts(t, "a", "b", "c")
	all := h.assign(t, a, []int{0, 1, 2})
	var mu sync.Mutex
	var group []*trainer
	got := trainAll(t, all, func(_ int, tr *trainer) {
		mu.Lock()
		defer mu.Unlock()
		if group = append(group, tr); len(group) == len(all) {
			stopAll(t, group...)
		}
	})
	for node, name := range []string{"b", "c"} {
		l := got[node].status.Progress.LinkStatus
		if len(l) != 1+node || l[node].Network == nil || !strings.HasPrefix(l[node].Network.Peer, "node "+name+" at 127.0.0.1:") ||
			l[node].Network.SentBytes == 0 || l[node].Network.ReceivedBytes == 0 || l[node].Network.BoundS < 3 {
			t.Errorf("links of node %d are %+v", node, l)
		}
	}
	for _, o := range got {
		for k, s := range o.shards {
			if o.round != got[0].round || o.round >= steps || fmt.Sprint(s.Cursors) != fmt.Sprint(got[0].shards[0].Cursors) {
				t.Errorf("stage %d stopped at round %d with cursors %v; stage 0 at %d with %v", k, o.round, s.Cursors, got[0].round, got[0].shards[0].Cursors)
			}
		}
		if len(o.shards) != 1 {
			t.Errorf("a node wrote %d shards; it ended with %v", len(o.shards), o.err)
		}
	}
}

// TestSlowLinksBetweenNodesShow in both directions, each at the node that the messages arrive at.
func TestSlowLinksBetweenNodesShow(t *testing.T) {
	const latency = 4 * time.Millisecond
	a := setup(t, 2, 2, func(j *job.Job) {
		j.Train.EvalEvery, j.Schedule, j.Train.Steps = 1<<20, "1f1b", 1<<20
		j.Devices.Kind = job.KindEmulated
		j.Devices.Emulated.Forward = []time.Duration{time.Millisecond}
		j.Devices.Emulated.Link.Latency = []time.Duration{latency}
	})
	h := newHosts(t, "a", "b")
	var mu sync.Mutex
	var group []*trainer
	var low, high api.LinkStatus
	trainAll(t, h.assign(t, a, []int{0, 1}), func(_ int, tr *trainer) {
		mu.Lock()
		defer mu.Unlock()
		group = append(group, tr)
		if len(group) < 2 {
			return
		}
		// How wrong a clock may be seen is what is known now. A message that was measured before may be wrong by more, until further ones are measured.
		envtest.Reached(t, "both directions of the link are measured, as long as they are", func() bool {
			for _, one := range group {
				switch l := one.Status().Progress.LinkStatus[0]; {
				case l.Network != nil:
					low = l
				default:
					high = l
				}
			}
			if low.UpS == nil || high.DownS == nil || low.Network.OffsetErrorS == 0 {
				return false
			}
			least := latency.Seconds() - low.Network.OffsetErrorS
			return *low.UpS >= least && *high.DownS >= least
		})
		stopAll(t, group...)
	})
	for _, l := range []struct {
		api.LinkStatus
		none *float64
	}{{low, low.DownS}, {high, high.UpS}} {
		if l.none != nil || l.Link != 0 || l.MessageBytes != 2*16*16*4 {
			t.Errorf("%+v: want nothing of the other direction", l.LinkStatus)
		}
	}
}

// TestUCXIsChosenByMeasurement has nodes whose links may go over UCX, and one that has none of it: both compute the bits of one process, and say what carries
// messages and why.
func TestUCXIsChosenByMeasurement(t *testing.T) {
	a := setup(t, 2, 2, func(j *job.Job) { j.Train.Steps = 4 })
	want := train(t, a, nil)
	for _, c := range []struct {
		name   string
		ucx    [2]string
		reason string // of node a
	}{
		{"both", [2]string{"lo", "lo"}, "bytes and their answer took"},
		{"one", [2]string{"lo", ""}, "the other node does not use ucx"},
	} {
		t.Run(c.name, func(t *testing.T) {
			h := newHosts(t, "a", "b")
			all := h.assign(t, a, []int{0, 1})
			for i := range all {
				all[i].UCX = c.ucx[i]
			}
			if !ucx.Built {
				c.reason = "this program was built without UCX"
			}
			got := trainAll(t, all, nil)
			l := got[0].status.Progress.LinkStatus
			if len(l) != 1 || l[0].Network == nil || l[0].Network.Choice == nil || !strings.Contains(l[0].Network.Choice.Reason, c.reason) {
				t.Fatalf("links of node a are %+v; it ended with %v", l, got[0].err)
			}
			over, measured := l[0].Network.Over, *l[0].Network.Choice
			if over != "tls" && (over != "ucx" || measured.PathS >= measured.ConnectionS) {
				t.Errorf("%s carries messages, and it is %+v", over, measured)
			}
			t.Logf("over %s: %s", over, measured.Reason)
			for k := range all {
				if d := got[k].shards[k].Digest; d != want.shards[k].Digest || d == "" {
					t.Errorf("stage %d: over nodes shard %.12s, in one process %.12s (the node ended with %v)", k, d, want.shards[k].Digest, got[k].err)
				}
			}
		})
	}
}

// stopAll has all workers of a job stop at one round, and returns its number. The one with the first stage is asked first: no other begins a round before it
// does, so that all can end at the round that it accepts. In another order one may have accepted a round that another is past, and then takes no later one.
func stopAll(t *testing.T, group ...*trainer) (round uint64) {
	t.Helper()
	stop := func(tr *trainer) bool {
		return tr.Commit(control.CommitRequest{Generation: tr.assignment.Generation, Round: round, Stop: true}).Accepted
	}
	first := slices.IndexFunc(group, func(tr *trainer) bool { return tr.assignment.Stages[0].Node == tr.assignment.Node })
	stopped := envtest.Reached(t, "the worker of the first stage stops", func() bool {
		round = group[first].Status().NextCommit + 3 // that it does not reach meanwhile, or the next try is for a later one
		return stop(group[first])
	})
	for i, tr := range group {
		switch {
		case !stopped:
			tr.Abort()
		case i != first && !stop(tr):
			t.Errorf("the worker of node %s does not stop at round %d, which that of the first stage accepts", tr.assignment.Node, round)
			tr.Abort()
		}
	}
	return round
}

func TestANodeOfAnotherNameIsRefused(t *testing.T) {
	a := setup(t, 2, 1, nil)
	h := newHosts(t, "a", "b")
	all := h.assign(t, a, []int{0, 1})
	all[0].TLS = h.identify(t, "mallory")
	got := outcomesUntilOneFails(t, all)
	if !strings.Contains(got, "stage 0 is on node a, not on mallory") {
		t.Errorf("the workers ended with %s", got)
	}
}

func TestACertificateOfAnotherClusterIsRefused(t *testing.T) {
	a := setup(t, 2, 1, nil)
	h := newHosts(t, "a", "b")
	all := h.assign(t, a, []int{0, 1})
	all[1].TLS = newHosts(t).identify(t, "b")
	if got := outcomesUntilOneFails(t, all); !strings.Contains(got, "certificate signed by unknown authority") {
		t.Errorf("the workers ended with %s", got)
	}
}

// outcomesUntilOneFails runs the dialling worker alone against the port of the other, until it fails, and returns why.
func outcomesUntilOneFails(t *testing.T, all []control.Assignment) string {
	t.Helper()
	dial, err := newLinks(t.Context(), all[0], newProgress(all[0], nil), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer dial.close() //nolint:errcheck // a test's
	accept, err := newLinks(t.Context(), all[1], newProgress(all[1], nil), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer accept.close() //nolint:errcheck // a test's
	l, s := wire.Link{Purpose: wire.Training, Lower: 0, Upper: 1}, wire.Spec{Generation: 1, Depth: 1, MaxBytes: 8}
	ctx, cancel := context.WithCancel(t.Context())
	var accepting sync.WaitGroup
	accepting.Go(func() { _, _ = accept.connect(ctx, l, true, s) })
	_, err = dial.connect(t.Context(), l, false, s)
	cancel()
	accepting.Wait()
	return fmt.Sprint(err)
}

// TestALinkOfAnEarlierGenerationIsRefusedAndReported on both sides: the one that dials says why, and the other has an event.
func TestALinkOfAnEarlierGenerationIsRefusedAndReported(t *testing.T) {
	a := setup(t, 2, 1, nil)
	all := newHosts(t, "a", "b").assign(t, a, []int{0, 1})
	all[0].Generation, all[1].Generation = 1, 2
	events := control.NewEventLog(2)
	dial, err := newLinks(t.Context(), all[0], newProgress(all[0], nil), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer dial.close() //nolint:errcheck // a test's
	accept, err := newLinks(t.Context(), all[1], newProgress(all[1], nil), sayRefused(zap.NewNop(), events))
	if err != nil {
		t.Fatal(err)
	}
	defer accept.close() //nolint:errcheck // a test's
	l := wire.Link{Purpose: wire.Training, Lower: 0, Upper: 1}
	_, err = dial.connect(t.Context(), l, false, wire.Spec{Generation: 1, Depth: 1, MaxBytes: 8})
	if err == nil || !strings.Contains(err.Error(), "generation") {
		t.Errorf("the earlier one is told %v", err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), envtest.Bound)
	defer cancel()
	said, err := events.After(ctx, 0)
	if err != nil || said[0].Kind != control.Refused || said[0].From == "" || !strings.Contains(said[0].Error, "generation 1") {
		t.Errorf("the other one says %+v (%v)", said, err)
	}
}

// dup is the descriptor of a file that it closes.
func dup(f *os.File) (int, error) {
	defer f.Close()
	return unix.FcntlInt(f.Fd(), unix.F_DUPFD_CLOEXEC, 3)
}
