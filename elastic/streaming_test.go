package elastic

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/avgpipe/avgpipe/stage/flat"
)

// runs is a layout of runs of the layers given, each of which has so many elements.
func runs(length int, layers ...int) (l Layout) {
	for i, layer := range layers {
		l = append(l, Run{Range: flat.Range{From: i * length, To: (i + 1) * length}, Layer: 10 * layer, Trained: layer})
	}
	return l
}

// streamed are shells of the slices of a vector, as one.
type streamed struct {
	slices []Slice
	shells []*shell
}

func newStreamed(t *testing.T, c Config, l Layout) *streamed {
	t.Helper()
	s := &streamed{slices: Cut(newMethodOf(t, "streaming-diloco", c), l)}
	whole := initial(l[len(l)-1].To)
	for _, part := range s.slices {
		of := newShell(t, part.Rules, c.Pipelines, part.To-part.From)
		for _, v := range append([]flat.Vector{of.shard.Center}, of.x[0], of.x[1], of.x[2]) {
			v.Copy(whole.Slice(part.From, part.To))
		}
		s.shells = append(s.shells, of)
	}
	return s
}

// round has every pipeline take its update of a round.
func (s *streamed) round(updates []flat.Host) {
	for i, u := range updates {
		for j, part := range s.slices {
			s.shells[j].updateWith(i, u[part.From:part.To])
		}
	}
}

// at are the weights of a pipeline; of -1 the center.
func (s *streamed) at(pipeline int) (all flat.Host) {
	for _, of := range s.shells {
		if pipeline < 0 {
			all = append(all, of.centerCopy()...)
			continue
		}
		all = append(all, of.x[pipeline]...)
	}
	return all
}

// updatesOf are small updates of pipelines in a round, which do not depend on the weights.
func updatesOf(pipelines, n int, round uint64) (all []flat.Host) {
	for i := range pipelines {
		u := localUpdate(i, round, initial(n))
		u.Scale(0.02)
		all = append(all, u)
	}
	return all
}

// TestStreamingDiLoCoAgainstItsPaper compares 50 rounds with the equations in float64, for a stage whose layers lie in several fragments, not in order.
func TestStreamingDiLoCoAgainstItsPaper(t *testing.T) {
	const tolerance, n, length = 1e-6, 3, 4
	layers := []int{5, 0, 1, 2, 3, 7, 6}
	for _, c := range []Config{
		{Fragments: 2, Mix: 0.5, OuterRate: 0.7, OuterMomentum: 0.75},
		{Fragments: 3, Mix: 0.25, OuterRate: 0.5, OuterMomentum: 0.5},
		{Fragments: 4, OuterRate: 1},
		{Fragments: 8, Mix: 0.9, OuterRate: 0.7, OuterMomentum: 0.9},
	} {
		c.Pipelines = n
		s := newStreamed(t, c, runs(length, layers...))
		center, momentum := widen(s.at(-1)), make([]float64, length*len(layers))
		var x [][]float64
		for i := range n {
			x = append(x, widen(s.at(i)))
		}
		for r := 1; r <= 50; r++ {
			updates := updatesOf(n, len(center), uint64(r))
			s.round(updates)
			for j := range center {
				fragment, mean := layers[j/length]%c.Fragments, 0.0
				for i := range x {
					x[i][j] += float64(updates[i][j])
					if r > 1 && (r-1)%c.Fragments == fragment {
						x[i][j] = c.Mix*x[i][j] + (1-c.Mix)*center[j]
					}
					mean += x[i][j] / n
				}
				if r%c.Fragments == fragment {
					d := center[j] - mean
					momentum[j] = c.OuterMomentum*momentum[j] + d
					center[j] -= c.OuterRate * (d + c.OuterMomentum*momentum[j])
				}
			}
			for i := -1; i < n; i++ {
				want := center
				if i >= 0 {
					want = x[i]
				}
				for j, v := range s.at(i) {
					if math.Abs(float64(v)-want[j]) > tolerance {
						t.Fatalf("%+v, round %d: element %d of pipeline %d (-1: center) is %v, expected %v", c, r, j, i, v, want[j])
					}
				}
			}
		}
	}
}

