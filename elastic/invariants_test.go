package elastic

import (
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/avgpipe/avgpipe/stage/flat"
)

// eachMethod runs a test for every method with several numbers of pipelines.
func eachMethod(t *testing.T, test func(t *testing.T, m Method, pipelines int)) {
	t.Helper()
	for _, n := range []int{1, 2, 3, 5} {
		for name, m := range everyMethod(t, n) {
			t.Run(name, func(t *testing.T) { test(t, m, n) })
		}
	}
}

// TestArrivalOrderChangesNoBit: pipelines that arrive in any order, and run ahead as far as they may, end with the same bits.
func TestArrivalOrderChangesNoBit(t *testing.T) {
	const rounds = 12
	eachMethod(t, func(t *testing.T, m Method, n int) {
		centers, weights := sequential(m, rounds, 16, n, everyone)
		for seed := range uint64(20) {
			s := newWildShell(t, m, n, 16)
			random := rand.New(rand.NewPCG(seed, 0))
			for tries := 0; s.center.Round() < rounds; tries++ {
				if tries > 100_000 {
					t.Fatalf("seed %d: they do not come to an end", seed)
				}
				if i := random.IntN(n); s.trained[i] < rounds && s.mayTrain(i) {
					s.update(i)
				}
			}
			if err := sameBits(s.centerCopy(), centers[rounds]); err != nil {
				t.Fatalf("seed %d: center: %v", seed, err)
			}
			for i, x := range s.x {
				if err := sameBits(x, weights[[2]uint64{rounds, uint64(i)}]); err != nil {
					t.Fatalf("seed %d: pipeline %d: %v", seed, i, err)
				}
			}
		}
	})
}

// TestNothingMovesAtTheFixedPoint: pipelines that are equal, and have nothing to apply, stay where they are to the bit, as does the center.
func TestNothingMovesAtTheFixedPoint(t *testing.T) {
	eachMethod(t, func(t *testing.T, m Method, n int) {
		s := newShell(t, m, n, 16)
		center := s.centerCopy()
		for range 10 {
			for i := range n {
				s.updateWith(i, flat.NewHost(16))
			}
		}
		if err := sameBits(s.centerCopy(), center); err != nil {
			t.Errorf("center: %v", err)
		}
		for i, x := range s.x {
			if err := sameBits(x, initial(16)); err != nil {
				t.Errorf("pipeline %d: %v", i, err)
			}
		}
	})
}

// TestOnePipelineTrainsAsWithoutAveraging, by every method.
func TestOnePipelineTrainsAsWithoutAveraging(t *testing.T) {
	for name, m := range everyMethod(t, 1) {
		s, plain := newShell(t, m, 1, 16), initial(16)
		for r := range uint64(20) {
			plain.Axpy(1, localUpdate(0, r+1, plain))
			s.update(0)
		}
		if err := sameBits(s.x[0], plain); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestPipelinesThatExchangeGradientsStayEqual to the bit.
func TestPipelinesThatExchangeGradientsStayEqual(t *testing.T) {
	eachMethod(t, func(t *testing.T, m Method, n int) {
		if !m.Needs().Gradients {
			return
		}
		s := newWildShell(t, m, n, 16)
		for r := range 20 {
			s.round(ascending(n))
			for i := range n {
				if err := sameBits(s.x[i], s.x[0]); err != nil {
					t.Fatalf("round %d: pipeline %d: %v", r+1, i, err)
				}
			}
		}
	})
}

// plain is local SGD, DiLoCo, synchronous data parallelism and Pipe-SGD as their papers write them, in float64, with updates that do not depend on the weights.
type plain struct {
	x        [][]float64
	center   []float64
	momentum []float64
	late     []float64
	round    int
}

// step applies a round of updates.
func (p *plain) step(name string, updates []flat.Host) {
	p.round++
	n := float64(len(p.x))
	if name == "easgd-async" { // x^p <- x^p - alpha (x^p - x~); x~ <- x~ + alpha (x^p - x~), with alpha = beta/N
		for i, u := range updates {
			for j, d := range u {
				p.x[i][j] += float64(d)
			}
		}
		visitor := p.x[p.round%len(p.x)]
		for j := range visitor {
			force := 0.9 / n * (visitor[j] - p.center[j])
			visitor[j] -= force
			p.center[j] += force
		}
		return
	}
	for j := range p.center {
		mean, all := 0.0, 0.0
		for i := range p.x {
			mean += float64(updates[i][j]) / n
			all += (p.x[i][j] + float64(updates[i][j])) / n
		}
		next := 0.0
		switch name {
		case "localsgd": // x_i <- mean_j(x_j)
			next = all
		case "diloco": // D = x~ - mean(x_i); m <- mu m + D; x~ <- x~ - lr (D + mu m)
			d := p.center[j] - all
			p.momentum[j] = 0.75*p.momentum[j] + d
			next = p.center[j] - 0.7*(d+0.75*p.momentum[j])
		case "allreduce", "sapipe": // no layer of which is late
			next = p.center[j] + mean
		case "pipesgd", "pipesgd after 3", "sapipe late":
			from := map[string]int{"pipesgd": 1, "pipesgd after 3": 4, "sapipe late": 1}[name]
			switch next = p.center[j]; {
			case p.round < from:
				next += mean
			case p.round > from:
				next += p.late[j]
			}
			p.late[j] = mean
		}
		p.center[j] = next
		for i := range p.x {
			p.x[i][j] = next
		}
	}
}

// TestMethodsAgainstTheirPapers compares 50 rounds with the equations.
func TestMethodsAgainstTheirPapers(t *testing.T) {
	const tolerance, n = 1e-6, 3
	for name, m := range everyMethod(t, n) {
		p := &plain{center: widen(initial(16)), momentum: make([]float64, 16), late: make([]float64, 16)}
		for range n {
			p.x = append(p.x, widen(initial(16)))
		}
		if strings.HasPrefix(name, "streaming-diloco") {
			continue // TestStreamingDiLoCoAgainstItsPaper has it
		}
		if m.Needs().Delta && name != "localsgd" && name != "diloco" || name == "elastic elastic" {
			continue // TestRulesAgainstTheirEquations has them
		}
		s := newShell(t, m, n, 16)
		for r := range uint64(50) {
			var updates []flat.Host
			for i := range n {
				u := localUpdate(i, r+1, initial(16))
				u.Scale(0.02)
				updates = append(updates, u)
			}
			p.step(name, updates)
			for i := range n {
				s.updateWith(i, updates[i])
			}
			for i := range n {
				for j, v := range s.x[i] {
					if d := float64(v) - p.x[i][j]; d > tolerance || d < -tolerance {
						t.Fatalf("%s, round %d: element %d of pipeline %d is %v, expected %v", name, r+1, j, i, v, p.x[i][j])
					}
				}
			}
			if d := s.distance(p.center); !m.Needs().Gradients && d > tolerance {
				t.Fatalf("%s, round %d: the center is %v from the expected one", name, r+1, d)
			}
		}
	}
}
