package node_test

import (
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/avgpipe/avgpipe/internal/api"
	"github.com/avgpipe/avgpipe/internal/node"
	"github.com/avgpipe/avgpipe/internal/node/nodetest"
)

// TestAJobOfAHostThatIsLostGoesOnWithFewerStages and has consumed each sample once, over that loss and once the host is back.
func TestAJobOfAHostThatIsLostGoesOnWithFewerStages(t *testing.T) {
	t.Parallel()
	all := formWith(t, 3, func(c *node.Config) {
		c.Cores = []int{0}
		limits := c.Limits
		c.Limits = func() node.Limits {
			l := limits()
			l.Jobs.ResplitAfter = time.Second
			return l
		}
	}, "n3")
	lost := all[2]
	source := strings.NewReplacer("commit_every: 10", "commit_every: 10, replicas: 2", "stages: 2", "stages: 4").
		Replace(nodetest.Job(t, all[0].Dir, "long", 1e6)) // n3 has two cores, the others have one each
	id := all[0].Submit(t, source)
	has := func(stages int) func(api.JobStatus) bool {
		from := uint64(0)
		return func(s api.JobStatus) bool { // it goes on committing with as many stages
			if s.Stages != stages || s.State != api.Running {
				from = 0
				return false
			}
			if from == 0 {
				from = max(1, s.CommittedRound)
			}
			return s.CommittedRound > from
		}
	}
	all[0].Until(t, id, "commits with four stages", has(4))
	workers := slices.Concat(lost.WorkerPIDs(t, id), all[0].WorkerPIDs(t, id), all[1].WorkerPIDs(t, id))
	lost.Kill(t)
	for _, pid := range workers { // those elsewhere, whose links to it break: fake ones have none
		if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
	}
	s := all[1].Until(t, id, "goes on with two stages", has(2))
	if !strings.Contains(s.Reason, "split anew, from 4 stages into 2: node n3 is gone") {
		t.Errorf("the reason is %q", s.Reason)
	}
	lost.start(t, lost.Dir)
	s = all[1].Until(t, id, "has its four stages again", has(4))
	if !strings.Contains(s.Reason, "split again into 4 stages, from 2") {
		t.Errorf("the reason is %q", s.Reason)
	}
	a, err := all[1].Client.Audit(t.Context(), id)
	if err != nil || !a.Exact || len(a.Stretches) < 3 {
		t.Errorf("the samples behind it are %+v (%v)", a, err)
	}
}
