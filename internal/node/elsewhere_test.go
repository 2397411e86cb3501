package node_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/avgpipe/avgpipe/internal/agent"
	"github.com/avgpipe/avgpipe/internal/api"
	"github.com/avgpipe/avgpipe/internal/cluster"
	"github.com/avgpipe/avgpipe/internal/history"
	"github.com/avgpipe/avgpipe/internal/node/nodetest"
	"github.com/avgpipe/avgpipe/internal/shard"
	"github.com/avgpipe/avgpipe/internal/worker/control"
)

// TestAnOlderRoundIsExportedFromOtherNodes where the newest one is damaged, by the node that leads and has no shards.
func TestAnOlderRoundIsExportedFromOtherNodes(t *testing.T) {
	t.Parallel()
	all := form(t, 3)
	lead, others := leader(t, all)
	nodetest.Eventually(t, "node "+lead.name+" is drained", func() bool {
		_, err := lead.Client.Drain(t.Context(), lead.name, api.DrainRequest{})
		return err == nil
	})
	id := others[0].Submit(t, "placement: spread\n"+nodetest.Job(t, others[0].Dir, "elsewhere", 1e6))
	first := others[0].Until(t, id, "commits", committed)
	others[0].Until(t, id, "commits further", func(s api.JobStatus) bool { return s.CommittedRound > first.CommittedRound })
	others[0].Cancel(t, id)
	end := others[0].Until(t, id, "ends", ended)
	var j *cluster.Job
	nodetest.Eventually(t, "the job's record is kept", func() bool {
		return slices.ContainsFunc(all, func(h *host) bool {
			var err error
			j, err = agent.ReadRecord(agent.JobDir(h.Dir, id))
			return err == nil && j.LastCommitted() != nil && j.LastCommitted().Round == end.CommittedRound
		})
	})
	if len(j.Committed) < 2 {
		t.Fatalf("%d rounds are kept; want 2", len(j.Committed))
	}
	damaged := 0
	for _, s := range j.LastCommitted().Shards {
		for _, h := range all {
			path := shard.StoreAt(control.ShardDir(agent.JobDir(h.Dir, id))).Path(s.Digest)
			if exists(path) {
				damaged++
				if err := os.Truncate(path, 1); err != nil {
					t.Fatal(err)
				}
			}
		}
	}
	if damaged == 0 {
		t.Fatal("no shard of the newest round was found")
	}
	older := j.Committed[len(j.Committed)-2].Round
	card := exportedCard(t, lead.Daemon, id)
	if want := fmt.Sprintf("this is round %d: newer ones cannot be read", older); !strings.Contains(card.Notice, want) {
		t.Errorf("the card's notice has no %q: %s", want, card.Notice)
	}
}

// TestTheHistoryOfAnEndedJobIsThatOfItsLastStage, wherever that ran.
func TestTheHistoryOfAnEndedJobIsThatOfItsLastStage(t *testing.T) {
	t.Parallel()
	all := form(t, 3)
	lead, others := leader(t, all)
	nodetest.Eventually(t, "node "+lead.name+" is drained", func() bool {
		_, err := lead.Client.Drain(t.Context(), lead.name, api.DrainRequest{})
		return err == nil
	})
	id := others[0].Submit(t, "placement: spread\n"+nodetest.Job(t, others[0].Dir, "elsewhere", 20))
	if s := others[0].Until(t, id, "ends", ended); s.State != api.Done {
		t.Fatalf("the job is %s: %s", s.State, s.Reason)
	}
	for i, h := range others { // the workers of tests write none
		file, err := history.Open(control.HistoryPath(agent.JobDir(h.Dir, id)), func(err error) { t.Error(err) })
		if err != nil {
			t.Fatal(err)
		}
		generation, step := uint64(i+1), uint64(10*i+9)
		file.Append(history.Mark(history.Start, 0, 0, generation, time.Now()))
		r := history.Mark(history.Step, step, 1, generation, time.Now())
		r.Values[history.Loss] = history.Stat{Mean: 2, Min: 1, Max: 3}
		file.Append(r)
		over, cancel := context.WithCancel(t.Context())
		cancel()
		file.Run(over) // it writes what there is
		if err := file.Close(); err != nil {
			t.Fatal(err)
		}
		nodetest.Eventually(t, "the history of "+h.name, func() bool { // a busy node may answer late
			got, err := lead.Client.History(t.Context(), id, api.HistoryRequest{})
			return err == nil && len(got.Points) == 1 && got.Points[0].Last == step && got.Points[0].Loss != nil
		})
	}
}

// TestTheLastStatusOfAnEndedJobIsThereWhoeverLeads: the node that led when it ended may be gone, and the one that leads may have nothing of it.
func TestTheLastStatusOfAnEndedJobIsThereWhoeverLeads(t *testing.T) {
	t.Parallel()
	all := form(t, 3)
	lead, others := leader(t, all)
	nodetest.Eventually(t, "node "+lead.name+" is drained", func() bool {
		_, err := lead.Client.Drain(t.Context(), lead.name, api.DrainRequest{})
		return err == nil
	})
	id := others[0].Submit(t, "placement: spread\n"+nodetest.Job(t, others[0].Dir, "elsewhere", 20))
	was := others[0].Until(t, id, "ends", ended)
	if was.State != api.Done || was.Loss == nil || was.TokensPerS == 0 {
		t.Fatalf("the job is %s: %s, loss %v, %v tokens/s", was.State, was.Reason, was.Loss, was.TokensPerS)
	}
	for _, h := range others {
		if !exists(filepath.Join(agent.JobDir(h.Dir, id), "status.json")) {
			t.Errorf("%s, where it ran, keeps no status of it", h.name)
		}
	}
	lead.Stop(t)
	next, rest := leader(t, others)
	if err := os.Remove(filepath.Join(agent.JobDir(next.Dir, id), "status.json")); err != nil {
		t.Fatal(err)
	}
	jobs, err := nodetest.Answered(t, func() ([]api.JobStatus, error) { return rest[0].Client.Jobs(t.Context()) })
	if err != nil || len(jobs) != 1 {
		t.Fatalf("%d jobs, %v", len(jobs), err)
	}
	if now := jobs[0]; now.Loss == nil || *now.Loss != *was.Loss || now.TokensPerS != was.TokensPerS {
		t.Errorf("where %s leads, it has the loss %v and %v tokens/s; it had %v and %v", next.name, now.Loss, now.TokensPerS, *was.Loss, was.TokensPerS)
	}
}
