// Package profile measures for package tuner, on the devices that the job will run on: it profiles layers, has the best candidates
// run for a few batches, and keeps what was found in a cache.
//
//	report, err := profile.Tune(ctx, profile.Config{Request: request, Progress: func(p control.TuneProgress) { ... }})
//
// Everything that is measured runs through package worker, as training does: the same executor, events, links and devices.
package profile
