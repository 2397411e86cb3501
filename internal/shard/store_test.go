package shard_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/avgpipe/avgpipe/internal/checkpoint"
	"github.com/avgpipe/avgpipe/internal/checkpoint/checkpointtest"
	"github.com/avgpipe/avgpipe/internal/shard"
)

// header is that of a small shard.
func header(round uint64) *shard.Header {
	return &shard.Header{
		Job: "7", Generation: 2, Round: round, Stage: 1, Stages: 3,
		Vectors: []shard.Vector{
			{Name: shard.CenterVector, Elements: 70_001}, // more than one chunk
			{Name: shard.ParametersVector(0), Elements: 5},
			{Name: shard.StateVector(0, 1), Elements: 0},
		},
		Cursors: []shard.Cursor{{Pipeline: 0, Step: round}},
		Meta:    []byte(`{"data":"x"}`),
	}
}

// values are the vectors of a header, different in every element.
func values(h *shard.Header) [][]float32 {
	vectors := make([][]float32, len(h.Vectors))
	for v := range vectors {
		vectors[v] = make([]float32, h.Vectors[v].Elements)
		for i := range vectors[v] {
			vectors[v][i] = float32(h.Round)*1e6 + float32(v)*1e5 + float32(i)
		}
	}
	return vectors
}

