// Package tuner chooses how a job is laid over its devices: stages, pipelines, micro-batches, schedule with its warm-up,
// partition and recomputation, by what profiling measured (AvgPipe: Chen et al. 2023, whose third contribution is to tune the
// counts by profiling; the equations here are this project's own and docs/tuning.md derives them).
//
// The package is pure: no I/O, no clock, no goroutine. Package internal/profile measures. The caller's loop:
//
//	space.Targets[0].Profile = profile                          // measured times and bytes, per layer, at several sizes
//	out, err := tuner.Search(space)                             // every candidate predicted; the best first
//	for _, c := range out.Best(3) { measure(c) }                // run them for a few batches
//	report := out.Decide(measured)                              // the measured best, and why each other one lost
//
// What comes out is a Report. It says of each candidate what was predicted, what was measured and why it won or lost.
package tuner
