package main

import (
	"context"
	"time"
)

// fault is something that may go wrong with a node.
type fault struct {
	name   string
	family string
	does   string // for the summary and the README
	mounts bool   // it needs to mount file systems
	tuned  bool   // it needs a job that is tuned
	// alone: it expects something of a daemon that nothing else disturbs.
	alone bool
	// lasts is the longest time that it is in force; the trial draws one up to it. 0: it passes at once.
	lasts time.Duration
	// apply makes it happen. undo, unless nil, takes it away again.
	apply func(ctx context.Context, w *testbed) (undo func() error, err error)
}

// faults are all of them, by family.
var faults = []fault{
	{name: "kill-worker", family: "kill", does: "SIGKILL a worker", apply: killWorker},
	{name: "kill-workers", family: "kill", does: "SIGKILL each worker, three times in a row", apply: killWorkers},
	{name: "kill-daemon", family: "kill", does: "SIGKILL the daemon", apply: killDaemon},
	{name: "crash-daemon", family: "kill", does: "SIGABRT the daemon, as the watchdog does", alone: true, apply: crashDaemon},
	{name: "kill-both", family: "kill", does: "SIGKILL the daemon and all workers, as a host that dies", apply: killBoth},
	{name: "stop-daemon", family: "kill", does: "SIGTERM the daemon", alone: true, apply: stopDaemon},
	{name: "kill-tuning", family: "kill", does: "SIGKILL the tuning of a job", tuned: true, apply: killTuning},
	{name: "kill-tuning-daemon", family: "kill", does: "SIGKILL the daemon while it tunes a job", tuned: true, apply: killTuningDaemon},

	{name: "freeze-worker", family: "freeze", does: "SIGSTOP a worker, up to three response timeouts", lasts: 3 * responseTimeout, apply: freezeWorker},
	{name: "freeze-daemon", family: "freeze", does: "SIGSTOP the daemon, up to three response timeouts", lasts: 3 * responseTimeout, apply: freezeDaemon},
	{name: "freeze-all", family: "freeze", does: "SIGSTOP the daemon and all workers", lasts: 3 * responseTimeout, apply: freezeAll},

	{name: "disk-full", family: "disk", does: "the state directory's disk is full", mounts: true, lasts: 3 * time.Second, apply: fillDisk},
	{name: "disk-full-start", family: "disk", does: "the disk is full while the daemon starts", mounts: true, lasts: 2 * time.Second, apply: fillDiskAtStart},
	{name: "read-only", family: "disk", does: "the state directory becomes read-only for what is opened anew", mounts: true, lasts: 3 * time.Second, apply: overmountReadOnly},
	{name: "read-only-start", family: "disk", does: "the file system is read-only while the daemon starts", mounts: true, lasts: 2 * time.Second, apply: remountReadOnly},

	{name: "late-jobs", family: "missing", does: "jobs/ is not mounted at one start", mounts: true, lasts: 2 * time.Second, apply: lateJobs},
	{name: "late-raft", family: "missing", does: "raft/ is not mounted at one start", mounts: true, lasts: 2 * time.Second, apply: lateRaft},
	{name: "late-data", family: "missing", does: "the data are not mounted when a worker starts", mounts: true, lasts: 2 * time.Second, apply: lateData},
	{name: "data-away", family: "missing", does: "a data file is away when a worker starts", lasts: 2 * time.Second, apply: dataAway},
	{name: "shards-away", family: "missing", does: "a job's shards are away at one start", lasts: 2 * time.Second, apply: shardsAway},
	{name: "job-away", family: "missing", does: "a job's directory is away at one start", lasts: 2 * time.Second, apply: jobAway},

	{name: "flip-shard", family: "damage", does: "bytes of a committed shard are flipped", alone: true, apply: flipShard},
	{name: "cut-shard", family: "damage", does: "a committed shard is truncated", alone: true, apply: cutShard},
	{name: "raft-empty", family: "damage", does: "the metadata of the Raft log is empty; then the backup is restored", alone: true, apply: emptyRaft},
	{name: "raft-gone", family: "damage", does: "the metadata of the Raft log is gone; then the backup is restored", alone: true, apply: removeRaft},
	{name: "raft-garbage", family: "damage", does: "a segment of the Raft log begins with garbage; then the backup is restored", alone: true, apply: garbleRaft},
	{name: "raft-cut", family: "damage", does: "a segment of the Raft log is truncated; then the backup is restored", alone: true, apply: cutRaft},
	{name: "identity-empty", family: "damage", does: "the identity is empty; then the backup is restored", alone: true, apply: emptyIdentity},
	{name: "identity-garbage", family: "damage", does: "the identity is garbage; then the backup is restored", alone: true, apply: garbleIdentity},
	{name: "leftovers", family: "damage", does: "temporary files of killed writes lie about", apply: leaveTemporaries},

	{name: "worker-memory", family: "limit", does: "a worker gets no more memory (RLIMIT_AS)", apply: limitMemory},
	{name: "worker-files", family: "limit", does: "a worker gets no more file descriptors", lasts: 2 * time.Second, apply: limitWorkerFiles},
	{name: "daemon-files", family: "limit", does: "the daemon gets no more file descriptors", lasts: 2 * time.Second, apply: limitDaemonFiles},

	{name: "second-daemon", family: "start", does: "a second daemon is started on the same directory", alone: true, apply: secondDaemon},
	{name: "symlink", family: "start", does: "the daemon starts again with another spelling of its directory", apply: respell},
	{name: "reload", family: "start", does: "SIGHUP, with a good and with a bad configuration", apply: reload},
}

func faultNames() []string {
	names := make([]string, len(faults))
	for i, f := range faults {
		names[i] = f.name
	}
	return names
}
