package elastic

import "github.com/avgpipe/avgpipe/stage/flat"

// inTurn is asynchronous elastic averaging SGD (Zhang, Choromanska, LeCun 2015, algorithm 1) in the order of the paper's analysis (section 4): pipelines visit the center one after another, round robin. In round r
// the pipeline p with p = r mod N meets the center as the visitor before it left it, and both move:
//
//	e = alpha (x_p - x~);   x_p <- x_p - e;   x~ <- x~ + e
//
// Each pipeline goes on with steps of its own between its visits, tau N of them, and nobody else has a message or is moved in a round. So the center's traffic is an Nth of what it is where all meet it, and x~ depends on
// no clock: a real arrival order would give other bits in each run and on each host.
//
// Deviations: the force is computed after the local steps, as with pull: elastic; and a pipeline that visits, and any that trains elsewhere, is at most a round ahead of the others.
//
// Stability: a visit multiplies (x_p, x~) by a symmetric matrix with the eigenvalues 1 and 1 - 2 alpha, whose norm is at most 1 while 0 <= alpha <= 1, and local steps that converge by themselves do not grow either. So no visit
// makes anything larger, for any learning rate. The paper's narrower bound, (4 - 2 eta h)/(4 - eta h), is of a step that has the gradient and the force at the same point. With alpha = 1 pipeline and center change places.
type inTurn struct{ easgd }

// movingRate is the paper's beta, of which each of N pipelines has an Nth.
const movingRate = 0.9

func alphaInTurn(pipelines int) float64 { return movingRate / float64(pipelines) }

func newInTurn(c Config) Method {
	return inTurn{easgd{avgpipe{c, float32(c.Alpha), 0, Before}}}
}

// checkInTurn refuses a center that forgets what it was.
func checkInTurn(c Config) error {
	if c.Pipelines > 1 && c.Alpha >= 1 {
		return refuse("alpha", "0.9", "%v: below 1, with which a pipeline and the center change places", c.Alpha)
	}
	return nil
}

func (t inTurn) Needs() Needs {
	return Needs{Timing: Before, Turns: uint64(t.config.Pipelines)} //nolint:gosec // at least 2
}

// Merge takes the only message of a round.
func (inTurn) Merge(s Shard, message flat.Vector, _ bool) { s.Sum.Copy(message) }
