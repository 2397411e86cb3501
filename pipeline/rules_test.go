package pipeline

import (
	"cmp"
	"math"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/avgpipe/avgpipe/elastic"
	"github.com/avgpipe/avgpipe/stage"
	"github.com/avgpipe/avgpipe/stage/flat"
)

// averagings are the methods that tests run: elastic by its pulls, the others by their names, with what is set of them.
var averagings = someIfRaced([]string{
	"predicted", "old", "new", "elastic", "easgd-async", "predicted within 0.0023", "old within 0.0012", "localsgd", "diloco", "streaming-diloco 2", "streaming-diloco 3", "streaming-diloco 4", "allreduce", "pipesgd", "pipesgd after 3",
	"sapipe 3 local", "sapipe 2 prev_sync diag after 2", "sapipe 3 local_prev_sync outer_adaptive", "sapipe 4 local_prev_sync diag_adaptive after 1", "sapipe 1 prev_sync outer", "sapipe 5 prev_sync after 1", "sapipe 99 none",
}, "predicted", "new", "easgd-async", "old within 0.0012", "diloco", "streaming-diloco 3", "allreduce", "pipesgd after 3", "sapipe 3 local_prev_sync outer_adaptive")

// someIfRaced are all, or under the race detector some: it looks at who touches what when, which each of these does in another way; which bits come out, all are held against without it.
func someIfRaced[T any](all []T, some ...T) []T {
	if raced {
		return some
	}
	return all
}

// outerRate and outerMomentum are diloco's, and with ownShare streaming-diloco's.
const outerRate, outerMomentum, ownShare = 0.5, 0.75, 0.25

func (r *run) method() elastic.Method {
	name, c := r.by, elastic.Config{Tau: max(r.tau, 1), Pipelines: r.pipelines, Precision: r.precision}
	switch r.by {
	case "", "predicted", "old", "new", "elastic":
		name, c.Pull = "elastic", elastic.PullRule(r.by)
	case "diloco":
		c.OuterRate, c.OuterMomentum = outerRate, outerMomentum
	case "pipesgd after 3":
		name, c.Warmup = "pipesgd", 3
	}
	if r.maxDrift() > 0 {
		name, c.Pull, c.MaxDrift = "elastic", r.pull(), r.maxDrift()
	}
	words := strings.Fields(r.by)
	if r.streams() {
		name, c.OuterRate, c.OuterMomentum, c.Mix = words[0], outerRate, outerMomentum, ownShare
		c.Fragments, _ = strconv.Atoi(words[1])
	}
	if len(words) > 0 && words[0] == "sapipe" {
		name, c.Lambda = "sapipe", lambda
		c.StaleLayers, _ = strconv.Atoi(words[1])
		c.Prediction, words = elastic.Prediction(words[2]), words[3:]
		if n := len(words); n > 1 && words[n-2] == "after" {
			c.Warmup, _ = strconv.ParseUint(words[n-1], 10, 64)
			words = words[:n-2]
		}
		if len(words) > 0 {
			c.Compensation = elastic.Compensation(words[0])
		}
	}
	m, err := elastic.NewMethod(name, c)
	if err != nil {
		panic(err)
	}
	return m
}

// pull is that of elastic averaging.
func (r *run) pull() elastic.PullRule {
	pull, _, _ := strings.Cut(r.by, " ")
	return elastic.PullRule(cmp.Or(pull, "predicted"))
}

// maxDrift is the bound of the pipelines' drift; 0: there is none.
func (r *run) maxDrift() float64 {
	_, within, _ := strings.Cut(r.by, " within ")
	bound, _ := strconv.ParseFloat(within, 64)
	return bound
}

// streams reports whether fragments of the model are exchanged in turn. A single pipeline trains alone.
func (r *run) streams() bool { return strings.HasPrefix(r.by, "streaming-diloco") }

// fragment is that of elements of a stage from one on.
func (r *run) fragment(k, from, fragments int) int {
	at := slices.IndexFunc(r.layout(k), func(run elastic.Run) bool { return from < run.To })
	return r.layout(k)[at].Layer % fragments
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
	return r.pipelines > 1 && (r.by == "allreduce" || strings.HasPrefix(r.by, "pipesgd") || strings.HasPrefix(r.by, "sapipe"))
}

// rounded is a message of a pipeline as the other groups get it, segment by segment.
func (r *run) rounded(s *sequential, p, k int, message flat.Host) flat.Host {
	sent := slices.Clone(message)
	if s.lost[[2]int{p, k}] == nil {
		s.lost[[2]int{p, k}] = flat.NewHost(len(message))
	}
	r.bySegment(s, k, func(of elastic.Segment) {
		r.precision.Round(make([]byte, r.precision.Bytes(of.To-of.From)), sent[of.From:of.To], s.lost[[2]int{p, k}][of.From:of.To])
	})
	return sent
}