func openStore(t *testing.T) shard.Store {
	t.Helper()
	s, err := shard.OpenStore(filepath.Join(t.TempDir(), "a", "shards"))
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// write writes the shard of a header.
func write(t *testing.T, s shard.Store, h *shard.Header) shard.Digest {
	t.Helper()
	d, n, err := shard.Write(t.Context(), s, h, values(h))
	if err != nil {
		t.Fatal(err)
	}
	if verified, err := s.Verify(t.Context(), d); err != nil || verified != n {
		t.Fatalf("verify: %d bytes, expected %d: %v", verified, n, err)
	}
	if size, err := s.Size(t.Context(), d); err != nil || size != n {
		t.Fatalf("size: %d bytes, expected %d: %v", size, n, err)
	}
	return d
}

// damage changes the file of a shard.
func damage(t *testing.T, s shard.Store, d shard.Digest, change func([]byte) []byte) {
	t.Helper()
	data, err := os.ReadFile(s.Path(d))
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(s.Path(d), change(data), 0o600); err != nil {
		t.Fatal(err)
	}
}

func TestShardsReadBackAsTheyWereWritten(t *testing.T) {
	s, h := openStore(t), header(3)
	d := write(t, s, h)
	for _, skipped := range []int{-1, 0, 1} {
		read := make([][]float32, len(h.Vectors))
		want := values(h)
		err := shard.Read(t.Context(), s, d, func(got *shard.Header) ([][]float32, error) {
			if fmt.Sprint(*got) != fmt.Sprint(*h) {
				return nil, fmt.Errorf("header %+v, expected %+v", got, h)
			}
			for v := range read {
				if v != skipped {
					read[v] = make([]float32, len(want[v]))
				} else {
					want[v] = nil
				}
			}
			return read, nil
		})
		if err != nil || !slices.EqualFunc(read, want, slices.Equal) {
			t.Errorf("without vector %d, other values came back: %v", skipped, err)
		}
	}
	refused := errors.New("refused")
	err := shard.Read(t.Context(), s, d, func(*shard.Header) ([][]float32, error) { return nil, refused })
	if !errors.Is(err, refused) || !strings.Contains(err.Error(), string(d)) {
		t.Errorf("a refused header: %v", err)
	}
}

func TestShardsAreNamedByTheirDigest(t *testing.T) {
	s := openStore(t)
	d := write(t, s, header(1))
	if again := write(t, s, header(1)); again != d {
		t.Errorf("the same shard is %s and %s", d, again)
	}
	data, err := os.ReadFile(s.Path(d))
	if err != nil {
		t.Fatal(err)
	}
	sum := sha256.Sum256(data)
	if found := hex.EncodeToString(sum[:]); found != string(d) {
		t.Errorf("content has digest %s, expected %s", found, d)
	}
}

func TestEveryDamagedByteIsReported(t *testing.T) {
	s, h := openStore(t), header(1)
	h.Vectors[0].Elements = 200
	d := write(t, s, h)
	expectDamage := func(what string) {
		t.Helper()
		var damaged *shard.DamagedError
		_, err := s.Verify(t.Context(), d)
		if !errors.As(err, &damaged) || damaged.Expected != d || damaged.Found == d || damaged.Found == "" ||
			!strings.Contains(err.Error(), damaged.Path) {
			t.Fatalf("%s: error %v", what, err)
		}
		err = shard.Read(t.Context(), s, d, func(*shard.Header) ([][]float32, error) {
			t.Errorf("%s: the header was handed over", what)
			return nil, errors.New("unreachable")
		})
		if !errors.As(err, &damaged) {
			t.Fatalf("%s: Read: %v", what, err)
		}
	}
	size, err := s.Verify(t.Context(), d)
	if err != nil {
		t.Fatal(err)
	}
	for p := range size {
		flip := func(data []byte) []byte { data[p] ^= 4; return data }
		damage(t, s, d, flip)
		expectDamage(fmt.Sprintf("byte %d flipped", p))
		damage(t, s, d, flip)
	}
	for _, n := range []int64{0, 7, 15, 16, 100, size / 2, size - 1} {
		var whole []byte
		damage(t, s, d, func(data []byte) []byte { whole = slices.Clone(data); return data[:n] })
		expectDamage(fmt.Sprintf("cut to %d bytes", n))
		damage(t, s, d, func([]byte) []byte { return whole })
	}
	damage(t, s, d, func(data []byte) []byte { return append(data, 0) })
	expectDamage("a byte more")
	write(t, s, h) // which heals it
}

func TestRefusedShardsLeaveNothing(t *testing.T) {
	dir := t.TempDir()
	s := shard.StoreAt(dir)
	h := header(9)
	short := values(h)
	short[1] = short[1][1:]
	if _, _, err := shard.Write(t.Context(), s, h, short); err == nil || !strings.Contains(err.Error(), "job 7 round 9 stage 1") ||
		!strings.Contains(err.Error(), "pipeline.0.parameters") {
		t.Errorf("a vector too short: %v", err)
	}
	h.Vectors = append(h.Vectors, h.Vectors[0])
	if _, _, err := shard.Write(t.Context(), s, h, values(h)); err == nil || !strings.Contains(err.Error(), `"center"`) {
		t.Errorf("a vector twice: %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, _, err := shard.Write(ctx, s, header(2), values(header(2))); !errors.Is(err, context.Canceled) {
		t.Errorf("write: %v", err)
	}
	if names := files(t, dir); len(names) != 0 {
		t.Errorf("the directory holds %v", names)
	}
	d := write(t, s, header(1))
	if _, err := s.Verify(ctx, d); !errors.Is(err, context.Canceled) {
		t.Errorf("verify: %v", err)
	}
	if _, err := s.Collect(ctx, shard.Collection{Before: 9, Generation: 2}); !errors.Is(err, context.Canceled) {
		t.Errorf("collect: %v", err)
	}
}

func TestAbsentShardsAreNotThere(t *testing.T) {
	s := openStore(t)
	d := shard.Digest(strings.Repeat("ab", 32))
	if _, err := s.Verify(t.Context(), d); !errors.Is(err, fs.ErrNotExist) || !strings.Contains(err.Error(), string(d)) {
		t.Errorf("verify: %v", err)
	}
	if err := shard.Read(t.Context(), s, d, nil); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("read: %v", err)
	}
	if _, err := s.Verify(t.Context(), "../../etc/passwd"); err == nil {
		t.Error("a name that is no digest was opened")
	}
}

func TestCollectTakesOlderRounds(t *testing.T) {
	s, aside := openStore(t), filepath.Join(t.TempDir(), "aside")
	var d []shard.Digest
	for round := range uint64(6) {
		d = append(d, write(t, s, header(round)))
	}
	damage(t, s, d[2], func(data []byte) []byte { return data[:10] })
	c := shard.Collection{Keep: []shard.Digest{d[1]}, Superseded: []shard.Digest{d[1], d[3]}, Before: 4, Generation: 2, Aside: aside}
	removed, err := s.Collect(t.Context(), c)
	expected := []shard.Digest{d[0], d[2], d[3]}
	slices.Sort(expected)
	if err != nil || !slices.Equal(removed, expected) {
		t.Errorf("removed %v, expected %v: %v", removed, expected, err)
	}
	for _, kept := range []shard.Digest{d[1], d[4], d[5]} {
		if _, err := s.Verify(t.Context(), kept); err != nil {
			t.Errorf("kept: %v", err)
		}
	}
	moved := []string{shard.File(d[0]), shard.File(d[2])}
	slices.Sort(moved)
	if names := files(t, aside); !slices.Equal(names, moved) {
		t.Errorf("set aside were %v, expected %v", names, moved)
	}
	if removed, err := s.Collect(t.Context(), c); err != nil || len(removed) != 0 {
		t.Errorf("once more removed %v: %v", removed, err)
	}
	c.Before, c.Aside, c.Generation = 5, "", 1
	if removed, err := s.Collect(t.Context(), c); err != nil || len(removed) != 0 {
		t.Errorf("who knows of no later generation than 1 removed %v of generation 2: %v", removed, err)
	}
	c.Generation = 2
	if removed, err := s.Collect(t.Context(), c); err != nil || !slices.Equal(removed, d[4:5]) || len(files(t, aside)) != 2 {
		t.Errorf("with no place to set them aside, removed %v: %v", removed, err)
	}
}

func TestShardsAreWrittenConcurrently(t *testing.T) {
	s := openStore(t)
	var all sync.WaitGroup
	for range 4 {
		all.Go(func() {
			for round := range uint64(3) {
				if _, _, err := shard.Write(t.Context(), s, header(round), values(header(round))); err != nil {
					t.Error(err)
				}
			}
		})
	}
	all.Wait()
	if removed, err := s.Collect(t.Context(), shard.Collection{Before: 3, Generation: 2}); err != nil || len(removed) != 3 {
		t.Fatalf("shards were %v, expected three: %v", removed, err)
	}
}

// faultyStore is a directory store that can be made to fail.
func faultyStore(t *testing.T) (shard.Store, *checkpointtest.Faults, string) {
	t.Helper()
	faults := checkpointtest.New(t)
	dir := t.TempDir()
	s, err := shard.OpenStore(dir)
	if err != nil {
		t.Fatal(err)
	}
	return s, faults, dir
}

// files lists a directory.
func files(t *testing.T, dir string) []string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}

