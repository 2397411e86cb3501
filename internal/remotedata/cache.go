package remotedata

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/avgpipe/avgpipe/internal/access"
	"github.com/avgpipe/avgpipe/internal/objectstore"
	"github.com/avgpipe/avgpipe/internal/pinned"
)

// mostFetches bounds the objects that are fetched, or read through, at once: more would share one way to the same server.
const mostFetches = 4

// CacheConfig configures a Cache.
type CacheConfig struct {
	// Dir holds the copies, and nothing else. It is made when the first one is fetched.
	Dir string
	// Limit is what the copies may take, in bytes; 0: there is no bound. Nil: likewise.
	Limit func() int64
	// InUse are the ids of objects of jobs that have not ended, which are not removed. Nil: there are none.
	InUse func() map[string]bool
	// Open opens an object from a byte on, or from another that it returns, and Allowed says whether a user may read it. Required.
	Open    func(ctx context.Context, user *access.User, o *pinned.Object, first int64) (io.ReadCloser, int64, error)
	Allowed func(user *access.User, o *pinned.Object) error
	// Stall is how long a server may send nothing. Default 30 s.
	Stall time.Duration
	// Unwanted is how long a fetch goes on that nobody asks for. Default 1 min: who places jobs asks every second.
	Unwanted time.Duration
	Log      *zap.Logger // required
}

// Cache keeps copies of objects. An object is fetched once, whoever wants it, and again where the copy is not what it was.
type Cache struct {
	config CacheConfig
	ctx    context.Context // ends with Close
	cancel context.CancelFunc
	tasks  sync.WaitGroup
	slots  chan struct{} // of those who fetch
	room   chan struct{} // of who makes room

	mu      sync.Mutex
	entries map[string]*entry
}

// entry is what is known of an object. All but user and object is guarded by the cache's mutex.
type entry struct {
	id     string
	object pinned.Object
	user   *access.User
	wanted time.Time // last

	busy    bool  // it is fetched, or read through
	granted bool  // there is room for the rest of it
	done    int64 // bytes of it that are there
	moved   bool  // some have come since it was last begun

	ready  *stamp // of the copy that was read through; nil: none
	failed error  // the last time
	tries  int    // that failed, since bytes have come
	again  time.Time
}

// stamp tells whether a file is the one that was read through.
type stamp struct {
	bytes    int64
	modified time.Time
}

// OpenCache returns a cache of a directory. The caller closes it.
func OpenCache(c CacheConfig) *Cache {
	if c.Stall == 0 {
		c.Stall = patience
	}
	if c.Unwanted == 0 {
		c.Unwanted = time.Minute
	}
	ctx, cancel := context.WithCancel(context.Background())
	return &Cache{
		config: c, ctx: ctx, cancel: cancel, slots: make(chan struct{}, mostFetches), room: make(chan struct{}, 1), entries: map[string]*entry{},
	}
}

// Close ends all fetches. What has come of an object stays, and is gone on with later.
func (c *Cache) Close() {
	c.mu.Lock() // nothing is begun afterwards
	c.cancel()
	c.mu.Unlock()
	c.tasks.Wait()
}

// Progress is how far it is to have all of some objects.
type Progress struct {
	Done, Total int64 // bytes
	Left        int   // objects that are not there
	Err         error // why one of them does not come for now; nil: nothing is known against it
}

// Want has objects fetched that are not there whole, and says how far that is. It does not wait. Whoever wants them asks again from time to
// time: else the fetches end.
func (c *Cache) Want(user *access.User, objects []pinned.Object) Progress {
	p := Progress{Total: pinned.Bytes(objects)}
	seen := map[string]bool{}
	for i := range objects {
		o := &objects[i]
		id := o.ID()
		if seen[id] {
			continue
		}
		seen[id] = true
		if err := c.config.Allowed(user, o); err != nil {
			p.Left++
			p.Err = firstOf(p.Err, err)
			continue
		}
		c.want(user, o, id, stampOf(o.Path(c.config.Dir)), &p)
	}
	return p
}