// TestWithoutOwnWeightsPipelinesTakeTheMeanOfTheRoundBefore: with a = 0, an outer rate of 1 and no momentum, a fragment is set to the mean of what pipelines had a round ago, the same everywhere; what
// they did to it since is lost.
func TestWithoutOwnWeightsPipelinesTakeTheMeanOfTheRoundBefore(t *testing.T) {
	const n, length = 3, 4
	s := newStreamed(t, Config{Pipelines: n, Fragments: 3, OuterRate: 1}, runs(length, 0, 1, 2))
	for r := uint64(1); r <= 20; r++ {
		mean := make([]float64, 3*length) // as pipelines left the last round
		for i := range n {
			for j, v := range s.at(i) {
				mean[j] += float64(v) / n
			}
		}
		s.round(updatesOf(n, 3*length, r))
		if r == 1 {
			continue // nothing has been exchanged
		}
		from := int((r - 1) % 3 * length)
		for i := range n {
			got := s.at(i)[from : from+length]
			if err := sameBits(got, s.at(-1)[from:from+length]); err != nil {
				t.Fatalf("round %d: pipeline %d and the center: %v", r, i, err)
			}
			for j, v := range got {
				if math.Abs(float64(v)-mean[from+j]) > 1e-6 {
					t.Fatalf("round %d: element %d of pipeline %d is %v, the mean of the round before %v", r, from+j, i, v, mean[from+j])
				}
			}
		}
	}
}

// TestUpdatesDuringAnExchangeCountByWhatPipelinesKeep: with an outer rate of 1 and no momentum the mean of the pipelines is ahead of the center by a times the mean of what they did since it was exchanged.
func TestUpdatesDuringAnExchangeCountByWhatPipelinesKeep(t *testing.T) {
	const n, length, a = 3, 4, 0.25
	s := newStreamed(t, Config{Pipelines: n, Fragments: 2, Mix: a, OuterRate: 1}, runs(length, 0, 1))
	for r := uint64(1); r <= 40; r++ {
		updates := updatesOf(n, 2*length, r)
		s.round(updates)
		from := int((r - 1) % 2 * length) // exchanged in the round before
		for j := from; r > 1 && j < from+length; j++ {
			ahead, want := -float64(s.at(-1)[j]), 0.0
			for i := range n {
				ahead += float64(s.at(i)[j]) / n
				want += a * float64(updates[i][j]) / n
			}
			if math.Abs(ahead-want) > 1e-6 {
				t.Fatalf("round %d: element %d of the mean is %g ahead of the center, expected %g", r, j, ahead, want)
			}
		}
	}
}

// TestPipelinesThatKeepAllOfTheirWeightsNeverMeet, which is why a mix of 1 is refused.
func TestPipelinesThatKeepAllOfTheirWeightsNeverMeet(t *testing.T) {
	m := newStreaming(Config{Pipelines: 2, Fragments: 2, Mix: 1, OuterRate: 0.7}).(streaming)
	s, alone := newShell(t, m, 2, 8), initial(8)
	for r := range uint64(20) {
		alone.Axpy(1, localUpdate(0, r+1, alone))
		s.round(ascending(2))
	}
	if err := sameBits(s.x[0], alone); err != nil {
		t.Error(err)
	}
}

// TestFragmentsDoNotDependOnTheSplit: a layer is in the fragment of its number, in whichever stage it lies, and layers of one fragment that lie beside each other are one slice.
func TestFragmentsDoNotDependOnTheSplit(t *testing.T) {
	m := newMethodOf(t, "streaming-diloco", Config{Pipelines: 2, Fragments: 3})
	for _, c := range []struct {
		layers []int
		want   string
	}{
		{[]int{0, 1, 2, 3, 4}, "0-2:0 2-4:1 4-6:2 6-8:0 8-10:1"},
		{[]int{3, 4}, "0-2:0 2-4:1"},
		{[]int{4, 4, 1, 2, 2, 0}, "0-6:1 6-10:2 10-12:0"}, // several tensors, and what is tied
	} {
		var got []string
		for _, s := range Cut(m, runs(2, c.layers...)) {
			n := s.Rules.Needs()
			if n.Period != 3 || n.Timing != Before || n.State != 1 || n.Delta {
				t.Errorf("%v: needs %+v", c.layers, n)
			}
			got = append(got, fmt.Sprintf("%d-%d:%d", s.From, s.To, n.Phase))
		}
		if strings.Join(got, " ") != c.want {
			t.Errorf("layers %v: %v, want %s", c.layers, got, c.want)
		}
	}
}

