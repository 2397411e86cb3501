package worker

import (
	"slices"

	"github.com/avgpipe/avgpipe/internal/api"
	"github.com/avgpipe/avgpipe/internal/noisescale"
	"github.com/avgpipe/avgpipe/internal/worker/control"
	"github.com/avgpipe/avgpipe/pipeline"
	"github.com/avgpipe/avgpipe/schedule"
)

// noiseEvery is the number of steps between two measurements of the noise in gradients, each of two passes over them.
const noiseEvery = 16

// noiseEveryExchanged is the same where gradients go to other groups: in a step that is measured they go once the backward has ended, and not beside it.
const noiseEveryExchanged = 64

// noiseSteps is over about how many measured steps the estimate looks back: the noise grows while the loss falls.
const noiseSteps = 32

// noiseProblem says why a job's noise is not measured; "" where it is. Pipelines of the first group measure it for all: it is that of one sample.
func noiseProblem(a *control.Assignment, plan schedule.Plan) string {
	j := &a.Spec.Job
	elsewhere := func(p control.StagePlace) bool { return p.Node != a.Node }
	switch problem := pipeline.NoiseProblem(plan, int(j.MicroBatches)); {
	case a.Group > 0:
		return "the first group of pipelines measures it"
	case !j.Devices.KeepValues():
		return "its devices compute nothing"
	case problem != "":
		return problem
	case slices.ContainsFunc(a.Stages, elsewhere) && !a.NoiseAcross:
		return "its stages are on several nodes, and the node that placed them runs a program that does not have them measure it"
	}
	return ""
}

// measuresNoise is the number of steps between two measurements here, of a method that exchanges gradients or does not; 0: there is none.
func (t *trainer) measuresNoise(gradients bool) uint64 {
	switch {
	case noiseProblem(&t.assignment, t.plan) != "":
		return 0
	case gradients && t.assignment.Spec.Groups() > 1:
		return noiseEveryExchanged
	}
	return noiseEvery
}

// noise takes what a pipeline has reported, if that was anything. The caller holds mu.
func (p *progress) noise(r *pipeline.StepReport) {
	if r.Squares == nil {
		return
	}
	var m noisescale.Moments
	if p.last.Noise != nil {
		m = *p.last.Noise // the one before may be in a meta that is being written
	}
	batch := float64(p.batch)
	m.Add(noisescale.Norms{Small: r.Squares.Share * batch, Big: batch, SmallSquare: r.Squares.First, BigSquare: r.Squares.All}, r.Step+1, float64(noiseSteps*len(p.steps)))
	p.last.Noise = &m
}

// critical is what is known of the critical batch; nil where another worker says it. The caller holds mu.
func (p *progress) critical() *api.CriticalBatch {
	m := p.last.Noise
	switch {
	case p.group > 0 || !p.ends:
		return nil
	case p.unmeasured != "" && m == nil:
		return &api.CriticalBatch{Text: "not measured: " + p.unmeasured}
	case m == nil:
		m = &noisescale.Moments{}
	}
	return control.CriticalBatch(m)
}
