package job

import "fmt"

// Facts is what the automatic counts depend on beside the job.
type Facts struct {
	Cores  int // that the daemon may use on the node
	Layers int // of the model: the places where it can be cut, plus 1
}

// Counts is a job's counts with every `auto` decided.
type Counts struct {
	Stages, Pipelines, MicroBatches int
	Devices                         int // of the node
	Threads                         int // of each
}

// Resolve decides every count that the job leaves to the program, without a measurement, and says why. Counts that the job
// gives are kept as they are.
//
//   - stages: as many as there are devices (Job.Offered, else one a core), at most as many as the model has layers for
//     the chunks of each, which the job must say by now (auto counts as 1). A device without a stage would idle.
//   - pipelines: 2 when there are several stages, else 1. With one pipeline a device idles in every bubble and while
//     messages travel; a second fills those gaps with work of its own. A third finds few gaps left and costs another copy of
//     weights, gradients and optimizer state (Chen et al. 2023 tune this number by a profile).
//   - micro_batches: the divisor of the batch nearest to twice the stages; of two equally near the larger, with the smaller
//     bubble. The bubble of K stages and M micro-batches is (K-1)/(M+K-1) of the time (Huang et al. 2019, section 2.3):
//     M = 2K keeps it at a third or less for any K, and M = 2K-1 is what the first stage of an advance-forward-propagation
//     plan holds in flight, so fewer could not fill it. More would shrink the bubble slower than they shrink each matrix product.
//   - devices.cpu.count, devices.emulated.count: one for each stage. devices.cpu.threads: the cores shared evenly by the devices,
//     at least 1.
//
// What is computed again (recompute: auto) depends on the plan and on bytes, and is left to whoever knows them.
func Resolve(j *Job, f Facts) (Counts, string) {
	cores, most := max(f.Cores, 1), max(f.Layers/max(int(j.Chunks), 1), 1)
	c := Counts{
		Stages: int(j.Stages), Pipelines: int(j.Pipelines), MicroBatches: int(j.MicroBatches),
		Devices: int(j.Offered()), Threads: int(j.Devices.CPU.Threads),
	}
	stages, pipelines, micro := "given", "given", "given"
	if c.Stages == 0 {
		devices, what := cores, "cores"
		if c.Devices > 0 {
			devices, what = c.Devices, "devices"
		}
		c.Stages = min(devices, most)
		stages = fmt.Sprintf("one for each of %d %s", devices, what)
		if most < devices {
			stages = fmt.Sprintf("the model's layers, fewer than %d %s", devices, what)
			if j.Chunks > 1 {
				stages = fmt.Sprintf("as many as the model has layers for %d chunks of each, fewer than %d %s", j.Chunks, devices, what)
			}
		}
	}
	if c.Pipelines == 0 {
		c.Pipelines, pipelines = 1, "one stage leaves no gap to fill"
		if c.Stages > 1 {
			c.Pipelines, pipelines = 2, "the second works while the first waits"
		}
	}
	if c.MicroBatches == 0 {
		c.MicroBatches = nearestDivisor(j.Train.Batch, 2*c.Stages)
		micro = fmt.Sprintf("the divisor of batch %d nearest to twice the stages", j.Train.Batch)
	}
	if c.Devices == 0 {
		c.Devices = c.Stages
	}
	if c.Threads == 0 {
		c.Threads = max(cores/c.Devices, 1)
	}
	return c, fmt.Sprintf("stages %d (%s), pipelines %d (%s), micro-batches %d (%s)",
		c.Stages, stages, c.Pipelines, pipelines, c.MicroBatches, micro)
}

// Take makes counts the job's own.
func (j *Job) Take(c Counts) {
	j.Stages, j.Pipelines, j.MicroBatches = Count(c.Stages), Count(c.Pipelines), Count(c.MicroBatches)
	j.Devices.CPU.Count, j.Devices.CPU.Threads = Count(c.Devices), Count(c.Threads)
	if j.Devices.Kind == KindEmulated {
		j.Devices.Emulated.Count = Count(c.Devices)
	}
}

// NearestDivisors returns the largest divisor of batch that is at most n and the smallest that is at least n; 0 for one
// that does not exist.
func NearestDivisors(batch, n int) (below, above int) {
	for d := min(n, batch); d >= 1; d-- {
		if batch%d == 0 {
			below = d
			break
		}
	}
	for d := max(n, 1); d <= batch; d++ {
		if batch%d == 0 {
			above = d
			break
		}
	}
	return below, above
}

// nearestDivisor returns the divisor of batch nearest to n, the larger of two equally near.
func nearestDivisor(batch, n int) int {
	below, above := NearestDivisors(max(batch, 1), n)
	if above == 0 || n-below < above-n {
		return below
	}
	return above
}