// TestEveryFragmentIsExchangedOnceInAPeriod, and mixed in the round after; in the first round there is nothing to mix.
func TestEveryFragmentIsExchangedOnceInAPeriod(t *testing.T) {
	for _, c := range []struct {
		period, phase     uint64
		exchanged, mixed  []uint64
		every, buffers, v int
	}{
		{0, 0, []uint64{1, 2, 3, 4, 5, 6, 7, 8}, nil, 1, 2, 3 + 4},
		{2, 0, []uint64{2, 4, 6, 8}, []uint64{3, 5, 7}, 2, 1, 3 + 2},
		{2, 1, []uint64{1, 3, 5, 7}, []uint64{2, 4, 6, 8}, 2, 1, 3 + 2},
		{4, 0, []uint64{4, 8}, []uint64{5}, 4, 1, 3 + 2},
		{4, 1, []uint64{1, 5}, []uint64{2, 6}, 4, 1, 3 + 2},
		{4, 3, []uint64{3, 7}, []uint64{4, 8}, 4, 1, 3 + 2},
	} {
		n := Needs{Timing: Before, State: 1, Period: c.period, Phase: c.phase}
		var exchanged, mixed []uint64
		for r := uint64(1); r <= 8; r++ {
			if n.Exchanges(r) {
				exchanged = append(exchanged, r)
			}
			if n.Mixes(r) {
				mixed = append(mixed, r)
			}
		}
		if !slices.Equal(exchanged, c.exchanged) || !slices.Equal(mixed, c.mixed) {
			t.Errorf("%+v: exchanged in %v, mixed in %v", c, exchanged, mixed)
		}
		if n.Every() != c.every || n.Buffers() != c.buffers || n.Vectors(2, 1, 2) != c.v {
			t.Errorf("%+v: every %d, %d buffers, %d vectors", c, n.Every(), n.Buffers(), n.Vectors(2, 1, 2))
		}
	}
}

// TestStreamingDiLoCoRefusesWhatCannotStream.
func TestStreamingDiLoCoRefusesWhatCannotStream(t *testing.T) {
	for _, c := range []struct {
		config Config
		expect string
	}{
		{Config{Fragments: 1}, "averaging.fragments is 1: at least 2, which are exchanged in turn; for the whole model at once remove it and write method: diloco (averaging.method streaming-diloco)"},
		{Config{Fragments: -1}, "averaging.fragments is -1: at least 2"},
		{Config{Mix: 1}, "averaging.mix is 1: 0 or more, and below 1"},
		{Config{Mix: -0.5}, "averaging.mix is -0.5: 0 or more"},
		{Config{Mix: math.NaN()}, "averaging.mix is NaN"},
	} {
		for _, pipelines := range []int{1, 3} {
			c.config.Pipelines = pipelines
			if _, err := NewMethod("streaming-diloco", c.config); err == nil || !strings.Contains(err.Error(), c.expect) {
				t.Errorf("%+v: error %v, expected one with %q", c.config, err, c.expect)
			}
		}
	}
	if c := newMethodOf(t, "streaming-diloco", Config{Pipelines: 2}).Config(); c.Fragments != DefaultFragments || c.Tau != 8 {
		t.Errorf("by default: %+v", c)
	}
}

// TestMethodsHaveRoundsOfTheirOwnLengthByDefault: those that train apart take several batches, and a tau that is given stays.
func TestMethodsHaveRoundsOfTheirOwnLengthByDefault(t *testing.T) {
	want := map[string]int{"elastic": 1, "easgd-async": 1, "allreduce": 1, "pipesgd": 1, "sapipe": 1, "localsgd": 8, "diloco": 32, "streaming-diloco": 8}
	for _, name := range Methods() {
		for _, pipelines := range []int{1, 2} {
			if got := newMethodOf(t, name, Config{Pipelines: pipelines}).Config().Tau; got != want[name] || DefaultTau(name) != got {
				t.Errorf("%s of %d: tau %d, DefaultTau %d, want %d", name, pipelines, got, DefaultTau(name), want[name])
			}
			if got := newMethodOf(t, name, Config{Pipelines: pipelines, Tau: 1}).Config().Tau; got != 1 {
				t.Errorf("%s: a tau of 1 became %d", name, got)
			}
		}
	}
}
