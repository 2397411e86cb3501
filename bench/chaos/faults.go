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
	slows  bool   // it needs a disk that can be slow, from the start
	// proxied: it needs proxies in the connections between hosts, from the start.
	proxied bool
	// alone: it expects something of a daemon that nothing else disturbs.
	alone bool
	// mute: a daemon may not start, or not answer, while it is in force.
	mute bool
	// asks: it waits for an answer of the daemon, so no mute one is in force then.
	asks bool
	// stays: it is in force until the jobs are done, which need all hosts. It is the last one of a trial.
	stays bool
	// lasts is the longest time that it is in force; the trial draws one up to it. 0: it passes at once.
	lasts time.Duration
	apply apply
}

// root: it needs root.
func (f *fault) root() bool { return f.mounts || f.slows }

// apply makes a fault happen. undo, unless nil, takes it away again.
type apply func(ctx context.Context, w *host) (undo func() error, err error)

// faults are all of them, by family.
var faults = []fault{
	{name: "kill-worker", family: "kill", does: "SIGKILL a worker", apply: onWorker(kill)},
	{name: "kill-workers", family: "kill", does: "SIGKILL each worker, three times in a row", apply: once(killWorkers)},
	{name: "kill-daemon", family: "kill", does: "SIGKILL the daemon", apply: once(killDaemon)},
	{name: "crash-daemon", family: "kill", does: "SIGABRT the daemon, as the watchdog does", alone: true, apply: once(crashDaemon)},
	{name: "kill-both", family: "kill", does: "SIGKILL the daemon and all workers, as a host that dies", apply: halted(nothing)},
	{name: "stop-daemon", family: "kill", does: "SIGTERM the daemon", alone: true, apply: once(stopDaemon)},
	{name: "kill-tuning", family: "kill", does: "SIGKILL the tuning of a job", tuned: true, apply: once(killTuning)},
	{name: "kill-tuning-daemon", family: "kill", does: "SIGKILL the daemon while it tunes a job", tuned: true, apply: once(killTuningDaemon)},

	{name: "freeze-worker", family: "freeze", does: "SIGSTOP a worker, up to three response timeouts", lasts: 3 * responseTimeout, apply: onWorker(freeze)},
	{name: "freeze-daemon", family: "freeze", does: "SIGSTOP the daemon, up to three response timeouts", alone: true, lasts: 3 * responseTimeout, apply: once(freezeDaemon)},
	{name: "freeze-all", family: "freeze", does: "SIGSTOP the daemon and all workers", mute: true, lasts: 3 * responseTimeout, apply: freezeAll},

	{name: "disk-full", family: "disk", does: "the state directory's disk is full", mounts: true, mute: true, lasts: 3 * time.Second, apply: fillDisk},
	{name: "disk-full-start", family: "disk", does: "the disk is full while the daemon starts", mounts: true, mute: true, lasts: 2 * time.Second, apply: halted(fillDisk)},
	{name: "read-only", family: "disk", does: "the state directory becomes read-only for what is opened anew", mounts: true, mute: true, lasts: 3 * time.Second, apply: overmountReadOnly},
	{name: "read-only-start", family: "disk", does: "the file system is read-only while the daemon starts", mounts: true, mute: true, lasts: 2 * time.Second, apply: halted(remountReadOnly)},
	{name: "slow-disk", family: "disk", does: "each sync of a file takes up to 0.3 s", slows: true, lasts: 5 * time.Second, apply: slowDisk},
	{name: "stuck-disk", family: "disk", does: "no sync of a file returns", slows: true, mute: true, lasts: 4 * time.Second, apply: stuckDisk},

	{name: "late-jobs", family: "missing", does: "jobs/ is not mounted at one start", mounts: true, lasts: 2 * time.Second, apply: halted(late("jobs"))},
	{name: "late-raft", family: "missing", does: "raft/ is not mounted at one start", mounts: true, mute: true, lasts: 2 * time.Second, apply: halted(lateRaft)},
	{name: "late-data", family: "missing", does: "the data are not mounted when a worker starts", mounts: true, lasts: 2 * time.Second, apply: lateData},
	{name: "data-away", family: "missing", does: "a data file is away when a worker starts", lasts: 2 * time.Second, apply: dataAway},
	{name: "shards-away", family: "missing", does: "a job's shards are away at one start", lasts: 2 * time.Second, apply: halted(away("shards"))},
	{name: "job-away", family: "missing", does: "a job's directory is away at one start", lasts: 2 * time.Second, apply: halted(away("."))},

	{name: "flip-shard", family: "damage", does: "bytes of a committed shard are flipped", alone: true, apply: halted(once(damageShard(flip)))},
	{name: "cut-shard", family: "damage", does: "a committed shard is truncated", alone: true, apply: halted(once(damageShard(cut)))},
	{name: "raft-empty", family: "damage", does: "the metadata of the Raft log is empty; then the backup is restored", alone: true, apply: halted(refused(raftMeta, empty))},
	{name: "raft-gone", family: "damage", does: "the metadata of the Raft log is gone; then the backup is restored", alone: true, apply: halted(refused(raftMeta, gone))},
	{name: "raft-garbage", family: "damage", does: "a segment of the Raft log begins with garbage; then the backup is restored", alone: true, apply: halted(refused(raftSegment, garble))},
	{name: "raft-cut", family: "damage", does: "a segment of the Raft log is truncated; then the backup is restored", alone: true, apply: halted(mayStart(refused(raftSegment, cut)))},
	{name: "identity-empty", family: "damage", does: "the identity is empty; then the backup is restored", alone: true, apply: halted(refused(identity, empty))},
	{name: "identity-garbage", family: "damage", does: "the identity is garbage; then the backup is restored", alone: true, apply: halted(refused(identity, flip))},
	{name: "leftovers", family: "damage", does: "temporary files of killed writes lie about", apply: halted(once(leaveTemporaries))},

	{name: "worker-memory", family: "limit", does: "a worker gets no more memory (RLIMIT_AS)", apply: onWorker(limitMemory)},
	{name: "worker-files", family: "limit", does: "a worker gets no more file descriptors", lasts: 2 * time.Second, apply: onWorker(limitFiles)},
	{name: "daemon-files", family: "limit", does: "the daemon gets no more file descriptors", mute: true, lasts: 2 * time.Second, apply: limitDaemonFiles},

	{name: "second-daemon", family: "start", does: "a second daemon is started on the same directory", alone: true, apply: once(secondDaemon)},
	{name: "symlink", family: "start", does: "the daemon starts again with another spelling of its directory", asks: true, apply: once(respell)},
	{name: "reload", family: "start", does: "SIGHUP, with a good and with a bad configuration", asks: true, apply: once(reload)},
}

// once is a fault that passes at once.
func once(do func(context.Context, *host) error) apply {
	return func(ctx context.Context, w *host) (func() error, error) { return nil, do(ctx, w) }
}

// halted applies a fault while nothing runs, and then lets the daemon start.
func halted(do apply) apply {
	return func(ctx context.Context, w *host) (func() error, error) {
		defer w.daemon.Release()
		if err := w.halt(ctx); err != nil {
			return nil, err
		}
		return do(ctx, w)
	}
}

func nothing(context.Context, *host) (func() error, error) { return nil, nil }

// onWorker does something to one of the workers, if there is any.
func onWorker(do func(pids ...int) (func() error, error)) apply { return onProcess(asWorker, do) }

// onProcess does something to one of the processes of a kind, if there is any.
func onProcess(what string, do func(pids ...int) (func() error, error)) apply {
	return func(_ context.Context, w *host) (func() error, error) {
		if pid := pick(w, w.processes(what)); pid != 0 {
			return do(pid)
		}
		return nil, nil
	}
}
