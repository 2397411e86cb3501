package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/avgpipe/avgpipe/bench/internal/rig"
	"github.com/avgpipe/avgpipe/internal/agent"
	"github.com/avgpipe/avgpipe/internal/api"
	"github.com/avgpipe/avgpipe/internal/cluster"
	"github.com/avgpipe/avgpipe/internal/shard"
)

func fillDisk(_ context.Context, w *host) (func() error, error) {
	path := filepath.Join(w.base, "filler")
	undo := func() error { return os.Remove(path) }
	f, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY|os.O_EXCL, 0o600)
	if errors.Is(err, fs.ErrExist) || errors.Is(err, unix.EROFS) {
		return nil, nil // it is full, or nothing can be written anyhow
	}
	if err != nil {
		return nil, err
	}
	zeros := make([]byte, 4096)
	for range stateBytes/len(zeros) + 1 {
		if _, err = f.Write(zeros); err != nil {
			break
		}
	}
	if !errors.Is(err, unix.ENOSPC) {
		return undo, errors.Join(fmt.Errorf("fill the disk: %w, expected %w", err, unix.ENOSPC), f.Close())
	}
	return undo, f.Close()
}

// overmountReadOnly mounts the state directory over itself, read-only: what is open stays writable, as after an error of a disk that
// not every file has met. Mounts are shared, so a second one of these would be a mount over each that is there, and the undoing would take the disk away.
func overmountReadOnly(_ context.Context, w *host) (func() error, error) {
	var on unix.Statfs_t
	if err := unix.Statfs(w.base, &on); err != nil {
		return nil, fmt.Errorf("ask what is mounted at %s: %w", w.base, err)
	}
	if on.Flags&unix.ST_RDONLY != 0 {
		return nil, nil // it is read-only
	}
	if err := unix.Mount(w.base, w.base, "", unix.MS_BIND, ""); err != nil {
		return nil, fmt.Errorf("mount %s over itself: %w", w.base, err)
	}
	return unmount(w.base), unix.Mount("", w.base, "", unix.MS_REMOUNT|unix.MS_BIND|unix.MS_RDONLY, "")
}

// unmount takes the topmost mount away, whoever uses it.
func unmount(at string) func() error {
	return func() error {
		if err := unix.Unmount(at, unix.MNT_DETACH); err != nil {
			return fmt.Errorf("unmount %s: %w", at, err)
		}
		return nil
	}
}

func remountReadOnly(ctx context.Context, w *host) (func() error, error) {
	remount := func(flags uintptr) (err error) {
		waited := rig.Poll(ctx, stopBound, "the last thread of a killed worker", func() bool {
			err = unix.Mount("", w.base, "", unix.MS_REMOUNT|flags, "")
			return !errors.Is(err, unix.EBUSY)
		})
		if err != nil {
			return errors.Join(fmt.Errorf("mount %s again: %w", w.base, err), waited)
		}
		return nil
	}
	return func() error { return remount(0) }, remount(unix.MS_RDONLY)
}

// mountSmall mounts a file system of so many bytes.
func mountSmall(at string, bytes int) error {
	if err := unix.Mount("tmpfs", at, "tmpfs", 0, fmt.Sprintf("size=%d,mode=0750", bytes)); err != nil {
		return fmt.Errorf("mount a small disk at %s: %w", at, err)
	}
	return nil
}

// lateBytes is the size of what lies where a file system is not mounted yet.
const lateBytes = 4 << 20

// late mounts an empty directory over one of the state directory, as if its file system were not mounted yet.
func late(name string) apply {
	return func(_ context.Context, w *host) (func() error, error) {
		path := filepath.Join(w.base, name)
		return unmount(path), mountSmall(path, lateBytes)
	}
}

// lateRaft expects that no daemon begins anew without its log.
func lateRaft(ctx context.Context, w *host) (func() error, error) {
	undo, err := late("raft")(ctx, w)
	return func() error {
		_, answer := w.client.Version(ctx)
		if err := undo(); err != nil {
			return err
		}
		if answer == nil {
			return errors.New("a daemon answers that has no Raft log")
		}
		return nil
	}, err
}

func lateData(_ context.Context, w *host) (func() error, error) {
	data := filepath.Join(w.dir, "data")
	if err := mountSmall(data, lateBytes); err != nil {
		return nil, err
	}
	return unmount(data), signalAll(w.processes(asWorker), syscall.SIGKILL)
}