// TestFullDiskIsReportedAndLeavesNoFile: the error names the shard, the bytes needed and available.
func TestFullDiskIsReportedAndLeavesNoFile(t *testing.T) {
	s, faults, dir := faultyStore(t)
	needed, err := shard.Bytes(header(1))
	if err != nil {
		t.Fatal(err)
	}
	for _, room := range []int64{0, 100, needed - 1} {
		faults.Capacity(room)
		_, _, err := shard.Write(t.Context(), s, header(1), values(header(1)))
		var space *checkpoint.SpaceError
		if !errors.As(err, &space) || space.Needed != needed || !errors.Is(err, syscall.ENOSPC) {
			t.Errorf("room for %d bytes: error %v", room, err)
		}
		if err == nil || !strings.Contains(err.Error(), "job 7 round 1 stage 1") || !strings.Contains(err.Error(), dir) {
			t.Errorf("error %v: expected shard and directory", err)
		}
		if names := files(t, dir); len(names) != 0 {
			t.Errorf("room for %d bytes: the directory holds %v", room, names)
		}
	}
	faults.Capacity(needed)
	if _, _, err := shard.Write(t.Context(), s, header(1), values(header(1))); err != nil {
		t.Errorf("just enough room: %v", err)
	}
}

// TestFailedSyncOrRenameIsNotDurable: no shard appears, and no temporary file stays.
func TestFailedSyncOrRenameIsNotDurable(t *testing.T) {
	fault := errors.New("injected")
	for _, op := range []checkpoint.Op{checkpoint.CreateTemp, checkpoint.Sync, checkpoint.Close, checkpoint.Rename} {
		s, faults, dir := faultyStore(t)
		faults.Fail(op, fault)
		if _, _, err := shard.Write(t.Context(), s, header(1), values(header(1))); !errors.Is(err, fault) {
			t.Errorf("%s: error %v", op, err)
		}
		if names := files(t, dir); len(names) != 0 {
			t.Errorf("%s: the directory holds %v", op, names)
		}
	}
	s, faults, _ := faultyStore(t)
	faults.Fail(checkpoint.SyncDir, fault)
	if _, _, err := shard.Write(t.Context(), s, header(1), values(header(1))); !errors.Is(err, fault) {
		t.Errorf("a directory that cannot be synced: error %v", err)
	}
}