func firstOf(a, b error) error {
	if a != nil {
		return a
	}
	return b
}

// stampOf is that of a file; nil where there is none.
func stampOf(path string) *stamp {
	info, err := os.Lstat(path)
	if err != nil || !info.Mode().IsRegular() {
		return nil
	}
	return &stamp{info.Size(), info.ModTime()}
}

// want has one object fetched, of which a copy has a stamp, and adds it to p.
func (c *Cache) want(user *access.User, o *pinned.Object, id string, now *stamp, p *Progress) {
	c.mu.Lock()
	defer c.mu.Unlock()
	e := c.entries[id]
	if e == nil {
		e = &entry{id: id, object: *o, user: user}
		c.entries[id] = e
	}
	e.wanted = time.Now()
	if !e.busy && e.ready != nil && now != nil && *e.ready == *now {
		p.Done += o.Bytes
		return
	}
	p.Left++
	if !e.busy && !e.wanted.Before(e.again) && c.ctx.Err() == nil {
		e.busy, e.moved, e.ready, e.done, e.user = true, false, nil, 0, user
		c.tasks.Go(func() { c.run(e) })
	}
	p.Done += e.done
	if !e.moved {
		p.Err = firstOf(p.Err, e.failed)
	}
}

// Pauses between two tries: of what may pass by itself, the first and the longest, and of all else.
const (
	firstPause   = 2 * time.Second
	longestPause = time.Minute
)

// run fetches an object, and notes how that ended.
func (c *Cache) run(e *entry) {
	err := c.fetch(e)
	now := stampOf(e.object.Path(c.config.Dir))
	c.mu.Lock()
	defer c.mu.Unlock()
	e.busy, e.granted = false, false
	if err == nil {
		e.ready, e.failed, e.tries, e.again = now, nil, 0, time.Time{}
		return
	}
	if errors.Is(err, errUnwanted) || c.ctx.Err() != nil {
		e.failed = nil
		return
	}
	pause := longestPause
	if objectstore.KindOf(err) == objectstore.Unavailable {
		pause = min(firstPause<<min(e.tries, 10), longestPause)
	}
	e.failed, e.again = err, time.Now().Add(pause)
	e.tries++
	c.config.Log.Warn("what a job reads cannot be fetched", zap.String("object", e.object.Shown()), zap.Error(err), zap.Duration("again_after", pause))
}

// errUnwanted ends a fetch that nobody asks for any more.
var errUnwanted = errors.New("nobody asks for it any more")

// fetch makes a whole copy of an object, or finds that there is one.
func (c *Cache) fetch(e *entry) error {
	select {
	case c.slots <- struct{}{}:
	case <-c.ctx.Done():
		return c.ctx.Err()
	}
	defer func() { <-c.slots }()
	if c.unwanted(e) {
		return errUnwanted
	}
	if err := os.MkdirAll(c.config.Dir, 0o700); err != nil {
		return fmt.Errorf("make the directory of fetched data: %w", err)
	}
	whole, err := c.check(e)
	if whole || err != nil {
		return err
	}
	return c.download(e)
}

// unwanted reports whether nobody has asked for an object for a while.
func (c *Cache) unwanted(e *entry) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return time.Since(e.wanted) > c.config.Unwanted
}

// note says that so many bytes of an object are there.
func (c *Cache) note(e *entry, done int64, moved bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	e.done = done
	if moved {
		e.moved, e.tries, e.failed = true, 0, nil
	}
}

// remove removes files of an object, which may not be there.
func (c *Cache) remove(paths ...string) error {
	var errs []error
	for _, path := range paths {
		if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			errs = append(errs, fmt.Errorf("remove fetched data: %w", err))
		}
	}
	return errors.Join(errs...)
}
