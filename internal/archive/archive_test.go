package archive_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/avgpipe/avgpipe/internal/archive"
	"github.com/avgpipe/avgpipe/internal/cluster"
	"github.com/avgpipe/avgpipe/internal/objectstore"
	"github.com/avgpipe/avgpipe/internal/objectstore/objectstoretest"
	"github.com/avgpipe/avgpipe/internal/shard"
)

// disk is the files of a job, by digest.
type disk map[shard.Digest][]byte

func (d disk) add(text string) archive.File {
	sum := sha256.Sum256([]byte(text))
	f := archive.File{Digest: shard.Digest(hex.EncodeToString(sum[:])), Bytes: int64(len(text))}
	d[f.Digest] = []byte(text)
	return f
}

func (d disk) open(_ context.Context, digest shard.Digest) (io.ReadCloser, error) {
	content, ok := d[digest]
	if !ok {
		return nil, fs.ErrNotExist
	}
	return io.NopCloser(bytes.NewReader(content)), nil
}

// round is a round of two stages; the frozen file and the job file are the same in every one.
func (d disk) round(n uint64) *archive.Round {
	m := &cluster.Manifest{Job: "7", Generation: 1, Round: n, Stages: 2, Cursors: []shard.Cursor{{Step: n}}, SamplesSeen: 4 * n}
	frozen := d.add("frozen")
	for k := range 2 {
		f := d.add(fmt.Sprintf("stage %d of round %d", k, n))
		m.Shards = append(m.Shards, cluster.ShardRef{
			Stage: k, Digest: f.Digest, Bytes: f.Bytes, Nodes: []string{"a"}, Layers: [2]int{k, k + 1}, Frozen: frozen.Digest, FrozenBytes: frozen.Bytes,
		})
	}
	return &archive.Round{
		Job:     cluster.Job{ID: "7", Name: "job", Spec: json.RawMessage(`{"version": 7}`), Committed: []*cluster.Manifest{m}},
		Objects: []archive.File{d.add("the job file")}, Written: time.Unix(1700000000, 0).UTC(),
	}
}

func at(b objectstore.Bucket) *archive.Archive {
	return &archive.Archive{Bucket: b, At: objectstore.Location{Bucket: "models", Prefix: "team/job-1-7"}}
}

func TestARoundComesBackAsItWasSaved(t *testing.T) {
	d, bucket := disk{}, &objectstoretest.Memory{}
	a := at(bucket)
	if _, err := a.Read(t.Context(), 0); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("of an empty bucket: %v", err)
	}
	for n := range uint64(5) {
		if err := a.Save(t.Context(), d.round(n+1), d.open, 2); err != nil {
			t.Fatal(err)
		}
	}
	r, err := a.Read(t.Context(), 0)
	if err != nil || r.Manifest().Round != 5 || r.Job.Name != "job" {
		t.Fatalf("the newest round is %+v (%v)", r, err)
	}
	if _, err := a.Read(t.Context(), 4); err != nil {
		t.Errorf("the round before: %v", err)
	}
	if _, err := a.Read(t.Context(), 3); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a round that was collected: %v", err)
	}
	for _, f := range r.Files() {
		var got []byte
		err := a.Fetch(t.Context(), f, func(content io.Reader) (err error) {
			got, err = io.ReadAll(content)
			return err
		})
		if err != nil || !bytes.Equal(got, d[f.Digest]) {
			t.Errorf("file %s is %q (%v)", f.Digest, got, err)
		}
	}
	all, err := bucket.List(t.Context(), "")
	if err != nil || len(all) != 2+2*2+2 {
		t.Errorf("the bucket holds %v (%v); two rounds, their shards, what is frozen and the job file remain", all, err)
	}
}

// whole checks that each manifest in a bucket names files that are all there.
func whole(t *testing.T, b objectstore.Bucket) (rounds int) {
	t.Helper()
	all, err := b.List(t.Context(), "")
	if err != nil {
		t.Fatal(err)
	}
	for _, o := range all {
		if !strings.Contains(o.Key, "/rounds/") {
			continue
		}
		rounds++
		content, err := b.Get(t.Context(), o.Key)
		if err != nil {
			t.Fatal(err)
		}
		text, err := io.ReadAll(content)
		if err != nil {
			t.Fatal(err)
		}
		r, err := archive.Decode(text)
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range r.Files() {
			key := strings.SplitN(o.Key, "rounds/", 2)[0] + "files/" + string(f.Digest)
			if info, err := b.Stat(t.Context(), key); err != nil || info.Bytes != f.Bytes {
				t.Fatalf("%s names %s, which is %+v (%v)", o.Key, f.Digest, info, err)
			}
		}
	}
	return rounds
}