// TestCrashBetweenTempAndRename leaves a temporary file that the next Collect removes, and no shard.
func TestCrashBetweenTempAndRename(t *testing.T) {
	s, faults, dir := faultyStore(t)
	faults.CrashAt(checkpoint.Rename)
	if _, _, err := shard.Write(t.Context(), s, header(5), values(header(5))); !errors.Is(err, checkpointtest.ErrCrashed) {
		t.Fatalf("error %v", err)
	}
	if names := files(t, dir); len(names) != 1 || !strings.HasPrefix(names[0], checkpoint.TempPrefix) {
		t.Fatalf("the directory holds %v, expected one temporary file", names)
	}
	faults.CrashAt("")
	after, err := shard.OpenStore(dir)
	if err != nil {
		t.Fatal(err)
	}
	if removed, err := after.Collect(t.Context(), shard.Collection{}); err != nil || len(removed) != 0 {
		t.Errorf("collect removed %v: %v", removed, err)
	}
	if names := files(t, dir); len(names) != 0 {
		t.Errorf("the directory holds %v", names)
	}
}

// TestCollectSparesAWriteInProgress of another process or goroutine.
func TestCollectSparesAWriteInProgress(t *testing.T) {
	s, _, dir := faultyStore(t)
	f, err := checkpoint.Create(dir, 0o600, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Abort() //nolint:errcheck // does nothing after Commit
	if removed, err := s.Collect(t.Context(), shard.Collection{Before: 9, Generation: 2}); err != nil || len(removed) != 0 {
		t.Errorf("removed %v: %v", removed, err)
	}
	if err := f.Commit("whole"); err != nil {
		t.Error(err)
	}
}

// TestUnreadableShardIsNotCollected: what cannot be opened now may be whole.
func TestUnreadableShardIsNotCollected(t *testing.T) {
	s, _, dir := faultyStore(t)
	d, _, err := shard.Write(t.Context(), s, header(5), values(header(5)))
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(os.Remove(s.Path(d)), os.Symlink(s.Path(d), s.Path(d))); err != nil { // a link to itself
		t.Fatal(err)
	}
	if removed, err := s.Collect(t.Context(), shard.Collection{Before: 9, Generation: 2}); err != nil || len(removed) != 0 || len(files(t, dir)) != 1 {
		t.Errorf("removed %v: %v", removed, err)
	}
}

// encoded is a whole shard file.
func encoded(tb testing.TB, h *shard.Header) []byte {
	tb.Helper()
	var b bytes.Buffer
	if err := shard.Encode(tb.Context(), &b, h, values(h)); err != nil {
		tb.Fatal(err)
	}
	return b.Bytes()
}

// TestShardFileIsTheSpecification of docs/formats.md, byte for byte.
func TestShardFileIsTheSpecification(t *testing.T) {
	h := &shard.Header{Job: "1", Generation: 2, Round: 3, Stage: 0, Stages: 1, Vectors: []shard.Vector{{Name: "center", Elements: 2}}}
	json := `{"job":"1","generation":2,"round":3,"stage":0,"stages":1,"vectors":[{"name":"center","elements":2}],"cursors":null}`
	for (16+len(json))%64 != 0 {
		json += " "
	}
	expected := "AVGSHARD\x01\x00\x00\x00" + string([]byte{byte(len(json))}) + "\x00\x00\x00" + json +
		"\x00\x00\x80\x3f\x00\x00\x00\xc0" + // 1, -2
		"\xc9\xf2\x36\xaa" // CRC-32C of the eight bytes above
	var b bytes.Buffer
	err := shard.Encode(t.Context(), &b, h, [][]float32{{1, -2}})
	if err != nil || b.String() != expected {
		t.Errorf("file is\n%q\nexpected\n%q\n%v", b.String(), expected, err)
	}
	if size, err := shard.Bytes(h); err != nil || size != int64(len(expected)) {
		t.Errorf("Bytes is %d, expected %d: %v", size, len(expected), err)
	}
}

// TestHugeLengthsAllocateNothing: a header that claims more than the file holds is refused before any of it is believed.
func TestHugeLengthsAllocateNothing(t *testing.T) {
	for _, data := range []string{
		"AVGSHARD\x01\x00\x00\x00\xff\xff\xff\xff",
		"AVGSHARD\x01\x00\x00\x00\x00\x00\x10\x00",
		"AVGSHARD\x02\x00\x00\x00\x02\x00\x00\x00{}",
		"AVGSHARD\x01\x00\x00\x00\x5c\x00\x00\x00" + `{"stages":1,"vectors":[{"name":"center","elements":9223372036854775807}]}                   `,
		"AVGSHARD\x01\x00\x00\x00\x5c\x00\x00\x00" + `{"stages":1,"vectors":[{"name":"center","elements":1073741824}]}                            `,
	} {
		if err := shard.Decode(t.Context(), strings.NewReader(data), int64(len(data)), nil); err == nil {
			t.Errorf("%q: no error", data)
		} else if errors.Is(err, io.ErrUnexpectedEOF) {
			t.Errorf("%q: read before it was checked: %v", data, err)
		}
	}
}

// FuzzShardDecoder: no input may crash the decoder, and what it accepts encodes to the same bytes but for spaces.
func FuzzShardDecoder(f *testing.F) {
	small := header(1)
	small.Vectors[0].Elements = 3
	f.Add(encoded(f, small))
	f.Add([]byte("AVGSHARD\x01\x00\x00\x00\x02\x00\x00\x00{}"))
	f.Fuzz(func(t *testing.T, data []byte) {
		var h *shard.Header
		var vectors [][]float32
		err := shard.Decode(t.Context(), bytes.NewReader(data), int64(len(data)), func(got *shard.Header) ([][]float32, error) {
			h, vectors = got, make([][]float32, len(got.Vectors))
			for v := range vectors {
				vectors[v] = make([]float32, got.Vectors[v].Elements)
			}
			return vectors, nil
		})
		if err != nil {
			return
		}
		var again bytes.Buffer
		if err := shard.Encode(t.Context(), &again, h, vectors); err != nil {
			t.Fatalf("accepted, but cannot be encoded: %v", err)
		}
		tail := int(4 * len(vectors))
		for _, v := range vectors {
			tail += 4 * len(v)
		}
		if !bytes.Equal(again.Bytes()[again.Len()-tail:], data[len(data)-tail:]) {
			t.Error("vectors or checksums changed on the way")
		}
	})
}
