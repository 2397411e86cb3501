package tune

import (
	"bytes"
	"os"
	"reflect"
	"strings"
	"testing"

	"github.com/avgpipe/avgpipe/tuner"
)

func someReport() *tuner.Report {
	return &tuner.Report{
		Version: tuner.ReportVersion, Digest: strings.Repeat("ab", 32), Considered: 3, Bound: 0.15,
		Chosen: tuner.Candidate{Stages: 2, Pipelines: 2, Schedule: "afp", Verdict: tuner.Won, Split: [][2]int{{0, 1}, {1, 2}}},
	}
}

func TestTheCacheGivesBackWhatItWasGiven(t *testing.T) {
	dir := t.TempDir() + "/plans"
	want := someReport()
	if r, err := readCache(dir, want.Digest); r != nil || err != nil {
		t.Fatalf("an empty cache holds %v, %v", r, err)
	}
	if err := writeCache(dir, want); err != nil {
		t.Fatal(err)
	}
	got, err := readCache(dir, want.Digest)
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v, %v", got, err)
	}
	if r, err := readCache(dir, strings.Repeat("cd", 32)); r != nil || err != nil {
		t.Errorf("another digest finds %v, %v", r, err)
	}
}

func TestADamagedPlanIsNotRead(t *testing.T) {
	data, err := encodeCache(someReport())
	if err != nil {
		t.Fatal(err)
	}
	for i := range data {
		damaged := bytes.Clone(data)
		damaged[i] ^= 1
		if _, err := decodeCache(damaged); err == nil {
			t.Errorf("byte %d was changed and nobody noticed", i)
		}
	}
	for i := range data {
		if _, err := decodeCache(data[:i]); err == nil {
			t.Errorf("the first %d bytes were taken for a plan", i)
		}
	}
}

func TestAPlanUnderAnotherNameIsNotTaken(t *testing.T) {
	dir := t.TempDir()
	r := someReport()
	if err := writeCache(dir, r); err != nil {
		t.Fatal(err)
	}
	other := strings.Repeat("cd", 32)
	if err := os.Rename(cachePath(dir, r.Digest), cachePath(dir, other)); err != nil {
		t.Fatal(err)
	}
	if _, err := readCache(dir, other); err == nil || !strings.Contains(err.Error(), "abababab") {
		t.Errorf("error is %v", err)
	}
}

// FuzzCache: no file makes the reader panic, and what it accepts it writes again.
func FuzzCache(f *testing.F) {
	data, err := encodeCache(someReport())
	if err != nil {
		f.Fatal(err)
	}
	f.Add(data)
	f.Add(data[:cacheHeader])
	f.Add([]byte(cacheMagic))
	f.Fuzz(func(t *testing.T, data []byte) {
		r, err := decodeCache(data)
		if err != nil {
			return
		}
		again, err := encodeCache(r)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := decodeCache(again); err != nil {
			t.Fatalf("what was read cannot be read again: %v", err)
		}
	})
}
