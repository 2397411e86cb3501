package node_test

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"math"
	"math/rand/v2"
	"net/http"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"

	"github.com/avgpipe/avgpipe/internal/api"
	"github.com/avgpipe/avgpipe/internal/node/nodetest"
)

// How often each thing happens to the node that leads; `make test-cluster` has more.
var apiRounds = flag.Int("api-rounds", 1, "how often the node that leads is lost in each way, while clients ask")

const apiClients = 4

// crowd are clients that ask the nodes of a cluster for whatever there is, until they are stopped. Every other one keeps away from a node that hangs.
type crowd struct {
	t     *testing.T
	nodes []*host
	jobs  []api.SubmitRequest
	hangs atomic.Pointer[host]
	begun time.Time
	done  atomic.Int64 // requests of those that keep away
	waits atomic.Int64 // those that ask a node that hangs

	mu      sync.Mutex
	history []porcupine.Operation
	lists   [][]api.JobStatus
}

// asker is one of them.
type asker struct {
	*crowd
	id   int
	rand *rand.Rand
	age  time.Duration // that the last answer says it has
	way  map[*host]*api.Client
}

func (c *crowd) asker(id int) *asker {
	a := &asker{crowd: c, id: id, rand: rand.New(rand.NewPCG(uint64(id), uint64(c.begun.UnixNano()))), way: map[*host]*api.Client{}} //nolint:gosec // no secret
	for _, h := range c.nodes {
		a.way[h] = api.NewClient(nodetest.Socket(h.Dir))
		a.way[h].OnAge(func(is time.Duration, _ string) { a.age = is })
	}
	return a
}

// run asks until ctx ends, and returns when it has every answer.
func (a *asker) run(ctx context.Context) {
	for n := 0; ctx.Err() == nil; n++ {
		h := a.nodes[a.rand.IntN(len(a.nodes))]
		if a.careful() && h == a.hangs.Load() {
			continue
		}
		job := a.jobs[a.rand.IntN(len(a.jobs))]
		kind := a.rand.IntN(100)
		if n == 0 {
			job, kind = a.jobs[a.id%len(a.jobs)], 0
		}
		a.ask(context.WithoutCancel(ctx), a.way[h], job, kind) // every answer counts
		if a.careful() {
			a.done.Add(1)
		}
		time.Sleep(time.Duration(a.rand.IntN(20)) * time.Millisecond)
	}
	a.close()
}

// readAll reads each job through one node.
func (a *asker) readAll(h *host) {
	a.waits.Add(1)
	for _, job := range a.jobs {
		a.ask(a.t.Context(), a.way[h], job, 80)
	}
	a.close()
}

func (a *asker) close() {
	for _, c := range a.way {
		c.Close()
	}
}

func (a *asker) careful() bool { return a.id%2 == 1 }

// ask asks for one thing.
func (a *asker) ask(ctx context.Context, c *api.Client, job api.SubmitRequest, kind int) {
	name := job.Key
	switch {
	case kind < 5:
		a.record(name, "submit", func() (reply, error) {
			answer, err := c.Submit(ctx, job)
			return reply{id: answer.ID}, err
		})
	case kind < 30:
		a.record(name, "cancel", func() (reply, error) {
			s, err := c.Cancel(ctx, name)
			return reply{id: s.ID}, err
		})
	case kind < 55:
		a.record(name, "resume", func() (reply, error) {
			s, err := c.Resume(ctx, name, api.ResumeRequest{FromStart: true})
			return reply{id: s.ID}, err
		})
	case kind < 85:
		a.record(name, "read", func() (reply, error) {
			s, err := c.Job(ctx, name)
			return reply{id: s.ID, state: s.State}, err
		})
	default:
		var jobs []api.JobStatus
		o := a.timed(func() (reply, error) {
			var err error
			jobs, err = c.Jobs(ctx)
			return reply{}, err
		})
		if r := o.Output.(reply); !r.unknown { //nolint:forcetypeassert // of timed
			a.keepList(o, r, jobs)
		}
	}
}

// timed asks, and says when and what came of it.
func (a *asker) timed(ask func() (reply, error)) porcupine.Operation {
	a.age = 0
	o := porcupine.Operation{ClientId: a.id, Call: int64(time.Since(a.begun))}
	r, err := ask()
	o.Return = int64(time.Since(a.begun))
	r.age = a.age
	if err != nil {
		r = told(err, r)
	}
	o.Output = r
	return o
}

// told is what an error says.
func told(err error, r reply) reply {
	e, ok := errors.AsType[*api.Error](err)
	switch {
	case ok && e.Status == http.StatusNotFound:
		r.absent = true
	case ok && e.Status == http.StatusConflict:
		r.refused = true
	default:
		_, away := errors.AsType[*api.ConnectError](err)
		r.unknown, r.away = true, away && !errors.Is(err, context.DeadlineExceeded)
	}
	return r
}