func dataAway(_ context.Context, w *host) (func() error, error) {
	path := filepath.Join(w.dir, "data", corpus)
	if err := os.Rename(path, path+".away"); errors.Is(err, fs.ErrNotExist) {
		return nil, nil // another fault was faster
	} else if err != nil {
		return nil, err
	}
	return func() error { return os.Rename(path+".away", path) }, signalAll(w.processes(asWorker), syscall.SIGKILL)
}

// committed draws a job that has committed a round, and will not end for a while; nil without one.
func (w *host) committed() *trialJob {
	var all []*trialJob
	for _, j := range w.jobs {
		if s := j.status(); s.CommittedRound > 0 && s.CommittedRound < uint64(j.kind.rounds)/2 && s.State != api.Done {
			all = append(all, j)
		}
	}
	return pick(w, all)
}

// away moves a directory of a job away. Where the daemon has made a new one when it comes back, it holds nothing but a log and an empty
// directory of shards.
func away(name string) apply {
	return func(_ context.Context, w *host) (func() error, error) {
		j := w.committed()
		if j == nil {
			return nil, nil
		}
		from, to := filepath.Join(w.jobDir(j), name), filepath.Join(w.base, "away")
		if _, err := os.Lstat(to); err == nil {
			return nil, nil // something is away already
		}
		if err := os.Rename(from, to); err != nil {
			return nil, err
		}
		return func() error {
			for _, made := range []string{"worker.log", "shards"} {
				_ = os.Remove(filepath.Join(from, made)) // the next line sees it
			}
			return os.Rename(to, from)
		}, nil
	}
}

// A damage changes a file that holds text.
type damage func(w *host, path string, text []byte) error

func empty(_ *host, path string, _ []byte) error { return os.Truncate(path, 0) }

func gone(_ *host, path string, _ []byte) error { return os.Remove(path) }

func cut(w *host, path string, text []byte) error {
	return os.Truncate(path, w.random.Int64N(int64(len(text))))
}

func flip(w *host, path string, text []byte) error {
	text = slices.Clone(text)
	for range 3 { // an odd number changes something, wherever they fall
		text[w.random.IntN(len(text))] ^= 0x55
	}
	return os.WriteFile(path, text, 0o600)
}

func garble(w *host, path string, text []byte) error {
	text = slices.Clone(text)
	for i := range text[:min(len(text), 1<<14)] {
		text[i] = byte(w.random.Uint32())
	}
	return os.WriteFile(path, text, 0o600)
}

// damageShard damages a shard of the newest round of a job. The round before it is whole.
func damageShard(do damage) func(context.Context, *host) error {
	return func(_ context.Context, w *host) error {
		j := w.committed()
		if j == nil {
			return nil
		}
		record, err := agent.ReadRecord(w.jobDir(j))
		if err != nil || len(record.Committed) < 2 {
			return err // with its only round damaged, the job would rightly wait for a person
		}
		here := slices.DeleteFunc(slices.Clone(record.LastCommitted().Shards), func(s cluster.ShardRef) bool {
			_, err := os.Lstat(filepath.Join(w.jobDir(j), "shards", shard.File(s.Digest)))
			return err != nil
		})
		if len(here) == 0 {
			return nil // other hosts have them
		}
		name := shard.File(pick(w, here).Digest)
		w.mu.Lock()
		w.damaged = append(w.damaged, name)
		w.mu.Unlock()
		path := filepath.Join(w.jobDir(j), "shards", name)
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		return do(w, path, text)
	}
}

// leaveTemporaries leaves what a daemon and a worker leave that are killed while they write, and lets the next daemon find it.
func leaveTemporaries(_ context.Context, w *host) error {
	dirs := []string{w.base}
	for _, j := range w.jobs {
		dirs = append(dirs, w.jobDir(j), filepath.Join(w.jobDir(j), "shards"))
	}
	for _, dir := range dirs {
		path := filepath.Join(dir, fmt.Sprintf(".tmp-%d", time.Now().UnixNano()))
		err := os.WriteFile(path, []byte("half a"), 0o600)
		if err != nil && !errors.Is(err, fs.ErrNotExist) { // a job may have no shards yet
			return err
		}
		w.leftovers = append(w.leftovers, path)
	}
	return nil
}