// roundSum rounds the sum of messages as its owners do.
func (r *run) roundSum(s *sequential, sum flat.Host, k int) {
	by := r.precision.Sums()
	r.bySegment(s, k, func(of elastic.Segment) { by.Round(make([]byte, by.Bytes(of.To-of.From)), sum[of.From:of.To], nil) })
}

// bySegment calls f for the segments of a stage that are exchanged in the round in progress.
func (r *run) bySegment(s *sequential, k int, f func(elastic.Segment)) {
	if r.precision == "" {
		return
	}
	for _, of := range elastic.Segments(elastic.Cut(r.method(), r.layout(k)), r.layout(k), r.groups, testedElements) {
		if n := r.method().Config().Fragments; r.streams() && int(s.round)%n != r.fragment(k, of.From, n) {
			continue
		}
		f(of)
	}
}

// lambda weighs sapipe's compensation, so that it shows.
const lambda = 0.5

// gradientRound is a step of all pipelines with the mean of their gradients: of this step with allreduce, and where gradients are late that of the step before (Li et al. 2018,
// Chen et al. 2022), after a warm-up. Elements that have no gradient to apply are not updated.
func (r *run) gradientRound(t testing.TB, s *sequential, round uint64) {
	t.Helper()
	m := r.method()
	step, n := round-1, float32(r.pipelines)
	own := make([][]flat.Host, r.pipelines)
	for p, stages := range s.fakes {
		r.gradients(t, stages, p, step)
		s.losses[[2]uint64{uint64(p), step}] = stages[len(stages)-1].loss
		for k, f := range stages {
			own[p] = append(own[p], r.rounded(s, p, k, f.grads))
		}
	}
	applied, moved := make([]flat.Host, r.stages), make([]flat.Host, r.stages)
	for k := range r.stages {
		mean := slices.Clone(own[0][k])
		for p := 1; p < r.pipelines; p++ {
			mean.Axpy(1, own[p][k])
		}
		r.roundSum(s, mean, k)
		mean.Scale(1 / n)
		applied[k] = slices.Clone(mean)
		for i := range mean {
			first := r.firstLate(k, i)
			switch late := round >= first && r.late(k, i); {
			case late && round == first:
				applied[k][i] = 0
			case late:
				applied[k][i] = s.kept[k][i]
			}
		}
		for i := range mean { // the center of what is not late goes on from nothing
			if !r.late(k, i) {
				mean[i] = 0
			}
		}
		s.kept[k] = mean
		s.updates[k] = round
	}
	for p, stages := range s.fakes {
		sum, scale := 0.0, float32(1)
		for k, f := range stages {
			f.grads.Copy(applied[k])
			sum, _ = f.SquaredNorm(sum)
		}
		if r.clip > 0 {
			scale = stage.ClipFactor(sum, r.clip)
		}
		for k, f := range stages {
			moved[k] = flat.NewHost(len(f.params))
			for i := range f.params {
				h := stage.Hyper{Step: step, LearningRate: rate(step), GradScale: scale, Elements: flat.Range{From: i, To: i + 1}}
				if first := r.firstLate(k, i); round >= first && r.late(k, i) {
					if h.Step--; round == first {
						continue
					}
				}
				_ = f.Step(h, moved[k])
			}
		}
		if m.Needs().Predicts {
			r.predictStages(s, p, round, scale, applied, own[p], moved)
		}
		for _, f := range stages {
			f.ZeroGradients()
		}
	}
	s.earlier = own
	for k := range r.stages {
		s.centers[k] = slices.Clone(s.fakes[0][k].params)
	}
}

// late reports whether an element of a stage takes gradients of the step before.
func (r *run) late(k, i int) bool {
	switch {
	case strings.HasPrefix(r.by, "pipesgd"):
		return true
	case r.by == "allreduce":
		return false
	}
	for _, run := range r.layout(k) {
		if run.From <= i && i < run.To {
			return run.Layer < r.method().Config().StaleLayers
		}
	}
	return false
}

// firstLate is the round in which an element that is late has no gradient.
func (r *run) firstLate(k, i int) uint64 {
	first := r.method().Config().Warmup + 1
	if r.at > 0 && !r.before().late(k, i) {
		first = max(first, r.at+1)
	}
	return first
}

