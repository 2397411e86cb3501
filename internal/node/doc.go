// Package node is the daemon: a Raft peer, the agent that starts and watches worker processes on its host, the coordinator
// that decides what happens to each job, and what answers the API.
//
// Run is all of it. Inside, one goroutine (coordinate.go) repeats
//
//	observe   the replicated state, and what workers reported (observe.go)
//	decide    a pure function of both gives a choice and its reason for each job (decide.go)
//	act       propose it to Raft, or do it to a worker (act.go)
//
// Acting runs beside the loop, one choice a job at a time, and its outcome is observed like everything else. So a worker or a
// disk that hangs holds up its own job and nothing more, and every choice can be tested as text.
//
// # What lies where
//
//	STATE/lock             the daemon that holds the directory
//	STATE/identity         this node's name; it is there once the state was begun
//	STATE/raft/            jobs, generations and committed rounds (package cluster)
//	STATE/jobs/ID/         a job: its worker's assignment, socket and log, its shards, its last status
//	STATE/plans/           what was chosen for jobs with open counts
//	STATE/tunings/         scratch of tunings that belong to no job
//
// # When something dies
//
// A tune process, which measures what a job leaves open before its first placement (tune.go): another begins anew, also after
// the end of the daemon, which lets none outlive it.
//
// A worker: the job's next generation starts from the last committed round. The daemon: its workers train on, and the next
// daemon finds them by their command line, asks them who they are, and adopts those of the current generation. The
// daemon in order (SIGTERM): every job commits the round it is in and its worker ends; the jobs stay running in the
// replicated state, so the next daemon resumes them.
package node
