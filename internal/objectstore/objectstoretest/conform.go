package objectstoretest

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io"
	"io/fs"
	"strings"
	"sync"
	"testing"

	"github.com/avgpipe/avgpipe/internal/objectstore"
)

// Conform holds a bucket against what objectstore.Bucket says. The bucket must be empty.
func Conform(t *testing.T, b objectstore.Bucket) {
	t.Helper()
	ctx := t.Context()
	put := func(key string, content []byte) {
		t.Helper()
		sum := sha256.Sum256(content)
		if err := b.Put(ctx, key, bytes.NewReader(content), int64(len(content)), hex.EncodeToString(sum[:])); err != nil {
			t.Fatal(err)
		}
	}
	expect := func(key string, content []byte) {
		t.Helper()
		r, err := b.Get(ctx, key)
		if err != nil {
			t.Fatal(err)
		}
		got, err := io.ReadAll(r)
		if err = errors.Join(err, r.Close()); err != nil || !bytes.Equal(got, content) {
			t.Errorf("%s has %d bytes (%v), expected %d", key, len(got), err, len(content))
		}
		sum := sha256.Sum256(content)
		info, err := b.Stat(ctx, key)
		if err != nil || info.Bytes != int64(len(content)) || info.SHA256 != hex.EncodeToString(sum[:]) {
			t.Errorf("%s is %+v (%v)", key, info, err)
		}
	}
	large := bytes.Repeat([]byte("0123456789abcdef"), 1<<16) // 1 MiB
	put("p/a/large", large)
	put("p/a/small", []byte("y"))
	put("p/b/odd name +%", []byte("x"))
	expect("p/a/large", large)
	expect("p/a/small", []byte("y"))
	expect("p/b/odd name +%", []byte("x"))
	put("p/a/large", []byte("again"))
	expect("p/a/large", []byte("again"))
	listed := func(prefix string) (keys []string) {
		t.Helper()
		all, err := b.List(ctx, prefix)
		if err != nil {
			t.Fatal(err)
		}
		for _, o := range all {
			keys = append(keys, o.Key)
		}
		return keys
	}
	if got := strings.Join(listed("p/"), " "); got != "p/a/large p/a/small p/b/odd name +%" {
		t.Errorf("listed are %q", got)
	}
	if got := listed("p/c"); len(got) != 0 {
		t.Errorf("of another prefix: %q", got)
	}
	conformAbsent(t, b)
	conformPinned(t, b)
	var all sync.WaitGroup
	for i := range 8 {
		all.Go(func() { put("p/many/"+strings.Repeat("x", i+1), large[:(i+1)<<14]) })
	}
	all.Wait()
	if got := listed("p/many/"); len(got) != 8 {
		t.Errorf("of 8 at a time: %q", got)
	}
	short := b.Put(ctx, "p/short", strings.NewReader("12"), 3, "")
	if _, err := b.Stat(ctx, "p/short"); short == nil || !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("content that is shorter than said: %v, and then %v", short, err)
	}
}

// conformPinned checks that a part of an object is that of the content that was asked for.
func conformPinned(t *testing.T, b objectstore.Bucket) {
	t.Helper()
	ctx, content := t.Context(), []byte("0123456789")
	put := func(content []byte) objectstore.Info {
		t.Helper()
		if err := b.Put(ctx, "p/pinned", bytes.NewReader(content), int64(len(content)), ""); err != nil {
			t.Fatal(err)
		}
		info, err := b.Stat(ctx, "p/pinned")
		if err != nil || info.ETag == "" {
			t.Fatalf("%+v: %v", info, err)
		}
		listed, err := b.List(ctx, "p/pinned")
		if err != nil || len(listed) != 1 || listed[0].ETag != info.ETag || listed[0].Bytes != info.Bytes {
			t.Errorf("listed as %+v (%v), expected %+v", listed, err, info)
		}
		return info
	}
	info := put(content)
	for _, first := range []int64{0, 4, 9} {
		r, err := b.GetFrom(ctx, "p/pinned", info.ETag, first)
		if err != nil {
			t.Fatal(err)
		}
		got, err := io.ReadAll(r)
		if err = errors.Join(err, r.Close()); err != nil || !bytes.Equal(got, content[first:]) {
			t.Errorf("from %d on it is %q (%v), expected %q", first, got, err, content[first:])
		}
	}
	if again := put([]byte("9876543210")); again.ETag == info.ETag {
		t.Errorf("other content has the same ETag, %s", info.ETag)
	}
	for _, first := range []int64{0, 4} {
		if _, err := b.GetFrom(ctx, "p/pinned", info.ETag, first); objectstore.KindOf(err) != objectstore.Changed {
			t.Errorf("from %d on, of content that is not there any more: %v", first, err)
		}
	}
	if _, err := b.GetFrom(ctx, "p/absent", info.ETag, 0); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("of an absent object: %v", err)
	}
}

// conformAbsent checks what is said of objects that are not there, and of a caller who has left.
func conformAbsent(t *testing.T, b objectstore.Bucket) {
	t.Helper()
	ctx := t.Context()
	if err := errors.Join(b.Delete(ctx, "p/a/small"), b.Delete(ctx, "p/a/small")); err != nil {
		t.Errorf("deleted twice: %v", err)
	}
	if _, err := b.Stat(ctx, "p/a/small"); !errors.Is(err, fs.ErrNotExist) || objectstore.KindOf(err) != objectstore.NoObject {
		t.Errorf("stat of an absent object: %v", err)
	}
	r, err := b.Get(ctx, "p/a/small")
	if err == nil {
		_, err = io.ReadAll(r)
		err = errors.Join(err, r.Close())
	}
	if !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("get of an absent object: %v", err)
	}
	gone, cancel := context.WithCancel(ctx)
	cancel()
	if _, err := b.Stat(gone, "p/a/large"); err == nil {
		t.Error("an object is found for a caller who has left")
	}
}