// before is the run as it was up to round r.at.
func (r *run) before() *run {
	if r.at == 0 {
		return r
	}
	return &run{stages: r.stages, pipelines: r.pipelines, micros: r.micros, groups: r.groups, precision: r.precision, clip: r.clip, tied: r.tied, by: r.was}
}

// applyInFlight takes, after round r.at, the step that elements have not taken yet that are late no more.
func (r *run) applyInFlight(s *sequential) {
	if r.at == 0 {
		return
	}
	was, m := r.before(), r.method()
	for _, stages := range s.fakes {
		sum, scale := 0.0, float32(1)
		drained := func(k, i int) bool { return r.at > was.method().Config().Warmup && was.late(k, i) && !r.late(k, i) }
		for k, f := range stages {
			for i := range f.params {
				if drained(k, i) {
					f.grads[i] = s.kept[k][i]
				}
			}
			sum, _ = f.SquaredNorm(sum)
		}
		if r.clip > 0 {
			scale = stage.ClipFactor(sum, r.clip)
		}
		for k, f := range stages {
			for i := range f.params {
				if drained(k, i) {
					_ = f.Step(stage.Hyper{Step: r.at - 1, LearningRate: rate(r.at), GradScale: scale, Elements: flat.Range{From: i, To: i + 1}}, nil)
				}
				if f.predicted != nil && (!was.late(k, i) || !r.late(k, i)) {
					f.predicted[i] = f.params[i]
				}
			}
			if f.ZeroGradients(); !m.Needs().Predicts {
				f.predicted = nil
			} else if f.predicted == nil {
				f.predicted = slices.Clone(f.params)
			}
		}
	}
}

// predictStages gives a pipeline the weights that its next batch is computed with (Chen et al. 2022): late elements after another step, with the gradient that is expected.
func (r *run) predictStages(s *sequential, p int, round uint64, scale float32, applied, own, moved []flat.Host) {
	c := r.method().Config()
	for k, f := range s.fakes[p] {
		f.predicted.Copy(f.params)
		expected := slices.Clone(applied[k])
		if c.Prediction == elastic.PredictLocal {
			expected = own[k]
		} else {
			for _, run := range r.layout(k) {
				compensateTensor(c.Compensation, expected[run.From:run.To], moved[k][run.From:run.To])
			}
			if c.Prediction == elastic.PredictLocalPrevSync && s.earlier != nil {
				expected.Axpy(1/float32(r.pipelines), own[k])
				expected.Axpy(-1/float32(r.pipelines), s.earlier[p][k])
			}
		}
		for i := range f.params {
			first := r.firstLate(k, i)
			known := round > first || round == first && c.Prediction == elastic.PredictLocal
			if !known || !r.late(k, i) {
				continue
			}
			h := stage.Hyper{Step: round - 1, LearningRate: rate(round), GradScale: scale}
			f.predicted[i] += -h.LearningRate * correction(h) * (0.9*f.momentum[i] + h.GradScale*expected[i])
		}
	}
}

// compensateTensor is the compensation for delay of a tensor, as the equations have it.
func compensateTensor(by elastic.Compensation, g, d flat.Host) {
	product, square := 0.0, 0.0
	for i, x := range g {
		product += float64(x) * float64(d[i])
		square += float64(x) * float64(x)
	}
	for i, x := range g {
		own := float64(x) * float64(x)
		switch by {
		case elastic.CompensateDiag:
			g[i] += lambda * (d[i] * x * x)
		case elastic.CompensateDiagAdaptive:
			g[i] += float32(lambda * own * float64(d[i]) / math.Sqrt(own+1e-7))
		case elastic.CompensateOuter:
			g[i] *= float32(1 + lambda*product)
		case elastic.CompensateOuterAdaptive:
			g[i] *= float32(1 + lambda*(product/math.Sqrt(square+1e-7)))
		case elastic.CompensateNothing:
		}
	}
}

// dilocoStage is one round of one shard of DiLoCo (Douillard et al. 2023, algorithm 1), with -D and -m in the places of D and m.
func (r *run) dilocoStage(s *sequential, k int, deltas [][]flat.Host) {
	mean, momentum, center := r.rounded(s, 0, k, deltas[0][k]), s.kept[k], s.centers[k]
	for p, of := range deltas[1:] {
		mean.Axpy(1, r.rounded(s, p+1, k, of[k]))
	}
	r.roundSum(s, mean, k)
	mean.Scale(1 / float32(r.pipelines))
	momentum.Scale(outerMomentum)
	momentum.Axpy(1, mean)
	center.Axpy(outerRate, mean)
	center.Axpy(outerRate*outerMomentum, momentum)
	for _, stages := range s.fakes {
		stages[k].params.Copy(center)
	}
}

