package node

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/avgpipe/avgpipe/internal/api"
	"github.com/avgpipe/avgpipe/internal/cluster"
	"github.com/avgpipe/avgpipe/internal/history"
)

func (n *node) History(ctx context.Context, ref string, r api.HistoryRequest) (api.History, error) {
	j, err := n.find(ref)
	if err != nil {
		return api.History{}, err
	}
	damaged := 0
	records, err := patiently(ctx, &n.readers, j.ID, func() (all []history.Record, err error) {
		all, damaged, err = n.readHistory(ctx, j)
		return all, err
	})
	if err != nil {
		return api.History{}, fmt.Errorf("history of job %s: %w", j.ID, err)
	}
	if damaged > 0 {
		n.log.Warn("a history lacks records that cannot be read", zap.String("job", j.ID), zap.Int("records", damaged))
	}
	out := selectHistory(history.Live(records), r, j)
	out.ID, out.Name, out.Damaged = j.ID, j.Name, damaged
	out.Task = n.describe(ctx, j).Task
	return out, nil
}

// readHistory reads what a job's worker writes. Of a job that has ended this node may not know which one wrote the steps: of what the nodes have that
// have something of the job, that which reaches furthest is it.
func (n *node) readHistory(ctx context.Context, j *cluster.Job) (all []history.Record, damaged int, err error) {
	if there := n.elsewhere(j); there != nil && !j.State.Ended() {
		return there.History(ctx, j.ID)
	}
	all, damaged, err = n.agent.History(ctx, j.ID)
	if n.member == nil || !j.State.Ended() {
		return all, damaged, err
	}
	ctx, cancel := context.WithTimeout(ctx, historyWait)
	defer cancel()
	var mu sync.Mutex
	var asking sync.WaitGroup
	for _, there := range n.asked(j) {
		asking.Go(func() {
			found, lost, failed := there.History(ctx, j.ID)
			mu.Lock()
			defer mu.Unlock()
			if failed != nil {
				err = errors.Join(err, failed)
			} else if slices.Compare(reach(found), reach(all)) > 0 {
				all, damaged = found, lost
			}
		})
	}
	asking.Wait()
	if err != nil && reach(all) != nil {
		n.log.Warn("a history is read without some of the nodes that have something of the job", zap.String("job", j.ID), zap.Error(err))
		err = nil
	}
	return all, damaged, err
}

// historyWait is how long all other nodes may take to give a history: less than diskPatience.
const historyWait = 5 * time.Second

// reach is how far a history goes: the generation of its last step, and that step; nil without steps.
func reach(records []history.Record) []uint64 {
	for _, r := range slices.Backward(records) {
		if r.Kind == history.Step {
			return []uint64{r.Generation, r.Last}
		}
	}
	return nil
}

// selectHistory turns the records that hold into an answer. A commit counts when Raft has it.
func selectHistory(live []history.Record, r api.HistoryRequest, j *cluster.Job) api.History {
	out := api.History{
		Points: []api.HistoryPoint{}, Evaluations: []api.HistoryEvaluation{}, Commits: []api.HistoryMark{}, Starts: []api.HistoryMark{},
	} // JSON: [], not null
	committed := uint64(0)
	if m := j.LastCommitted(); m != nil {
		committed = m.Round
	}
	of := func(kind history.Kind) []history.Record {
		records := slices.DeleteFunc(slices.Clone(live), func(h history.Record) bool {
			return h.Kind != kind || h.Last < r.From || kind == history.Commit && h.Round > committed
		})
		if r.Points > 0 {
			records = history.Even(records, r.Points)
		}
		return records
	}
	for _, h := range of(history.Step) {
		out.Points = append(out.Points, api.HistoryPoint{
			First: h.First, Last: h.Last, Time: h.Time, Loss: value(h.Values[history.Loss]), LearningRate: value(h.Values[history.LearningRate]),
			GradientNorm: value(h.Values[history.GradientNorm]), TokensPerS: value(h.Values[history.TokensPerS]),
		})
	}
	for _, h := range of(history.Evaluation) {
		out.Evaluations = append(out.Evaluations, api.HistoryEvaluation{HistoryMark: mark(&h), Loss: h.Values[history.Loss].Mean})
	}
	for _, h := range of(history.Commit) {
		out.Commits = append(out.Commits, mark(&h))
	}
	for _, h := range of(history.Start) {
		out.Starts = append(out.Starts, mark(&h))
	}
	return out
}

func mark(h *history.Record) api.HistoryMark {
	return api.HistoryMark{Steps: h.Last, Round: h.Round, Generation: h.Generation, Time: h.Time}
}

// value is a value as the API has it; nil while it is not known.
func value(s history.Stat) *api.HistoryValue {
	if !s.Known() {
		return nil
	}
	return &api.HistoryValue{Mean: s.Mean, Min: s.Min, Max: s.Max}
}
