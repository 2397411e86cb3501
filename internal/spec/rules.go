package spec

import (
	"fmt"

	"github.com/avgpipe/avgpipe/job"
	"github.com/avgpipe/avgpipe/stage"
)

// RecomputeKinds are the kinds of recomputation, the cheapest first.
var RecomputeKinds = []string{string(stage.RecomputeNone), string(stage.RecomputeBlock), string(stage.RecomputeFull)}

// count decides every count that the job leaves to the program, without a measurement, and says why. Counts that the job
// gives are kept as they are.
//
//   - stages: as many as there are devices (Job.Offered, else one a core), at most as many as the model has layers for
//     the chunks of each, which the job must say by now (auto counts as 1). A device without a stage would idle.
//   - pipelines: 2 when there are several stages, else 1. With one pipeline a device idles in every bubble and while
//     messages travel; a second fills those gaps with work of its own. A third finds few gaps left and costs another copy of
//     weights, gradients and optimizer state (Chen et al. 2023 tune this number by a profile). Of each group as many.
//   - micro_batches: the divisor of the batch nearest to twice the stages; of two equally near the larger, with the smaller
//     bubble. The bubble of K stages and M micro-batches is (K-1)/(M+K-1) of the time (Huang et al. 2019, section 2.3):
//     M = 2K keeps it at a third or less for any K, and M = 2K-1 is what the first stage of an advance-forward-propagation
//     plan holds in flight, so fewer could not fill it. More would shrink the bubble slower than they shrink each matrix product.
//   - devices.cpu.count, devices.emulated.count: one for each stage; devices.gpu.count: all of the node, at most one for each stage.
//     devices.cpu.threads: the cores shared evenly by the devices, at least 1; of GPUs 1.
//   - averaging.alpha, averaging.lr_scale: by the number of pipelines; averaging.horizon: by tau.
func (x *resolver) count(cores, layers, devices int) string {
	j := &x.Job
	cores = max(cores, 1)
	stages, pipelines, micro := "given", "given", "given"
	if j.Stages == job.Auto {
		n, what, most := cores, "cores", max(layers/max(int(j.Chunks), 1), 1)
		if devices > 0 {
			n, what = devices, "devices"
		}
		j.Stages, stages = job.Count(min(n, most)), fmt.Sprintf("one for each of %d %s", n, what)
		switch {
		case most >= n:
		case j.Chunks > 1:
			stages = fmt.Sprintf("as many as the model has layers for %d chunks of each, fewer than %d %s", j.Chunks, n, what)
		default:
			stages = fmt.Sprintf("the model's layers, fewer than %d %s", n, what)
		}
	}
	if j.Pipelines == job.Auto {
		j.Pipelines, pipelines = 1, "one stage leaves no gap to fill"
		if j.Stages > 1 {
			j.Pipelines, pipelines = 2, "the second works while the first waits"
		}
		if j.Groups > 1 {
			j.Pipelines, pipelines = j.Pipelines*job.Count(j.Groups), fmt.Sprintf("of each of %d groups %d: %s", j.Groups, j.Pipelines, pipelines)
		}
	}
	if j.MicroBatches == job.Auto {
		j.MicroBatches = job.Count(nearestDivisor(j.Train.Batch, 2*int(j.Stages)))
		micro = fmt.Sprintf("the divisor of batch %d nearest to twice the stages", j.Train.Batch)
	}
	if devices == 0 {
		devices = int(j.Stages)
	}
	j.Devices.CPU.Count = job.Count(devices)
	switch j.Devices.Kind {
	case job.KindEmulated:
		j.Devices.Emulated.Count = job.Count(devices)
		if j.Devices.CPU.Threads == job.Auto {
			j.Devices.CPU.Threads = 1 // what it computes is to take a part of the time that it dictates
		}
	case job.KindGPU:
		j.Devices.GPU.Count = min(j.Devices.GPU.Count, j.Stages)
	}
	if j.Devices.CPU.Threads == job.Auto {
		j.Devices.CPU.Threads = job.Count(max(cores/devices, 1))
	}
	if err := decideAveraging(j); err != nil {
		x.refuseAveraging(err)
	}
	return fmt.Sprintf("stages %d (%s), pipelines %d (%s), micro-batches %d (%s)",
		j.Stages, stages, j.Pipelines, pipelines, j.MicroBatches, micro)
}

// nearestDivisor returns the divisor of batch nearest to n, the larger of two equally near.
func nearestDivisor(batch, n int) int {
	below, above := job.NearestDivisors(max(batch, 1), n)
	if above == 0 || n-below < above-n {
		return below
	}
	return above
}
