package elastic

import "github.com/avgpipe/avgpipe/stage/flat"

// newLocalSGD makes local SGD (Stich, ICLR 2019): after every tau steps each pipeline is set to the mean of all, x_i <- mean_j(x_j). All were equal a round ago, so that
// is the center moved by the mean of their updates, and the rule is that of pull: new with alpha = 1.
func newLocalSGD(c Config) Method {
	c.Pull, c.Alpha = PullNew, 1
	return avgpipe{c, 1, 0, After}
}

// diloco is DiLoCo (Douillard et al. 2023, algorithm 1): after every tau steps of the inner optimizer, with D = x~ - mean_i(x_i), the center takes a step of SGD with
// Nesterov's momentum, and all pipelines go on from it:
//
//	m <- mu m + D;   x~ <- x~ - lr (D + mu m);   x_i <- x~
//
// The message is the sum of a pipeline's updates, whose mean is -D, and the state is -m: both signs cancel.
type diloco struct {
	avgpipe
	rate, momentum float32
}

func newDiLoCo(c Config) Method { return dilocoOf(c) }

func dilocoOf(c Config) diloco {
	return diloco{avgpipe{c, 1, 0, After}, float32(c.OuterRate), float32(c.OuterMomentum)}
}

func (diloco) Needs() Needs { return Needs{Timing: After, Delta: true, State: 1} }

// RateScale is 1: the outer step makes up for the size of a mean update.
func (diloco) RateScale(bool) float64 { return 1 }

func (diloco) Pull(x, _, center flat.Vector) { x.Copy(center) }

func (d diloco) Advance(s Shard, count int) {
	momentum := s.State[0]
	s.Sum.Scale(1 / float32(count))
	momentum.Scale(d.momentum)
	momentum.Axpy(1, s.Sum)
	s.Center.Axpy(d.rate, s.Sum)
	s.Center.Axpy(d.rate*d.momentum, momentum)
}
