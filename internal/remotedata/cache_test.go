package remotedata

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"
	"go.uber.org/zap"

	"github.com/avgpipe/avgpipe/internal/access"
	"github.com/avgpipe/avgpipe/internal/objectstore"
	"github.com/avgpipe/avgpipe/internal/pinned"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// origin has objects, which it hands out as it is told.
type origin struct {
	mu    sync.Mutex
	opens []string // "URL first"
	// before, unless nil, is called with each opening, and its error returned. handed, unless nil, says how many bytes come before the line breaks; a
	// negative number of bytes: so many, and then nothing more.
	before func(ctx context.Context, n int) error
	handed func(n int) int
}

// bytesOf is the content of an object.
func bytesOf(o *pinned.Object) []byte {
	return bytes.Repeat([]byte(o.URL[len(o.URL)-1:]), int(o.Bytes))
}

func (r *origin) open(ctx context.Context, _ *access.User, o *pinned.Object, first int64) (io.ReadCloser, int64, error) {
	r.mu.Lock()
	r.opens = append(r.opens, fmt.Sprintf("%s %d", o.URL, first))
	n := len(r.opens)
	r.mu.Unlock()
	if r.before != nil {
		if err := r.before(ctx, n); err != nil {
			return nil, 0, err
		}
	}
	rest := bytesOf(o)[first:]
	if r.handed == nil {
		return io.NopCloser(bytes.NewReader(rest)), first, nil
	}
	hand := r.handed(n)
	if hand >= 0 {
		return io.NopCloser(bytes.NewReader(rest[:min(hand, len(rest))])), first, nil
	}
	return io.NopCloser(io.MultiReader(bytes.NewReader(rest[:-hand]), silence{ctx})), first, nil
}

// silence sends nothing.
type silence struct{ context.Context }

func (s silence) Read([]byte) (int, error) {
	<-s.Done()
	return 0, context.Cause(s)
}

func (r *origin) opened() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return strings.Join(r.opens, ", ")
}

func (r *origin) count() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.opens)
}

func object(name string, size int64) pinned.Object {
	return pinned.Object{Entry: "s3://bucket/" + name, URL: "s3://bucket/" + name, Name: name, Bytes: size, ETag: "etag"}
}

// open opens a cache of a directory.
func (r *origin) cache(dir string, change func(*CacheConfig)) *Cache {
	c := CacheConfig{Dir: dir, Open: r.open, Allowed: func(*access.User, *pinned.Object) error { return nil }, Log: zap.NewNop()}
	if change != nil {
		change(&c)
	}
	return OpenCache(c)
}

// until asks for objects until it is as it should be, for as long as that may take in the test's own time.
func until(t *testing.T, c *Cache, what string, holds func(Progress) bool, objects ...pinned.Object) Progress {
	t.Helper()
	for range 1000 {
		p := c.Want(nil, objects)
		if holds(p) {
			return p
		}
		time.Sleep(time.Second) // until all that can go on has
	}
	t.Fatalf("never %s: %+v", what, c.Want(nil, objects))
	return Progress{}
}

func whole(p Progress) bool { return p.Left == 0 }

// expect checks that copies are what they should be.
func expect(t *testing.T, c *Cache, objects ...pinned.Object) {
	t.Helper()
	for i := range objects {
		got, err := os.ReadFile(objects[i].Path(c.config.Dir))
		if err != nil || !bytes.Equal(got, bytesOf(&objects[i])) {
			t.Errorf("the copy of %s has %d bytes (%v)", objects[i].URL, len(got), err)
		}
	}
}

// TestAnObjectIsFetchedOnce, whoever wants it, and is there for the next daemon.
func TestAnObjectIsFetchedOnce(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "data")
	synctest.Test(t, func(t *testing.T) {
		r, a, b := &origin{}, object("a", 100_000), object("b", 10)
		c := r.cache(dir, nil)
		var all sync.WaitGroup
		for range 4 {
			all.Go(func() { until(t, c, "there", whole, a, b, a) })
		}
		all.Wait()
		expect(t, c, a, b)
		c.Close()
		if n := r.count(); n != 2 {
			t.Errorf("opened are %s", r.opened())
		}
		c = r.cache(dir, nil)
		defer c.Close()
		p := until(t, c, "there", whole, a, b)
		if p.Done != 100_010 || p.Total != 100_010 || r.count() != 2 {
			t.Errorf("%+v after %s", p, r.opened())
		}
	})
}

// TestAFetchGoesOnWhereItBroke, also that of an earlier daemon.
func TestAFetchGoesOnWhereItBroke(t *testing.T) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		r := &origin{}
		r.handed = func(n int) int {
			switch n {
			case 1, 2:
				return 300
			case 3:
				return -100 // then it hangs
			}
			return 1 << 20
		}
		c := r.cache(dir, nil)
		a := object("a", 1000)
		until(t, c, "in its third try", func(p Progress) bool { return p.Done == 700 && r.count() == 3 }, a)
		c.Close()
		c = r.cache(dir, nil)
		defer c.Close()
		until(t, c, "there", whole, a)
		expect(t, c, a)
		if got := r.opened(); got != "s3://bucket/a 0, s3://bucket/a 300, s3://bucket/a 600, s3://bucket/a 700" {
			t.Errorf("opened are %s", got)
		}
	})
}

