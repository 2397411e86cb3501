package node

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"time"

	"go.uber.org/zap"
	"golang.org/x/sys/unix"

	"github.com/avgpipe/avgpipe/internal/worker/control"
)

// Bounds of the quarantine beside Config.QuarantineFor.
const (
	quarantineShare = 10               // at most one part in so many of the file system
	sweepInterval   = 10 * time.Minute // between two looks
	quarantineTime  = "20060102T150405.000Z"
)

// quarantineOf is the directory that shards of a job are moved to at a time.
func quarantineOf(dir string, now time.Time) string {
	return filepath.Join(control.QuarantineDir(dir), now.UTC().Format(quarantineTime))
}

// quarantined is a directory of shards that were moved there together.
type quarantined struct {
	path  string
	at    time.Time
	bytes int64
}

// sweepQuarantine deletes what was in quarantine for long enough, and the oldest of it where all together takes too much of the disk.
// It looks at no other files, and leaves directories alone that are not named as those.
func (n *node) sweepQuarantine() {
	n.sweep.Lock()
	defer n.sweep.Unlock()
	all := listQuarantine(n.config.StateDir)
	room := int64(0)
	var disk unix.Statfs_t
	if err := unix.Statfs(n.config.StateDir, &disk); err == nil {
		room = int64(disk.Blocks) * disk.Bsize / quarantineShare
	}
	for _, q := range expired(all, time.Now().Add(-n.config.Limits().QuarantineFor), room) {
		n.log.Info("deleting shards from the quarantine", zap.String("path", q.path), zap.Int64("bytes", q.bytes))
		if err := os.RemoveAll(q.path); err != nil {
			n.log.Warn("delete from the quarantine", zap.Error(err))
		}
	}
}

// expired returns those of a quarantine that are older than a time, and of the others the oldest that do not fit in room bytes.
func expired(all []quarantined, oldest time.Time, room int64) []quarantined {
	slices.SortFunc(all, func(a, b quarantined) int { return b.at.Compare(a.at) }) // newest first
	var out []quarantined
	for _, q := range all {
		room -= q.bytes
		if q.at.Before(oldest) || room < 0 {
			out = append(out, q)
		}
	}
	return out
}

// listQuarantine finds what is in the quarantines of all jobs.
func listQuarantine(state string) []quarantined {
	paths, _ := filepath.Glob(filepath.Join(control.QuarantineDir(jobDir(state, "*")), "*")) // the pattern is right
	var all []quarantined
	for _, path := range paths {
		at, err := time.Parse(quarantineTime, filepath.Base(path))
		if err != nil {
			continue
		}
		q := quarantined{path: path, at: at}
		entries, err := os.ReadDir(path)
		if err != nil {
			continue // it cannot be read now
		}
		for _, e := range entries {
			if info, err := e.Info(); err == nil {
				q.bytes += info.Size()
			}
		}
		all = append(all, q)
	}
	return all
}

// sweepQuarantines does so from time to time.
func (n *node) sweepQuarantines(ctx context.Context) {
	n.sweepQuarantine()
	for sleep(ctx, sweepInterval) {
		n.sweepQuarantine()
	}
}
