package main

import (
	"bytes"
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

	"github.com/avgpipe/avgpipe/bench/internal/rig"
)

func identity(*host) string { return "identity" }

func raftMeta(*host) string { return filepath.Join("raft", "wal", "meta") }

func raftSegment(w *host) string {
	names, err := filepath.Glob(filepath.Join(w.base, "raft", "wal", "*.wal"))
	if err != nil || len(names) == 0 {
		return filepath.Join("raft", "wal", "no segment")
	}
	return filepath.Join("raft", "wal", filepath.Base(names[len(names)-1]))
}

// errStarted says that the daemon started with a damaged file.
var errStarted = errors.New("the daemon started with a damaged file")

// mayStart is for a damage that may hit nothing that the file holds: the trial goes on to see that nothing was lost.
func mayStart(do apply) apply {
	return func(ctx context.Context, w *host) (func() error, error) {
		undo, err := do(ctx, w)
		if errors.Is(err, errStarted) {
			err = nil
		}
		return undo, err
	}
}

// refused damages a file of the state directory and expects that the daemon says so, does not start, and touches nothing. Then it
// restores the backup.
func refused(file func(*host) string, do damage) apply {
	return once(func(ctx context.Context, w *host) error {
		path := filepath.Join(w.base, file(w))
		backup, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		if err := w.refuses(ctx, file(w), backup, do); err != nil {
			return err // with the directory as it is
		}
		return os.WriteFile(path, backup, 0o600)
	})
}

// anew expects the same of a node of a cluster, whose log others have. It is removed, and joins with an empty directory.
func anew(file func(*host) string, do damage) apply {
	return once(func(ctx context.Context, w *host) error {
		text, err := os.ReadFile(filepath.Join(w.base, file(w)))
		if err != nil {
			return err
		}
		err = w.refuses(ctx, file(w), text, do)
		if errors.Is(err, errStarted) {
			w.say("the damage does not matter: %v", err)
			return nil
		}
		return errors.Join(err, w.joinAnew(ctx))
	})
}

// logGone takes all of the Raft log away.
func logGone(w *host, _ string, _ []byte) error { return os.RemoveAll(filepath.Join(w.base, "raft")) }

// flipWritten flips bytes of what is written of a file that has zeros behind that.
func flipWritten(w *host, path string, text []byte) error {
	text = slices.Clone(text)
	written := bytes.TrimRight(text, "\x00")
	for range 3 {
		written[w.random.IntN(len(written))] ^= 0x55
	}
	return os.WriteFile(path, text, 0o600)
}

// joinAnew has a node that is down removed from the cluster, and makes it a new member that has nothing.
func (h *host) joinAnew(ctx context.Context) error {
	via := pick(h, slices.DeleteFunc(slices.Clone(h.hosts), func(one *host) bool { return one == h }))
	var err error
	if waited := rig.Poll(ctx, joinBound, "the removal"+h.of(), func() bool {
		_, err = via.client.RemoveNode(ctx, h.name, true)
		return err == nil
	}); waited != nil {
		return errors.Join(waited, err)
	}
	h.say("removed%s", h.of())
	entries, err := os.ReadDir(h.base) // it may be a mount, which stays
	for _, e := range entries {
		err = errors.Join(err, os.RemoveAll(filepath.Join(h.base, e.Name())))
	}
	if err != nil {
		return err
	}
	if err := h.join(ctx, via); err != nil {
		return err
	}
	h.daemon.Release()
	return errors.Join(h.answers(ctx), h.vote(ctx))
}

// refuses damages a file of the state directory of a daemon that is halted, and lets it start. It returns nil when the daemon has said what is wrong, has ended
// and has touched nothing, and errStarted when it runs.
func (h *host) refuses(ctx context.Context, name string, text []byte, do damage) error {
	path := filepath.Join(h.base, name)
	if err := do(h, path, text); err != nil {
		return err
	}
	before, err := tree(h.base)
	if err != nil {
		return err
	}
	said := len(h.logText())
	_, ends := h.daemon.Now()
	ended := func() bool {
		_, now := h.daemon.Now()
		return len(now) > len(ends)
	}
	h.daemon.Release()
	if err := rig.Poll(ctx, startBound, "a refusal of "+name, func() bool { return ended() || h.answered(ctx) }); err != nil {
		return err
	}
	if !ended() {
		return fmt.Errorf("%s: %w", name, errStarted)
	}
	if err := h.halt(ctx); err != nil {
		return err
	}
	after, err := tree(h.base)
	if err != nil {
		return err
	}
	words := h.logText()[said:]
	if !strings.Contains(words, filepath.Join(h.state, name)) && !strings.Contains(words, filepath.Join(h.state, filepath.Dir(name))+" ") {
		err = fmt.Errorf("the daemon refused to start without naming %s: %s", path, words)
	}
	for _, name := range slices.Sorted(maps.Keys(before)) {
		if after[name] != before[name] {
			err = errors.Join(err, fmt.Errorf("a daemon that refused to start changed or deleted %s", name))
		}
	}
	return err
}

// tree digests all files below a directory, but for the daemon's lock and its audit log: one that is about to refuse may have turned somebody away.
func tree(root string) (map[string][sha256.Size]byte, error) {
	all := map[string][sha256.Size]byte{}
	err := filepath.WalkDir(root, func(path string, e fs.DirEntry, err error) error {
		if err != nil || !e.Type().IsRegular() || e.Name() == "lock" || e.Name() == "audit.log" {
			return err
		}
		text, err := os.ReadFile(path)
		all[path] = sha256.Sum256(text)
		return err
	})
	return all, err
}
