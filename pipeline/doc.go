// Package pipeline runs one part of a job in one process: N parallel pipelines over the stages that live here, on shared
// devices, around an elastically averaged center.
//
// The parts, from the device up:
//
//   - executor: one for each device. A single goroutine, locked to its OS thread, runs closures first in, first out; so whatever
//     holds per-thread state (an OpenMP team, a CUDA context) sees one caller. A device with a queue is given the next ops before one has
//     ended; a second goroutine waits for the ends. Pipelines that share a device share its executor:
//     while one waits for a message, another computes.
//
//   - dispatcher: the ops of one pipeline on one device, a row of the plan, in the plan's order. An op enters the executor's queue the
//     moment its input has arrived, from the goroutine that brings it: no goroutine is woken between an arrival and the
//     device, so a hop costs a few microseconds (docs/decisions/0007).
//
//   - runner: a stage of a pipeline, batch by batch. A device that has several stages (interleaved, V placement) has one for each; links
//     between them are links like any other. It runs the ops, the exchange of tied gradients, the global norm, the optimizer, the
//     round. The data of a batch comes over a link of its own from a feeder that fills ahead. Where the plan itself takes
//     optimizer steps (pipedream), they run among its ops, each stage by itself, and the end of the plan only drains the pipeline. Such
//     a plan runs on across several batches of a round.
//
//   - shard: the center's part of one stage. It executes what elastic.Center orders, snapshots rounds and evaluates the center.
//
//   - peers: the same stage of other groups of pipelines (Config.Groups), which train in processes of their own. Each keeps a copy of the center. The
//     message of every pipeline goes to all of them, and each merges all messages in the same order, so the copies are the same to the bit; nobody
//     owns the center, and no process has to be asked for it.
//
//   - Group: all of these together. It is what callers use.
//
// The caller's loop:
//
//	g, err := pipeline.New(pipeline.Config{
//		Plan: plan, MicroBatches: 8, Pipelines: 2, Method: method, FinalRound: 1000,
//		LearningRate: func(step uint64) float32 { return 3e-4 },
//		Stages: []pipeline.StageConfig{
//			{Index: 0, Build: func(pipeline int) (stage.Stage, error) { ... }, Source: ...},
//			{Index: 1, Build: ..., Source: ...},
//		},
//		Attach: func(device int) error { return devices[device].Attach() },
//		Events: pipeline.Events{OnStep: ..., OnSnapshot: ...},
//	})
//	go func() { done <- g.Run(ctx) }()          // starts everything, and joins everything before it returns
//	earliest, ok := g.Commit(round, false)      // from any goroutine while it runs: a snapshot of round for OnSnapshot
//
// Stages on other nodes are reached through Config.Connect; every node runs the same Config with its own Stages.
//
// # Errors and ends
//
// The first error ends the group: every goroutine, wait and link stops with it at once, on other nodes too, and Run returns
// it as an *Error that names pipeline, stage and step. A loss or a gradient that is not finite is found with errors.As for
// *stage.NonFiniteError; no stage that has exchanged the norm applies such a step.
//
// # Time
//
// What devices and pipelines spend their time on is told as trace.Spans. Nothing in this package has a timeout: waits end with data, with the context, or
// with the link, and whoever watches the job decides what is too long.
package pipeline