// TestWhateverFailsAManifestNamesWhatIsThere: an operation fails, each in turn; then the same round is saved again.
func TestWhateverFailsAManifestNamesWhatIsThere(t *testing.T) {
	for broken := range 60 {
		d, count, failing := disk{}, 0, true
		bucket := &objectstoretest.Memory{}
		bucket.Fault = func(context.Context, string, string) error {
			if count++; failing && count == broken+1 {
				return errors.New("500")
			}
			return nil
		}
		a, failed := at(bucket), 0
		for n := range uint64(4) {
			if err := a.Save(t.Context(), d.round(n+1), d.open, 1); err != nil {
				failed++
			}
			failing = count <= broken
			armed := failing
			failing = false
			whole(t, bucket)
			failing = armed
			if !armed {
				count = broken + 1
			}
		}
		failing = false
		if err := a.Save(t.Context(), d.round(4), d.open, 1); err != nil || whole(t, bucket) != 1 {
			t.Errorf("operation %d failed, and then %v; %d rounds", broken, err, whole(t, bucket))
		}
		if failed > 1 {
			t.Errorf("operation %d failed, and %d rounds could not be saved", broken, failed)
		}
	}
}

func TestDamageIsFoundOnTheWayInAndOut(t *testing.T) {
	d, bucket := disk{}, &objectstoretest.Memory{}
	a, r := at(bucket), d.round(1)
	digest := r.Manifest().Shards[1].Digest
	right := d[digest]
	d[digest] = bytes.Repeat([]byte("x"), len(right))
	if err := a.Save(t.Context(), r, d.open, 1); err == nil || !strings.Contains(err.Error(), "damaged") || whole(t, bucket) != 0 {
		t.Errorf("a damaged file is saved: %v", err)
	}
	d[digest] = right
	if err := a.Save(t.Context(), r, d.open, 1); err != nil {
		t.Fatal(err)
	}
	bucket.Truncate = func(string) int { return 3 }
	err := a.Fetch(t.Context(), archive.File{Digest: digest, Bytes: int64(len(right))}, func(content io.Reader) error {
		_, err := io.Copy(io.Discard, content)
		return err
	})
	if objectstore.KindOf(err) != objectstore.Damaged || !strings.Contains(fmt.Sprint(err), "has 3 bytes") {
		t.Errorf("of a truncated file: %v", err)
	}
}

func TestManifestsThatAreNotRightAreRefused(t *testing.T) {
	good, err := disk{}.round(3).Encode()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := archive.Decode(good); err != nil {
		t.Fatal(err)
	}
	replaced := map[string][2]string{
		"format":                  {`"avgpipe-round"`, `"other"`},
		"version 2":               {`"version": 1`, `"version": 2`},
		"unknown field":           {`"written"`, `"also": 1, "written"`},
		"64 lower-case":           {`"digest": "`, `"digest": "../`},
		"2 shards for 3 stages":   {`"stages": 2`, `"stages": 3`},
		"round 0":                 {`"round": 3`, `"round": 0`},
		"more than one JSON":      {"}\n", "}\n{}"},
		"spec, must be there":     {"\"spec\": {\n   \"version\": 7\n  },", ""},
		"not a manifest":          {"{", "["},
		"it has 0 rounds":         {`"committed"`, `"set": [], "placement"`},
		"object of 0 bytes":       {`"bytes": 12`, `"bytes": 0`},
		"expected a size and at ": {`"a"`, ``},
	}
	for _, want := range slices.Sorted(maps.Keys(replaced)) {
		with := replaced[want]
		if want == "more than one JSON" {
			good := append(slices.Clone(good), "{}"...)
			if _, err := archive.Decode(good); err == nil {
				t.Error("two values are read")
			}
			continue
		}
		bad := strings.Replace(string(good), with[0], with[1], 1)
		if bad == string(good) {
			t.Fatalf("%s: nothing is replaced in %s", want, good)
		}
		if _, err := archive.Decode([]byte(bad)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v, expected %q", err, want)
		}
	}
}

func FuzzDecode(f *testing.F) {
	good, err := disk{}.round(3).Encode()
	if err != nil {
		f.Fatal(err)
	}
	f.Add(good)
	f.Add([]byte(`{"format": "avgpipe-round", "version": 1}`))
	f.Add([]byte(`{"format": "avgpipe-round", "version": 1, "job": {"committed": [null]}}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		r, err := archive.Decode(text)
		if err != nil {
			return
		}
		again, err := r.Encode()
		if err != nil {
			t.Fatal(err)
		}
		if _, err := archive.Decode(again); err != nil {
			t.Fatalf("%s\nis read and\n%s\nis not: %v", text, again, err)
		}
		_ = r.Files()
	})
}
