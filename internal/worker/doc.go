// Package worker is the process that holds the devices of one job on one node. The daemon starts it with an assignment
// (package control), watches it, and takes its shards into Raft; a crash here costs this worker and nothing else.
//
// Run loads the assignment, opens devices and data, wires the stages with package pipeline, restores a committed round when
// the assignment names one, trains, and answers the daemon on a unix socket until it is told to go:
//
//	code, err := worker.Run(ctx, worker.Config{Assignment: path, Log: logger})
//	os.Exit(code)
package worker
