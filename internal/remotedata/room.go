package remotedata

import (
	"cmp"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"time"

	"go.uber.org/zap"

	"github.com/avgpipe/avgpipe/internal/objectstore"
	"github.com/avgpipe/avgpipe/internal/words"
)

// ownName is a name of a file of the cache. Others are nobody's, and stay.
var ownName = regexp.MustCompile(`^([0-9a-f]{64})(|\` + recordSuffix + `|\` + partSuffix + `)$`)

// held is what a copy takes, whole or not.
type held struct {
	id    string
	bytes int64
	used  time.Time // last
}

// makeRoom removes copies that no job uses, the ones first that were used longest ago, until so many bytes more fit. They are granted then.
func (c *Cache) makeRoom(e *entry, need int64) error {
	select {
	case c.room <- struct{}{}:
	case <-c.ctx.Done():
		return c.ctx.Err()
	}
	defer func() { <-c.room }()
	limit := int64(0)
	if c.config.Limit != nil {
		limit = c.config.Limit()
	}
	all, err := c.held()
	if err != nil {
		return err
	}
	total := c.promised()
	for _, h := range all {
		total += h.bytes
	}
	used := c.inUse()
	for _, h := range all {
		if limit <= 0 || total+need <= limit {
			break
		}
		if used[h.id] {
			continue
		}
		path := filepath.Join(c.config.Dir, h.id)
		if err := c.remove(path, path+recordSuffix, path+partSuffix); err != nil {
			return err
		}
		total -= h.bytes
		c.config.Log.Info("removed fetched data that no job uses", zap.String("copy", h.id), zap.Int64("bytes", h.bytes))
	}
	if limit > 0 && total+need > limit {
		return &objectstore.Error{Kind: objectstore.Unavailable, Op: "keep", URL: e.object.Shown(), Err: fmt.Errorf(
			"%s more do not fit: the copies of what jobs read take %s, and data_cache allows %s; raise it, or wait for a job to end",
			words.Bytes(need), words.Bytes(total), words.Bytes(limit))}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	e.granted = true
	return nil
}

// promised is what fetches will still add.
func (c *Cache) promised() (n int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, e := range c.entries {
		if e.granted {
			n += max(0, e.object.Bytes-e.done)
		}
	}
	return n
}

// inUse are the ids of what must not be removed: that of jobs, and what somebody asks for.
func (c *Cache) inUse() map[string]bool {
	used := map[string]bool{}
	if c.config.InUse != nil {
		for id := range c.config.InUse() {
			used[id] = true
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for id, e := range c.entries {
		if e.busy || time.Since(e.wanted) <= c.config.Unwanted {
			used[id] = true
		}
	}
	return used
}

// held lists the copies, those first that were used longest ago.
func (c *Cache) held() ([]held, error) {
	files, err := os.ReadDir(c.config.Dir)
	if err != nil {
		return nil, fmt.Errorf("list fetched data: %w", err)
	}
	of := map[string]held{}
	for _, f := range files {
		parts := ownName.FindStringSubmatch(f.Name())
		info, err := f.Info()
		if parts == nil || err != nil || !info.Mode().IsRegular() { // or it is gone
			continue
		}
		h := of[parts[1]]
		h.id, h.bytes = parts[1], h.bytes+info.Size()
		if info.ModTime().After(h.used) {
			h.used = info.ModTime()
		}
		of[h.id] = h
	}
	all := make([]held, 0, len(of))
	for _, h := range of {
		all = append(all, h)
	}
	slices.SortFunc(all, func(a, b held) int { return cmp.Or(a.used.Compare(b.used), cmp.Compare(a.id, b.id)) })
	return all, nil
}