// TestASilentServerIsLeft, and tried again later.
func TestASilentServerIsLeft(t *testing.T) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		r := &origin{}
		r.before = func(ctx context.Context, n int) error {
			if n > 1 {
				return nil
			}
			<-ctx.Done()
			return ctx.Err()
		}
		c := r.cache(dir, nil)
		defer c.Close()
		a, began := object("a", 1000), time.Now()
		p := until(t, c, "said to be silent", func(p Progress) bool { return p.Err != nil }, a)
		if !errors.Is(p.Err, errStalled) || objectstore.KindOf(p.Err) != objectstore.Unavailable || time.Since(began) < patience {
			t.Errorf("after %v: %v", time.Since(began), p.Err)
		}
		until(t, c, "there", whole, a)
	})
}

// TestFailuresAreTriedAgain: the sooner the likelier it is that they pass, and what failed is said until something comes.
func TestFailuresAreTriedAgain(t *testing.T) {
	for _, k := range []struct {
		kind  objectstore.Kind
		least time.Duration // for 4 tries
	}{{objectstore.Unavailable, 30 * time.Second}, {objectstore.NoObject, 3 * time.Minute}, {objectstore.Refused, 3 * time.Minute}, {objectstore.Changed, 3 * time.Minute}} {
		dir := t.TempDir()
		synctest.Test(t, func(t *testing.T) {
			r := &origin{}
			r.before = func(_ context.Context, n int) error {
				if n <= 4 {
					return &objectstore.Error{Kind: k.kind, Op: "get", Err: errors.New("no")}
				}
				return nil
			}
			c := r.cache(dir, nil)
			defer c.Close()
			a, began := object("a", 1000), time.Now()
			until(t, c, "failed", func(p Progress) bool { return p.Err != nil }, a)
			until(t, c, "there", func(p Progress) bool {
				if p.Left > 0 && objectstore.KindOf(p.Err) != k.kind {
					t.Errorf("%s: %v", k.kind, p.Err)
				}
				return whole(p)
			}, a)
			if took := time.Since(began); took < k.least || took > 2*k.least {
				t.Errorf("%s: there after %v, expected %v or a little more", k.kind, took, k.least)
			}
		})
	}
}

// TestWhatNobodyWantsEnds, as the fetch of a job that was cancelled.
func TestWhatNobodyWantsEnds(t *testing.T) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		r := &origin{}
		r.before = func(context.Context, int) error {
			time.Sleep(20 * time.Second) // it takes that long
			return nil
		}
		r.handed = func(int) int { return 100 }
		c := r.cache(dir, nil)
		defer c.Close()
		c.Want(nil, []pinned.Object{object("a", 10_000)})
		time.Sleep(time.Hour)
		if n := r.count(); n < 3 || n > 5 {
			t.Errorf("it goes on: %s", r.opened())
		}
		if p := c.Want(nil, []pinned.Object{object("a", 10_000)}); p.Left != 1 || p.Err != nil {
			t.Errorf("it failed: %+v", p)
		}
	})
}

// TestADamagedCopyIsFetchedAgain, whatever happened to it.
func TestADamagedCopyIsFetchedAgain(t *testing.T) {
	for what, damage := range map[string]func(path string) error{
		"other bytes":      func(path string) error { return os.WriteFile(path, bytes.Repeat([]byte("x"), 1000), 0o600) },
		"cut off":          func(path string) error { return os.Truncate(path, 999) },
		"longer":           func(path string) error { return os.WriteFile(path, bytes.Repeat([]byte("a"), 1001), 0o600) },
		"gone":             os.Remove,
		"without a record": func(path string) error { return os.Remove(path + recordSuffix) },
		"a damaged record": func(path string) error { return os.WriteFile(path+recordSuffix, []byte("x"), 0o600) },
		"a part that isn't": func(path string) error {
			return errors.Join(os.Remove(path), os.WriteFile(path+partSuffix, make([]byte, 5000), 0o600))
		},
	} {
		for _, restart := range []bool{false, true} {
			dir := t.TempDir()
			synctest.Test(t, func(t *testing.T) {
				r, a := &origin{}, object("a", 1000)
				a.SHA256 = "41edece42d63e8d9bf515a9ba6932e1c20cbc9f5a5d134645adb5db1b9737ea3" // of its content
				c := r.cache(dir, nil)
				until(t, c, "there", whole, a)
				time.Sleep(time.Second) // another time of change
				if err := damage(a.Path(dir)); err != nil {
					t.Fatal(err)
				}
				if restart {
					c.Close()
					c = r.cache(dir, nil)
				}
				defer func() { c.Close() }()
				if strings.Contains(what, "record") && !restart { // it was read through, and nobody looks again
					return
				}
				until(t, c, "there again", whole, a)
				expect(t, c, a)
				if want := 2; r.count() < want {
					t.Errorf("%s, restart %v: opened are %s", what, restart, r.opened())
				}
			})
		}
	}
}

