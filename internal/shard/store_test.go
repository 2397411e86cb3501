package shard_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/avgpipe/avgpipe/internal/checkpoint"
	"github.com/avgpipe/avgpipe/internal/checkpoint/checkpointtest"
	"github.com/avgpipe/avgpipe/internal/shard"
	"github.com/avgpipe/avgpipe/internal/shard/shardtest"
)

func TestMemStoreConforms(t *testing.T) {
	shardtest.Run(t, func(*testing.T) (shard.Store, shardtest.Damage) {
		s := shard.NewMemStore()
		return s, s.Damage
	})
}

func TestDirStoreConforms(t *testing.T) {
	shardtest.Run(t, func(t *testing.T) (shard.Store, shardtest.Damage) {
		s, err := shard.OpenDirStore(checkpoint.OS, filepath.Join(t.TempDir(), "a", "shards"))
		if err != nil {
			t.Fatal(err)
		}
		return s, func(d shard.Digest, change func([]byte) []byte) {
			data, err := os.ReadFile(s.Path(d))
			if err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(s.Path(d), change(data), 0o600); err != nil {
				t.Fatal(err)
			}
		}
	})
}

// zeros reads vectors of zeros.
func zeros(int, []float32, int) error { return nil }

// faultyStore is a directory store that can be made to fail.
func faultyStore(t *testing.T) (*shard.DirStore, *checkpointtest.Faults, string) {
	t.Helper()
	faults := checkpointtest.New(checkpoint.OS)
	dir := t.TempDir()
	s, err := shard.OpenDirStore(faults, dir)
	if err != nil {
		t.Fatal(err)
	}
	return s, faults, dir
}

// files lists a directory.
func files(t *testing.T, dir string) []string {
	t.Helper()
	names, err := checkpoint.OS.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	return names
}

// TestFullDiskIsReportedAndLeavesNoFile: the error names the shard, the bytes needed and available.
func TestFullDiskIsReportedAndLeavesNoFile(t *testing.T) {
	s, faults, dir := faultyStore(t)
	needed, err := shard.Bytes(shardtest.Header(1))
	if err != nil {
		t.Fatal(err)
	}
	for _, room := range []int64{0, 100, needed - 1} {
		faults.Capacity(room)
		_, _, err := shard.Write(t.Context(), s, shardtest.Header(1), zeros)
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
	if _, _, err := shard.Write(t.Context(), s, shardtest.Header(1), zeros); err != nil {
		t.Errorf("just enough room: %v", err)
	}
}

// TestFailedSyncOrRenameIsNotDurable: no shard appears, and no temporary file stays.
func TestFailedSyncOrRenameIsNotDurable(t *testing.T) {
	fault := errors.New("injected")
	for _, op := range []checkpointtest.Op{checkpointtest.CreateTemp, checkpointtest.Sync, checkpointtest.Close, checkpointtest.Rename} {
		s, faults, dir := faultyStore(t)
		faults.Fail(op, fault)
		if _, _, err := shard.Write(t.Context(), s, shardtest.Header(1), zeros); !errors.Is(err, fault) {
			t.Errorf("%s: error %v", op, err)
		}
		if names := files(t, dir); len(names) != 0 {
			t.Errorf("%s: the directory holds %v", op, names)
		}
	}
	s, faults, _ := faultyStore(t)
	faults.Fail(checkpointtest.SyncDir, fault)
	if _, _, err := shard.Write(t.Context(), s, shardtest.Header(1), zeros); !errors.Is(err, fault) {
		t.Errorf("a directory that cannot be synced: error %v", err)
	}
}

// TestCrashBetweenTempAndRename leaves a temporary file that the next Collect removes, and no shard.
func TestCrashBetweenTempAndRename(t *testing.T) {
	s, faults, dir := faultyStore(t)
	faults.CrashAt(checkpointtest.Rename)
	if _, _, err := shard.Write(t.Context(), s, shardtest.Header(5), zeros); !errors.Is(err, checkpointtest.ErrCrashed) {
		t.Fatalf("error %v", err)
	}
	if names := files(t, dir); len(names) != 1 || !strings.HasPrefix(names[0], checkpoint.TempPrefix) {
		t.Fatalf("the directory holds %v, expected one temporary file", names)
	}
	after, err := shard.OpenDirStore(checkpoint.OS, dir)
	if err != nil {
		t.Fatal(err)
	}
	if list, err := after.List(t.Context()); err != nil || len(list) != 0 {
		t.Errorf("list is %v: %v", list, err)
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
	other, err := shard.OpenDirStore(checkpoint.OS, dir)
	if err != nil {
		t.Fatal(err)
	}
	d, _, err := shard.Write(t.Context(), s, shardtest.Header(5), func(int, []float32, int) error {
		_, err := other.Collect(context.WithoutCancel(t.Context()), shard.Collection{Before: 9})
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.Verify(t.Context(), d); err != nil {
		t.Error(err)
	}
}

// TestUnreadableShardIsNotCollected: what cannot be opened now may be whole.
func TestUnreadableShardIsNotCollected(t *testing.T) {
	s, faults, dir := faultyStore(t)
	if _, _, err := shard.Write(t.Context(), s, shardtest.Header(5), zeros); err != nil {
		t.Fatal(err)
	}
	faults.Fail(checkpointtest.Open, errors.New("injected"))
	if removed, err := s.Collect(t.Context(), shard.Collection{Before: 9}); err != nil || len(removed) != 0 || len(files(t, dir)) != 1 {
		t.Errorf("removed %v: %v", removed, err)
	}
}

// encoded is a whole shard file.
func encoded(tb testing.TB, h *shard.Header) []byte {
	tb.Helper()
	var b bytes.Buffer
	if err := shard.Encode(&b, h, zeros); err != nil {
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
	err := shard.Encode(&b, h, func(_ int, dst []float32, _ int) error { dst[0], dst[1] = 1, -2; return nil })
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
		if _, err := shard.NewDecoder(strings.NewReader(data), int64(len(data))); err == nil {
			t.Errorf("%q: no error", data)
		} else if errors.Is(err, io.ErrUnexpectedEOF) {
			t.Errorf("%q: read before it was checked: %v", data, err)
		}
	}
}

// FuzzShardDecoder: no input may crash the decoder, and what it accepts encodes to the same bytes but for spaces.
func FuzzShardDecoder(f *testing.F) {
	small := shardtest.Header(1)
	small.Vectors[0].Elements = 3
	f.Add(encoded(f, small))
	f.Add([]byte("AVGSHARD\x01\x00\x00\x00\x02\x00\x00\x00{}"))
	f.Fuzz(func(t *testing.T, data []byte) {
		decoder, err := shard.NewDecoder(bytes.NewReader(data), int64(len(data)))
		if err != nil {
			return
		}
		vectors := make([][]float32, len(decoder.Header.Vectors))
		err = decoder.Decode(func(v int, src []float32, offset int) error {
			if offset != len(vectors[v]) {
				t.Fatalf("vector %d: at %d, expected %d", v, offset, len(vectors[v]))
			}
			vectors[v] = append(vectors[v], src...)
			return nil
		})
		if err != nil {
			return
		}
		var again bytes.Buffer
		if err := shard.Encode(&again, &decoder.Header, func(v int, dst []float32, offset int) error {
			copy(dst, vectors[v][offset:])
			return nil
		}); err != nil {
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
