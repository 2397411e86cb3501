package agent

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"go.uber.org/zap"
	"golang.org/x/sys/unix"

	"github.com/avgpipe/avgpipe/internal/shard"
	"github.com/avgpipe/avgpipe/internal/worker/control"
)

// Bounds of the quarantine beside Limits.QuarantineFor.
const (
	quarantineShare = 10               // at most one part in so many of the file system
	sweepInterval   = 10 * time.Minute // between two looks
	quarantineTime  = "20060102T150405.000Z"
)

// Shards implements Agent.
func (l *Local) Shards(job string) Shards {
	return &localShards{shard.StoreAt(control.ShardDir(l.dir(job))), l, job}
}

// localShards are the shards of a job.
type localShards struct {
	shard.Store
	agent *Local
	job   string
}

// Collect implements Shards.
func (s *localShards) Collect(ctx context.Context, c shard.Collection) ([]shard.Digest, error) {
	l := s.agent
	c.Aside = filepath.Join(control.QuarantineDir(l.dir(s.job)), time.Now().UTC().Format(quarantineTime))
	removed, err := s.Store.Collect(ctx, c)
	if aside := slices.DeleteFunc(slices.Clone(removed), func(d shard.Digest) bool { return slices.Contains(c.Superseded, d) }); len(aside) > 0 {
		say := []zap.Field{zap.Int("shards", len(aside)), zap.String("to", c.Aside), zap.Duration("kept_for", l.config.Limits().QuarantineFor)}
		l.config.Log.Info("moved shards that no round names to the quarantine", append(say, zap.String("job", s.job))...)
		l.Log(s.job, zap.InfoLevel, "moved shards that no round names to the quarantine", say...)
		l.sweepQuarantine() // it looks at the directories of all jobs
	}
	if errors.Is(err, fs.ErrNotExist) {
		err = nil // there are none yet
	}
	return removed, err
}

// sweepQuarantine deletes what was in quarantine for long enough, and the oldest of it where all together takes too much of the disk.
// It looks at no other files, and leaves directories alone that are not named as those.
func (l *Local) sweepQuarantine() {
	_, disk, err := l.Disk(l.ctx)
	if err != nil {
		return // it is looked at again
	}
	room := disk / quarantineShare
	paths, _ := filepath.Glob(filepath.Join(control.QuarantineDir(l.dir("*")), "*")) // the pattern is right
	slices.SortFunc(paths, func(a, b string) int { return strings.Compare(filepath.Base(b), filepath.Base(a)) })
	began := map[string]time.Time{}
	for _, path := range paths {
		if at, err := time.Parse(quarantineTime, filepath.Base(path)); err == nil {
			began[path] = at
		}
	}
	past := l.quarantined.Past(time.Now(), l.config.Limits().QuarantineFor, began)
	for _, path := range paths { // the newest first: their names are times
		if _, named := began[path]; !named {
			continue
		}
		bytes := usage(path)
		if room -= bytes; room >= 0 && !past[path] {
			continue
		}
		l.config.Log.Info("deleting shards from the quarantine", zap.String("path", path), zap.Int64("bytes", bytes))
		if err := os.RemoveAll(path); err != nil {
			l.config.Log.Warn("delete from the quarantine", zap.Error(err))
		}
	}
}

// sweepQuarantines does so from time to time.
func (l *Local) sweepQuarantines() {
	ticker := time.NewTicker(sweepInterval)
	defer ticker.Stop()
	for {
		l.sweepQuarantine()
		select {
		case <-ticker.C:
		case <-l.ctx.Done():
			return
		}
	}
}

// Usage implements Agent.
func (l *Local) Usage(_ context.Context, job string) int64 { return usage(l.dir(job)) }

// usage is what a directory takes, in bytes. What cannot be read counts as nothing.
func usage(dir string) (total int64) {
	_ = filepath.WalkDir(dir, func(_ string, e fs.DirEntry, err error) error { // the function returns no error
		if err != nil {
			return nil //nolint:nilerr // as documented
		}
		if info, err := e.Info(); err == nil {
			if s, ok := info.Sys().(*syscall.Stat_t); ok {
				total += s.Blocks * 512
			}
		}
		return nil
	})
	return total
}

// Disk implements Agent.
func (l *Local) Disk(context.Context) (free, size int64, err error) {
	var s unix.Statfs_t
	if err := unix.Statfs(l.config.StateDir, &s); err != nil {
		return 0, 0, fmt.Errorf("statfs %s: %w", l.config.StateDir, err)
	}
	return int64(s.Bavail) * s.Frsize, int64(s.Blocks) * s.Frsize, nil //nolint:gosec // bytes of a disk
}
