// Package history is the file in which a worker keeps how its training went: loss, learning rate, gradient norm and speed of
// every optimizer step, with evaluations, committed rounds and starts of workers between them. docs/formats.md specifies it.
//
//	w, err := history.Open(path, warn)      // cuts what a crash left unfinished
//	go w.Run(ctx)                           // writes what was appended, once a second
//	w.Append(history.Record{Kind: history.Step, ...})
//
// The file only grows at its end until it has 4 MiB; then it is written anew with its older half thinned. A worker that resumes
// from an earlier round appends a Start, which supersedes what was recorded of the steps after that round: see Live.
package history
