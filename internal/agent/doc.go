// Package agent runs the processes of jobs on one host: workers, which train, and tunings, which measure what a job leaves open.
//
// The coordinator decides what they do, and shares no memory with them: it knows a process by value (Process), tells an Agent what
// to do with it, and hears what becomes of it as values (Event). So an Agent may be on another host, or over a foreign worker.
//
//	p, err := a.Start(ctx, assignment)
//	err = a.Events(ctx, p, func(e agent.Event) { ... })     // until the process has ended; the last event is its exit
//
// Local is the implementation for this host. A worker outlives the daemon: the next one finds it (Processes) and goes on with
// Events, which needs no process to be a child. A tuning ends with its daemon.
//
// The tests of this package have a suite that each implementation passes; package agenttest has processes that are goroutines.
package agent