// streamingStage is one round of one shard of Streaming DiLoCo (Douillard et al. 2025, algorithm 2), with -D and -m in the places of D and m: elements whose fragment was exchanged in the round before
// are mixed, then those of another one are exchanged.
func (r *run) streamingStage(s *sequential, k int) {
	fragments, center, messages := r.method().Config().Fragments, s.centers[k], make([]flat.Host, r.pipelines)
	for p, stages := range s.fakes {
		messages[p] = flat.NewHost(len(center))
		for i, x := range stages[k].params {
			if s.round > 1 && int(s.round-1)%fragments == r.fragment(k, i, fragments) {
				stages[k].params[i] = x + float32((1-ownShare)*(center[i]-x))
			}
			messages[p][i] = stages[k].params[i] - center[i]
		}
	}
	sum := r.rounded(s, 0, k, messages[0])
	for p := 1; p < r.pipelines; p++ {
		sum.Axpy(1, r.rounded(s, p, k, messages[p]))
	}
	r.roundSum(s, sum, k)
	sum.Scale(1 / float32(r.pipelines))
	for i, mean := range sum {
		if int(s.round)%fragments != r.fragment(k, i, fragments) {
			continue
		}
		s.kept[k][i] = float32(outerMomentum*s.kept[k][i]) + mean
		center[i] += float32(outerRate * mean)
		center[i] += float32(outerRate * outerMomentum * s.kept[k][i])
	}
}

// averageStage is one round of one shard (algorithms of Chen et al. 2023 and Zhang et al. 2015).
func (r *run) averageStage(s *sequential, k int, round uint64, deltas [][]flat.Host) {
	center := s.centers[k]
	if r.pipelines == 1 {
		center.Copy(s.fakes[0][k].params)
		return
	}
	if r.streams() {
		r.streamingStage(s, k)
		return
	}
	pull := r.pull()
	switch r.by {
	case "easgd-async":
		r.visitStage(s, k, round)
		return
	case "diloco":
		r.dilocoStage(s, k, deltas)
		return
	case "localsgd":
		pull = elastic.PullNew // with an alpha of 1, its default
	}
	alpha := float32(elastic.DefaultAlpha(pull, r.pipelines))
	old := slices.Clone(center)
	sum := flat.NewHost(len(center))
	synchronous := s.synchronous[k]
	r.decide(s, k, round, old)
	for p := range r.pipelines {
		x := s.fakes[p][k].params
		message := deltas[p][k]
		if pull == elastic.PullElastic {
			message.Copy(x)
			message.Axpy(-1, old)
			message.Scale(alpha)
			x.Axpy(-1, message)
		}
		if sent := r.rounded(s, p, k, message); p == 0 {
			sum.Copy(sent)
		} else {
			sum.Axpy(1, sent)
		}
	}
	r.roundSum(s, sum, k)
	if pull == elastic.PullElastic {
		center.Axpy(1, sum)
		return
	}
	center.Axpy(1/float32(r.pipelines), sum)
	if synchronous {
		for p := range r.pipelines {
			s.fakes[p][k].params.Copy(center)
		}
		return
	}
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

// visitStage is one round of one shard of EASGD whose pipelines visit the center in turn (Zhang et al. 2015, algorithm 1).
func (r *run) visitStage(s *sequential, k int, round uint64) {
	p := int(round) % r.pipelines //nolint:gosec // few
	x, center := s.fakes[p][k].params, s.centers[k]
	force := slices.Clone(x)
	force.Axpy(-1, center)
	force.Scale(float32(0.9 / float64(r.pipelines)))
	x.Axpy(-1, force)
	sent := r.rounded(s, p, k, force)
	r.roundSum(s, sent, k)
	center.Axpy(1, sent)
}

// decide says whether the next round of a stage is synchronous: while the pipelines are farther from the center than the bound, or, in a synchronous round, than half of it.
func (r *run) decide(s *sequential, k int, round uint64, center flat.Host) {
	if r.maxDrift() == 0 {
		return
	}
	var apart, length float64
	for i, c := range center {
		for p := range r.pipelines {
			d := float64(s.fakes[p][k].params[i]) - float64(c)
			apart += d * d / float64(r.pipelines)
		}
		length += float64(c) * float64(c)
	}
	bound := r.maxDrift()
	if s.synchronous[k] {
		bound /= 2
	}
	if next := math.Sqrt(apart/length) > bound; next != s.synchronous[k] {
		s.synchronous[k] = next
		s.changes[k] = append(s.changes[k], round)
	}
}
