package raftlog

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/hashicorp/raft"

	"github.com/avgpipe/avgpipe/internal/cluster"
)

// A backup is a sealed file of Backup and the state (docs/formats.md).
const (
	backupMagic   = "AVGBACKU"
	backupVersion = 1
)

// MaxBackup bounds what Backup writes and Restore reads, in bytes. A state has some kilobytes a job.
const MaxBackup = 256 << 20

// ErrBackup is wrapped by the errors for a file that is no whole backup; test with errors.Is.
var ErrBackup = errors.New("nothing of it is used")

// restoreTimeout bounds how long Restore waits for a majority to have the state.
const restoreTimeout = time.Minute

// lookEvery is how often Restore looks whether commands are under way.
const lookEvery = 5 * time.Millisecond

// Backup says what a backup is of.
type Backup struct {
	Cluster string    `json:"cluster,omitempty"` // its id; empty: of a node that is alone
	Node    string    `json:"node"`              // that wrote it
	Version string    `json:"version,omitempty"` // of its program
	Taken   time.Time `json:"taken"`             // by its clock, UTC
	Index   uint64    `json:"index"`             // of the last entry of the log that is in it
	Jobs    int       `json:"jobs"`
}

// Backup writes the replicated state, with everything that was committed before the call. It is for the node that leads: on another one its error
// wraps ErrNotLeader.
func (l *Log) Backup(ctx context.Context, w io.Writer) (Backup, error) {
	if err := l.Leading(ctx); err != nil {
		return Backup{}, fmt.Errorf("back up the state: %w", err)
	}
	state := l.State()
	about := Backup{Node: l.config.NodeID, Version: l.config.Version, Taken: time.Now().UTC(), Index: state.Index, Jobs: len(state.Jobs())}
	if a := state.Authority(); a != nil {
		about.Cluster = a.Cluster
	}
	body, err := state.MarshalBinary()
	if err != nil {
		return Backup{}, fmt.Errorf("back up the state: %w", err)
	}
	head, err := json.Marshal(about)
	if err != nil {
		return Backup{}, fmt.Errorf("back up the state: %w", err)
	}
	data := sealFile(backupMagic, backupVersion, head, body)
	if len(data) > MaxBackup {
		return Backup{}, fmt.Errorf("back up the state: it has %d bytes, and at most %d can be restored: remove jobs that have ended", len(data), MaxBackup)
	}
	if _, err := w.Write(data); err != nil {
		return Backup{}, fmt.Errorf("write the backup: %w", err)
	}
	return about, nil
}

// ReadBackup reads a backup and checks all of it.
func ReadBackup(r io.Reader) (Backup, *cluster.State, error) {
	data, err := io.ReadAll(io.LimitReader(r, MaxBackup+1))
	if err == nil && len(data) > MaxBackup {
		err = fmt.Errorf("it has more than %d bytes", MaxBackup)
	}
	if err != nil {
		return Backup{}, nil, fmt.Errorf("read the backup: %w", err)
	}
	about, state, err := parseBackup(data)
	if err != nil {
		return Backup{}, nil, fmt.Errorf("read the backup: %w; %w", err, ErrBackup)
	}
	return about, state, nil
}

func parseBackup(data []byte) (about Backup, state *cluster.State, err error) {
	head, body, err := unsealFile(backupMagic, backupVersion, data)
	if err == nil {
		err = json.Unmarshal(head, &about)
	}
	if err == nil {
		state, err = cluster.ReadState(bytes.NewReader(body))
	}
	if err != nil {
		return Backup{}, nil, err
	}
	id := ""
	if a := state.Authority(); a != nil {
		id = a.Cluster
	}
	if about.Index != state.Index || about.Jobs != len(state.Jobs()) || about.Cluster != id {
		return Backup{}, nil, fmt.Errorf("it says entry %d, %d jobs, cluster %q, and holds entry %d, %d jobs, cluster %q",
			about.Index, about.Jobs, about.Cluster, state.Index, len(state.Jobs()), id)
	}
	return about, state, nil
}

// Restored says what Restore did.
type Restored struct {
	Backup
	Back        []string // jobs that were brought back
	Interrupted []string // those of them that had not ended when the backup was made, and are failed now
}

// Restore brings the jobs of a backup that the replicated state does not have back, on all nodes; all else stays (see cluster.State.Restored). It
// returns when a majority has them. It is for the node that leads: on another one its error wraps ErrNotLeader. What is refused changes nothing. It
// waits for commands that are under way; Apply refuses others meanwhile with ErrRestoring.
func (l *Log) Restore(ctx context.Context, r io.Reader) (Restored, error) {
	about, old, err := ReadBackup(r)
	if err != nil {
		return Restored{}, err
	}
	for !l.proposing.TryLock() {
		select {
		case <-time.After(lookEvery):
		case <-ctx.Done():
			return Restored{}, fmt.Errorf("restore a backup: commands are under way: %w", ctx.Err())
		}
	}
	defer l.proposing.Unlock()
	if err := l.Leading(ctx); err != nil {
		return Restored{}, fmt.Errorf("restore a backup: %w", err)
	}
	next, back, err := l.State().Restored(old, time.Now(), "the backup of "+about.Taken.Format(time.DateTime))
	if err != nil {
		return Restored{}, fmt.Errorf("restore a backup: %w", err)
	}
	body, err := next.MarshalBinary()
	if err != nil {
		return Restored{}, fmt.Errorf("restore a backup: %w", err)
	}
	out := Restored{Backup: about}
	for _, j := range back {
		out.Back = append(out.Back, j.ID)
		if was, err := old.Job(j.ID); err == nil && !was.State.Ended() {
			out.Interrupted = append(out.Interrupted, j.ID)
		}
	}
	meta := &raft.SnapshotMeta{Version: raft.SnapshotVersionMax, Size: int64(len(body))}
	err = l.wait(ctx, "restore a backup", func() error { return l.raft.Restore(meta, bytes.NewReader(body), restoreTimeout) })
	return out, err
}