// TestADigestThatDiffersIsAnotherFile: what the user says of the content counts.
func TestADigestThatDiffersIsAnotherFile(t *testing.T) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		r, a := &origin{}, object("a", 1000)
		a.ETag, a.SHA256 = "", strings.Repeat("0", 64)
		c := r.cache(dir, nil)
		defer c.Close()
		p := until(t, c, "failed", func(p Progress) bool { return p.Err != nil }, a)
		sum := sha256.Sum256(bytesOf(&a))
		want := fmt.Sprintf("its SHA-256 is %x, and the job file gives %s; if the file is the one that is meant, write #sha256=%x", sum, a.SHA256, sum)
		if objectstore.KindOf(p.Err) != objectstore.Differs || !strings.Contains(p.Err.Error(), want) || strings.Contains(p.Err.Error(), "replaced") {
			t.Errorf("%v", p.Err)
		}
		synctest.Wait() // the next try, which begins when the failure is said, has ended too
		if files, err := os.ReadDir(dir); err != nil || len(files) > 0 {
			t.Errorf("left are %v (%v)", files, err)
		}
	})
}

// TestRoomIsMadeOfWhatNoJobUses, the longest unused first; what is not the cache's stays.
func TestRoomIsMadeOfWhatNoJobUses(t *testing.T) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		r, a, b, d, e := &origin{}, object("a", 1000), object("b", 1000), object("d", 1000), object("e", 1000)
		used := map[string]bool{}
		c := r.cache(dir, func(c *CacheConfig) {
			c.Limit, c.InUse = func() int64 { return 3900 }, func() map[string]bool { return used }
		})
		defer c.Close()
		if err := os.WriteFile(filepath.Join(dir, "notes.txt"), make([]byte, 10_000), 0o600); err != nil {
			t.Fatal(err)
		}
		for i, o := range []pinned.Object{a, b, d} {
			until(t, c, "there", whole, o)
			at := time.Unix(int64(1_000_000+i), 0) // b is used first, then d, then a
			if i == 0 {
				at = time.Unix(2_000_000, 0)
			}
			for _, suffix := range []string{"", recordSuffix} {
				if err := os.Chtimes(o.Path(dir)+suffix, at, at); err != nil {
					t.Fatal(err)
				}
			}
		}
		time.Sleep(time.Hour) // nobody asks for them any more
		used[b.ID()] = true   // but a job reads it
		until(t, c, "there", whole, e)
		there := func(o pinned.Object) bool { return stampOf(o.Path(dir)) != nil }
		if !there(a) || !there(b) || there(d) || !there(e) {
			t.Errorf("there are a %v, b %v, d %v, e %v", there(a), there(b), there(d), there(e))
		}
		used[a.ID()], used[e.ID()] = true, true
		p := until(t, c, "without room", func(p Progress) bool { return p.Err != nil }, d)
		if objectstore.KindOf(p.Err) != objectstore.Unavailable || !strings.Contains(p.Err.Error(), "data_cache allows 3.9 KB") {
			t.Errorf("%v", p.Err)
		}
		delete(used, a.ID())
		until(t, c, "there", whole, d)
		if there(a) || stampOf(filepath.Join(dir, "notes.txt")) == nil {
			t.Error("a is there, or what was nobody's is not")
		}
	})
}

// TestFetchesDoNotPromiseTheSameRoom: what is still to come counts.
func TestFetchesDoNotPromiseTheSameRoom(t *testing.T) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		begin := make(chan struct{})
		r := &origin{before: func(ctx context.Context, _ int) error {
			select {
			case <-begin:
				return nil
			case <-ctx.Done():
				return ctx.Err()
			}
		}}
		c := r.cache(dir, func(c *CacheConfig) { c.Limit = func() int64 { return 1900 } })
		defer c.Close()
		p := until(t, c, "without room", func(p Progress) bool { return p.Err != nil }, object("a", 1000), object("b", 1000))
		close(begin)
		if p.Left != 2 || r.count() != 1 {
			t.Errorf("%+v: %s", p, r.opened())
		}
	})
}

// TestARightThatIsTakenCounts, also where a copy is there.
func TestARightThatIsTakenCounts(t *testing.T) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		var closed atomic.Bool
		r, a := &origin{}, object("a", 1000)
		c := r.cache(dir, func(c *CacheConfig) {
			c.Allowed = func(*access.User, *pinned.Object) error {
				if closed.Load() {
					return &objectstore.Error{Kind: objectstore.Refused, Err: errors.New("not you")}
				}
				return nil
			}
		})
		defer c.Close()
		until(t, c, "there", whole, a)
		closed.Store(true)
		if p := c.Want(nil, []pinned.Object{a}); p.Left != 1 || objectstore.KindOf(p.Err) != objectstore.Refused {
			t.Errorf("%+v", p)
		}
	})
}
