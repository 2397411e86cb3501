package pipeline

import (
	"cmp"
	"slices"
	"strings"
	"testing"

	"github.com/avgpipe/avgpipe/elastic"
	"github.com/avgpipe/avgpipe/stage/flat"
)

// averagings are the methods that tests run: elastic by its pulls, the others by their names, with what is set of them.
var averagings = []string{"predicted", "old", "new", "elastic", "localsgd", "diloco", "allreduce", "pipesgd", "pipesgd after 3"}

// outerRate and outerMomentum are diloco's.
const outerRate, outerMomentum = 0.5, 0.75

func (r *run) method(t testing.TB) elastic.Method {
	t.Helper()
	name, c := r.by, elastic.Config{Tau: r.tau, Pipelines: r.pipelines}
	switch r.by {
	case "", "predicted", "old", "new", "elastic":
		name, c.Pull = "elastic", elastic.PullRule(r.by)
	case "diloco":
		c.OuterRate, c.OuterMomentum = outerRate, outerMomentum
	case "pipesgd after 3":
		name, c.Warmup = "pipesgd", 3
	}
	m, err := elastic.NewMethod(name, c)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// tauOf is tau where an averaging may have rounds of several batches.
func tauOf(by string, tau int) int {
	if (&run{by: by, pipelines: 2}).exchangesGradients() {
		return 1
	}
	return tau
}

// exchangesGradients reports whether pipelines exchange gradients. A single one trains alone.
func (r *run) exchangesGradients() bool {
	return r.pipelines > 1 && (r.by == "allreduce" || strings.HasPrefix(r.by, "pipesgd"))
}

// gradientRound is a step of all pipelines with the mean of their gradients: of this step with allreduce, and with pipesgd of the step before (Li et al. 2018), after
// a warm-up. A step that has no gradient to apply applies none.
func (r *run) gradientRound(t testing.TB, s *sequential, round uint64) {
	t.Helper()
	from, late := map[string]uint64{"pipesgd": 1, "pipesgd after 3": 4}[r.by]
	late = late && round >= from
	step := round - 1
	for p, stages := range s.fakes {
		r.gradients(t, stages, p, step)
		s.losses[[2]uint64{uint64(p), step}] = stages[len(stages)-1].loss
	}
	for k := range r.stages {
		mean := slices.Clone(s.fakes[0][k].grads)
		for _, stages := range s.fakes[1:] {
			mean.Axpy(1, stages[k].grads)
		}
		mean.Scale(1 / float32(r.pipelines))
		for _, stages := range s.fakes {
			stages[k].grads.Copy(mean)
			if late {
				stages[k].grads.Copy(s.kept[k])
			}
		}
		s.kept[k] = mean
	}
	idle := late && round == from
	for _, stages := range s.fakes {
		if !idle {
			r.updateAll(stages, step, s.updates, nil)
			continue
		}
		for _, f := range stages {
			f.ZeroGradients()
		}
	}
	if !idle {
		s.updates++
	}
	for k := range r.stages {
		s.centers[k] = slices.Clone(s.fakes[0][k].params)
	}
}

// dilocoStage is one round of one shard of DiLoCo (Douillard et al. 2023, algorithm 1), with -D and -m in the places of D and m.
func (r *run) dilocoStage(s *sequential, k int, deltas [][]flat.Host) {
	mean, momentum, center := slices.Clone(deltas[0][k]), s.kept[k], s.centers[k]
	for _, of := range deltas[1:] {
		mean.Axpy(1, of[k])
	}
	mean.Scale(1 / float32(r.pipelines))
	momentum.Scale(outerMomentum)
	momentum.Axpy(1, mean)
	center.Axpy(outerRate, mean)
	center.Axpy(outerRate*outerMomentum, momentum)
	for _, stages := range s.fakes {
		stages[k].params.Copy(center)
	}
}

// averageStage is one round of one shard (algorithms of Chen et al. 2023 and Zhang et al. 2015).
func (r *run) averageStage(s *sequential, k int, deltas [][]flat.Host) {
	center := s.centers[k]
	if r.pipelines == 1 {
		center.Copy(s.fakes[0][k].params)
		return
	}
	pull := elastic.PullRule(cmp.Or(r.by, "predicted"))
	switch r.by {
	case "diloco":
		r.dilocoStage(s, k, deltas)
		return
	case "localsgd":
		pull = elastic.PullNew // with an alpha of 1, its default
	}
	alpha := float32(elastic.DefaultAlpha(pull, r.pipelines))
	old := slices.Clone(center)
	sum := flat.NewHost(len(center))
	for p := range r.pipelines {
		x := s.fakes[p][k].params
		message := deltas[p][k]
		if pull == elastic.PullElastic {
			message.Copy(x)
			message.Axpy(-1, old)
			message.Scale(alpha)
			x.Axpy(-1, message)
		}
		if p == 0 {
			sum.Copy(message)
		} else {
			sum.Axpy(1, message)
		}
	}
	if pull == elastic.PullElastic {
		center.Axpy(1, sum)
		return
	}
	center.Axpy(1/float32(r.pipelines), sum)
	toward := old
	if pull == elastic.PullNew {
		toward = center
	}
	for p := range r.pipelines {
		s.fakes[p][k].params.Lerp(alpha, toward)
		if pull == elastic.PullPredicted {
			s.fakes[p][k].params.Axpy(alpha*float32(elastic.DefaultHorizon(r.tau)), deltas[p][k])
		}
	}
}