// record keeps what was asked for and answered.
func (a *asker) record(job, kind string, ask func() (reply, error)) {
	o := a.timed(ask)
	o.Input = request{job, kind}
	if r := o.Output.(reply); r.away || r.unknown && kind == "read" { //nolint:forcetypeassert // of timed
		return // it says nothing
	} else if r.unknown {
		o.Return = math.MaxInt64
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.history = append(a.history, o)
}

// keepList keeps a list of jobs as reads of each.
func (a *asker) keepList(o porcupine.Operation, r reply, jobs []api.JobStatus) {
	names := make([]string, len(a.jobs))
	for i, j := range a.jobs {
		names[i] = j.Key
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	for name, of := range ofList(names, jobs, r) {
		o.Input, o.Output = request{name, "read"}, of
		a.history = append(a.history, o)
	}
	a.lists = append(a.lists, jobs)
}

// progress waits until the clients have asked for some more.
func (c *crowd) progress(what string) {
	until := c.done.Load() + 60
	nodetest.Eventually(c.t, what, func() bool { return c.done.Load() >= until })
}

// losses are what happens to the node that leads, and what ends it.
var losses = map[string]func(t *testing.T, c *crowd, lead *host, others []*host){
	"ends in order": func(t *testing.T, c *crowd, lead *host, others []*host) {
		lead.Stop(t)
		leader(t, others)
		c.progress("without it")
		lead.start(t, lead.Dir)
	},
	"is killed": func(t *testing.T, c *crowd, lead *host, others []*host) {
		lead.Kill(t)
		leader(t, others)
		c.progress("without it")
		lead.start(t, lead.Dir)
	},
	"stops, and goes on as if it led": func(t *testing.T, c *crowd, lead *host, others []*host) {
		c.hangs.Store(lead)
		lead.Signal(t, syscall.SIGSTOP)
		leader(t, others)
		c.progress("while it is stopped")
		var waiting sync.WaitGroup
		for i := range 4 * apiClients { // they are the first that it sees
			waiting.Go(func() { c.asker(apiClients + i).readAll(lead) })
		}
		nodetest.Eventually(t, "some ask the node that is stopped", func() bool { return c.waits.Load() >= 4*apiClients })
		c.progress("while some ask it")
		lead.Signal(t, syscall.SIGCONT)
		waiting.Wait()
	},
}

// TestWhatUsersAskForIsLinearizable: users submit, cancel, resume and read jobs through all nodes, while the node that leads is lost and comes back.
func TestWhatUsersAskForIsLinearizable(t *testing.T) {
	t.Parallel()
	all := form(t, 3, "n1", "n2", "n3")
	for _, h := range all { // jobs wait, so that what changes them is what users ask for
		nodetest.Eventually(t, h.name+" is drained", func() bool {
			_, err := all[0].Client.Drain(t.Context(), h.name, api.DrainRequest{})
			return err == nil
		})
	}
	operations, unknown, aged := 0, 0, 0
	for n := range *apiRounds {
		for name, lose := range losses {
			c := loseWhileAsked(t, all, fmt.Sprintf("%s-%d", name[:4], n), lose)
			checkHistory(t, c.history)
			checkLists(t, c.lists)
			for _, o := range c.history {
				operations++
				if r := o.Output.(reply); r.unknown { //nolint:forcetypeassert // of record
					unknown++
				} else if r.age > 0 {
					aged++
				}
			}
			if t.Failed() {
				t.Fatalf("the node that leads %s", name)
			}
		}
	}
	t.Logf("%d operations, %d of them with an outcome that is not known, %d reads that say their age", operations, unknown, aged)
}

// loseWhileAsked has clients ask while the node that leads is lost and comes back.
func loseWhileAsked(t *testing.T, all []*host, round string, lose func(*testing.T, *crowd, *host, []*host)) *crowd {
	t.Helper()
	c := &crowd{t: t, nodes: all, begun: time.Now()}
	for i := range apiClients - 1 { // two submit the same
		name := round + "-" + strconv.Itoa(i)
		c.jobs = append(c.jobs, api.SubmitRequest{File: "job.yaml", Source: nodetest.Job(t, all[0].Dir, name, 1e6), Base: all[0].Dir, Key: name})
	}
	lead, others := leader(t, all)
	ctx, stop := context.WithCancel(t.Context())
	var asking sync.WaitGroup
	defer asking.Wait()
	defer stop()
	for id := range apiClients {
		asking.Go(func() { c.asker(id).run(ctx) })
	}
	c.progress("before")
	lose(t, c, lead, others)
	leader(t, all)
	c.hangs.Store(nil)
	c.progress("afterwards")
	return c
}

// checkLists fails the test where a list lacks a job that was submitted before another one in it.
func checkLists(t *testing.T, lists [][]api.JobStatus) {
	t.Helper()
	for _, jobs := range lists {
		for i, j := range jobs {
			if j.ID != strconv.Itoa(i+1) {
				t.Errorf("a list has job %s (%s) at place %d of %d", j.ID, j.Name, i+1, len(jobs))
			}
		}
	}
}
