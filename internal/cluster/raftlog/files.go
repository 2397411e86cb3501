package raftlog

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
)

// The log's directory below Config.Dir, and the file that held the log until decision 0029.
const (
	walName  = "wal"
	boltName = "raft.db"
)

// Check reports what is wrong with the log in a directory: what Open would refuse it for if it must exist. It changes
// nothing.
func Check(dir string) error {
	log, _, err := openFiles(Config{Dir: dir, Existing: true}.withDefaults())
	if err != nil {
		return err
	}
	return log.Close()
}

// openFiles opens the log and its snapshots, or begins them. It checks all that can be checked before Raft runs.
func openFiles(config Config) (*checkedLog, *snapStore, error) {
	snapDir := filepath.Join(config.Dir, "snapshots")
	if err := checkPresence(config, snapDir); err != nil {
		return nil, nil, err
	}
	snapshots, err := openSnapStore(snapDir)
	if err != nil {
		return nil, nil, err
	}
	log, err := openLog(filepath.Join(config.Dir, walName), raftLogger(config.Logger))
	if err != nil {
		return nil, nil, err
	}
	holds, err := log.extent()
	if err == nil {
		err = checkJoint(holds, snapshots, config)
	}
	if err != nil {
		return nil, nil, errors.Join(err, log.Close())
	}
	return log, snapshots, nil
}

// checkPresence reports a log that is not there, or empty, although something of it must be.
func checkPresence(config Config, snapDir string) error {
	path := filepath.Join(config.Dir, walName, metaName)
	info, err := os.Stat(path)
	what := "is missing"
	switch {
	case err == nil && info.Size() > 0:
		return nil
	case err == nil:
		what = "is empty"
	case !errors.Is(err, fs.ErrNotExist):
		return fmt.Errorf("open raft log: %w", err)
	}
	older := filepath.Join(config.Dir, boltName)
	if _, err := os.Stat(older); err == nil {
		return missingLog(older, errors.New("is of an older avgpiped, whose log this one does not read"))
	}
	for _, pattern := range []string{filepath.Join(snapDir, "*"+snapSuffix), filepath.Join(config.Dir, walName, "*.wal")} {
		left, err := filepath.Glob(pattern)
		if err != nil {
			return fmt.Errorf("open raft log %s: %w", path, err)
		}
		if len(left) > 0 {
			return missingLog(path, fmt.Errorf("%s, and %s is there", what, left[len(left)-1]))
		}
	}
	if config.Existing {
		return missingLog(path, fmt.Errorf("%s, and this state directory was in use", what))
	}
	return nil
}

// checkJoint reports a log and snapshots that do not belong together: one of the two was deleted, or comes from a backup.
func checkJoint(log extent, snapshots *snapStore, config Config) error {
	metas, err := snapshots.List()
	if err != nil {
		return err
	}
	covered, newest := uint64(0), ""
	if len(metas) > 0 {
		covered, newest = metas[0].Index, snapshots.path(metas[0].ID)
	}
	switch {
	case !log.begun && newest != "":
		return missingLog(log.path, fmt.Errorf("holds nothing, and %s is there", newest))
	case !log.begun && config.Existing:
		return missingLog(log.path, errors.New("holds nothing, and this state directory was in use"))
	case log.last == 0 || log.last+1 == covered: // a crash cut off Restore, after the snapshot and before the first entry behind it
	case config.Transport == nil && log.last < covered: // a node that follows may have got the snapshot from another
		return missingLog(log.path, fmt.Errorf("ends at entry %d, and %s was made of entry %d", log.last, newest, covered))
	case log.first > covered+1:
		return &DamageError{fmt.Errorf("entries %d to %d are missing: the log %s starts at %d and the newest snapshot in %s ends at %d: they are not of one backup",
			covered+1, log.first-1, log.path, log.first, snapshots.dir, covered)}
	}
	return nil
}

// DamageError says that files of the log are damaged or gone. What is to be done about that depends on whether other nodes have the record, which who
// opens the log knows.
type DamageError struct{ Err error }

func (e *DamageError) Error() string { return e.Err.Error() }
func (e *DamageError) Unwrap() error { return e.Err }

// missingLog is a log that is gone, or whose end is.
func missingLog(path string, problem error) error {
	return &DamageError{fmt.Errorf("raft log %s %w: mount its file system, if it is not mounted", path, problem)}
}
