// Package coordinator decides what happens to each job. It runs where Raft leads.
//
// One goroutine (Run) repeats
//
//	observe   the replicated state, and what agents report (observed.go, generation.go)
//	decide    a pure function of both gives a choice and its reason for each job (decide.go)
//	act       propose it to Raft, or have an agent do it (act.go)
//
// Acting runs in the background, one choice a job at a time, and its outcome is observed like everything else. So a worker or a disk that
// hangs holds up its own job and nothing more, and every choice can be tested as text.
//
// What the coordinator knows belongs to that goroutine. Others read what it publishes after each tick (Published), or ask it
// (Remove, Resumed, Tune). With agents it shares no memory: processes are values, and what is seen of them are events.
package coordinator
