package plancache

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
		Chosen: tuner.Candidate{Devices: 2, Pipelines: 2, Schedule: "afp", Verdict: tuner.Won, Split: [][2]int{{0, 1}, {1, 2}}},
	}
}

func TestTheCacheGivesBackWhatItWasGiven(t *testing.T) {
	want := someReport()
	path := Fixed(t.TempDir()+"/plans", want.Digest)
	if r, err := Read(path); r != nil || err != nil {
		t.Fatalf("an empty cache holds %v, %v", r, err)
	}
	if err := Write(path, want); err != nil {
		t.Fatal(err)
	}
	got, err := Read(path)
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v, %v", got, err)
	}
}

func TestWhatIsNotAReportIsRefusedByName(t *testing.T) {
	path := Tuned(t.TempDir(), "x")
	for content, want := range map[string]string{
		"":               "without the magic AVGTUNED",
		`{"version": 1}`: "without the magic AVGTUNED",
		magic + "\x02\x00\x00\x00" + strings.Repeat("\x00", headerSize): "version 2, this program reads 1",
	} {
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		if r, err := Read(path); r != nil || err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), path) {
			t.Errorf("%q: %v, error %v, want %q", content, r, err, want)
		}
	}
}

func TestADamagedPlanIsNotRead(t *testing.T) {
	data, err := encode(someReport())
	if err != nil {
		t.Fatal(err)
	}
	for i := range data {
		damaged := bytes.Clone(data)
		damaged[i] ^= 1
		if _, err := decode(damaged); err == nil {
			t.Errorf("byte %d was changed and nobody noticed", i)
		}
	}
	for i := range data {
		if _, err := decode(data[:i]); err == nil {
			t.Errorf("the first %d bytes were taken for a plan", i)
		}
	}
}

// FuzzCache: no file makes the reader panic, and what it accepts it writes again.
func FuzzCache(f *testing.F) {
	data, err := encode(someReport())
	if err != nil {
		f.Fatal(err)
	}
	f.Add(data)
	f.Add(data[:headerSize])
	f.Add([]byte(magic))
	f.Fuzz(func(t *testing.T, data []byte) {
		r, err := decode(data)
		if err != nil {
			return
		}
		again, err := encode(r)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := decode(again); err != nil {
			t.Fatalf("what was read cannot be read again: %v", err)
		}
	})
}
