package main

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/avgpipe/avgpipe/internal/agent"
)

// damageShard damages the newest shard of a job while nothing runs. The round before it is whole.
func damageShard(ctx context.Context, w *testbed, damage func(path string, size int64) error) error {
	defer w.daemon.release()
	if err := w.halt(ctx); err != nil {
		return err
	}
	j := w.committed()
	if j == nil {
		return nil
	}
	record, err := agent.ReadRecord(w.jobDir(j))
	if err != nil {
		return err
	}
	if len(record.Committed) < 2 {
		return nil // with its only round damaged, the job would rightly wait for a person
	}
	entries, err := os.ReadDir(filepath.Join(w.jobDir(j), "shards"))
	if err != nil {
		return err
	}
	var newest fs.FileInfo
	for _, e := range entries {
		if info, err := e.Info(); err == nil && (newest == nil || info.ModTime().After(newest.ModTime())) && !strings.HasPrefix(e.Name(), ".") {
			newest = info
		}
	}
	if newest == nil {
		return fmt.Errorf("job %s has committed a round and has no shard", j.id)
	}
	w.mu.Lock()
	w.damaged = append(w.damaged, newest.Name())
	w.mu.Unlock()
	return damage(filepath.Join(w.jobDir(j), "shards", newest.Name()), newest.Size())
}

func flipShard(ctx context.Context, w *testbed) (func() error, error) {
	return nil, damageShard(ctx, w, func(path string, size int64) error {
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		for range 3 {
			text[w.random.Int64N(size)] ^= 0x55
		}
		return os.WriteFile(path, text, 0o600)
	})
}

func cutShard(ctx context.Context, w *testbed) (func() error, error) {
	return nil, damageShard(ctx, w, func(path string, size int64) error { return os.Truncate(path, w.random.Int64N(size)) })
}

// A harmless damage may have hit nothing that the file holds: then the daemon starts, and the trial goes on to see that nothing was lost.
const (
	harmless = true
	harmful  = false
)

// refused damages a file while nothing runs and expects that the daemon says so, does not start, and touches nothing. Then it restores
// the backup.
func refused(ctx context.Context, w *testbed, name string, mayStart bool, damage func(path string, text []byte) error) error {
	defer w.daemon.release()
	if err := w.halt(ctx); err != nil {
		return err
	}
	path := filepath.Join(w.base, name)
	backup, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	if err := damage(path, backup); err != nil {
		return err
	}
	before, err := tree(w.base)
	if err != nil {
		return err
	}
	said, ends := len(w.logText()), w.daemon.endsSoFar()
	w.daemon.release()
	refusal := poll(ctx, startBound, "a refusal of "+name, func() bool {
		return w.daemon.endsSoFar() > ends || w.answered(ctx)
	})
	if w.daemon.endsSoFar() == ends && mayStart && refusal == nil {
		return nil
	}
	if w.daemon.endsSoFar() == ends {
		return errors.Join(refusal, fmt.Errorf("the daemon started with a damaged %s", name))
	}
	if err := w.halt(ctx); err != nil {
		return err
	}
	after, err := tree(w.base)
	if err != nil {
		return err
	}
	if words := w.logText()[said:]; !strings.Contains(words, filepath.Join(w.state, name)) && !strings.Contains(words, filepath.Join(w.state, filepath.Dir(name))+" ") {
		err = fmt.Errorf("the daemon refused to start without naming %s: %s", path, words)
	}
	for _, name := range slices.Sorted(maps.Keys(before)) {
		if after[name] != before[name] {
			err = errors.Join(err, fmt.Errorf("a daemon that refused to start changed or deleted %s", name))
		}
	}
	return errors.Join(err, os.WriteFile(path, backup, 0o600))
}

// logText is what the daemons have printed.
func (w *testbed) logText() string {
	text, err := os.ReadFile(w.log())
	if err != nil {
		return err.Error()
	}
	return string(text)
}

// tree digests all files below a directory, but for the daemon's lock.
func tree(root string) (map[string][sha256.Size]byte, error) {
	all := map[string][sha256.Size]byte{}
	err := filepath.WalkDir(root, func(path string, e fs.DirEntry, err error) error {
		if err != nil || !e.Type().IsRegular() || e.Name() == "lock" {
			return err
		}
		text, err := os.ReadFile(path)
		all[path] = sha256.Sum256(text)
		return err
	})
	return all, err
}

// raftMeta and raftSegment are files of the log, below the state directory.
func raftMeta() string { return filepath.Join("raft", "wal", "meta") }

func (w *testbed) raftSegment() (string, error) {
	names, err := filepath.Glob(filepath.Join(w.base, "raft", "wal", "*.wal"))
	if err != nil || len(names) == 0 {
		return "", fmt.Errorf("segments of the log %q: %w", names, err)
	}
	return filepath.Rel(w.base, names[len(names)-1])
}

func overwrite(path string, text []byte) error { return os.WriteFile(path, text, 0o600) }

func emptyRaft(ctx context.Context, w *testbed) (func() error, error) {
	return nil, refused(ctx, w, raftMeta(), harmful, func(path string, _ []byte) error { return os.Truncate(path, 0) })
}

func removeRaft(ctx context.Context, w *testbed) (func() error, error) {
	return nil, refused(ctx, w, raftMeta(), harmful, func(path string, _ []byte) error { return os.Remove(path) })
}

func garbleRaft(ctx context.Context, w *testbed) (func() error, error) {
	segment, err := w.raftSegment()
	if err != nil {
		return nil, err
	}
	return nil, refused(ctx, w, segment, harmful, func(path string, text []byte) error {
		garbled := slices.Clone(text)
		for i := range garbled[:min(len(garbled), 1<<14)] {
			garbled[i] = byte(w.random.Uint32())
		}
		return overwrite(path, garbled)
	})
}

func cutRaft(ctx context.Context, w *testbed) (func() error, error) {
	segment, err := w.raftSegment()
	if err != nil {
		return nil, err
	}
	return nil, refused(ctx, w, segment, harmless, func(path string, text []byte) error { return os.Truncate(path, w.random.Int64N(int64(len(text)))) })
}

func emptyIdentity(ctx context.Context, w *testbed) (func() error, error) {
	return nil, refused(ctx, w, "identity", harmful, func(path string, _ []byte) error { return os.Truncate(path, 0) })
}

func garbleIdentity(ctx context.Context, w *testbed) (func() error, error) {
	return nil, refused(ctx, w, "identity", harmful, func(path string, text []byte) error {
		garbled := slices.Clone(text)
		garbled[w.random.IntN(len(garbled))] ^= byte(1 + w.random.IntN(255))
		return overwrite(path, garbled)
	})
}

// leaveTemporaries leaves what a daemon and a worker leave that are killed while they write, and lets the next daemon find it.
func leaveTemporaries(ctx context.Context, w *testbed) (func() error, error) {
	defer w.daemon.release()
	if err := w.halt(ctx); err != nil {
		return nil, err
	}
	dirs := []string{w.base}
	for _, j := range w.jobs {
		dirs = append(dirs, w.jobDir(j), filepath.Join(w.jobDir(j), "shards"))
	}
	for _, dir := range dirs {
		path := filepath.Join(dir, fmt.Sprintf(".tmp-%d", time.Now().UnixNano()))
		err := os.WriteFile(path, []byte("half a"), 0o600)
		if err != nil && !errors.Is(err, fs.ErrNotExist) { // a job may have no shards yet
			return nil, err
		}
		w.leftovers = append(w.leftovers, path)
	}
	return nil, nil
}
