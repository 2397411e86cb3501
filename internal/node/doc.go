// Package node is the daemon: it locks the state directory, opens Raft's log and this host's agent, runs the coordinator, and answers
// the API (backend.go) from the replicated state and what the coordinator publishes. Run is all of it.
//
// # What lies where
//
//	STATE/lock             the daemon that holds the directory
//	STATE/identity         this node's name; it is there once the state was begun
//	STATE/audit.log        who changed what, and who was refused
//	STATE/raft/            jobs, generations and committed rounds (package cluster)
//	STATE/jobs/ID/         a job: its worker's assignment, socket and log, its shards, its last status
//	STATE/plans/           what was chosen for jobs with open counts
//	STATE/tunings/         scratch of tunings that belong to no job
//
// # When something dies
//
// A tuning: another begins anew. The end of the daemon ends its tunings too.
//
// A worker: the job's next generation starts from the last committed round. The daemon: its workers train on, and the next
// daemon finds them by their command line, asks them who they are, and adopts those of the current generation. The
// daemon in order (SIGTERM): every job commits the round it is in and its worker ends; the jobs stay running in the
// replicated state, so the next daemon resumes them.
package node
