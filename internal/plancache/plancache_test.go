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
	path := Tuned(t.TempDir()+"/plans", want.Digest)
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

// What is no report is refused by name; so is one that an older program wrote, in a form of its own, and one of another version.
func TestWhatIsNotAReportIsRefusedByName(t *testing.T) {
	path := Tuned(t.TempDir(), "x")
	for content, want := range map[string]string{"": "it is empty", `{"version": 1}`: "expected \"avgpipe tuned", "AVGTUNED\x01": "expected \"avgpipe tuned"} {
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		if r, err := Read(path); r != nil || err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), path) {
			t.Errorf("%q: %v, error %v, want %q", content, r, err, want)
		}
	}
	newer := someReport()
	newer.Version++
	if err := Write(path, newer); err != nil {
		t.Fatal(err)
	}
	if r, err := Read(path); r != nil || err == nil || !strings.Contains(err.Error(), "this program reads") {
		t.Errorf("a newer report: %v, %v", r, err)
	}
}

func TestADamagedPlanIsNotRead(t *testing.T) {
	path := Tuned(t.TempDir(), "x")
	if err := Write(path, someReport()); err != nil {
		t.Fatal(err)
	}
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for i := range data {
		damaged := bytes.Clone(data)
		damaged[i] ^= 1
		for what, text := range map[string][]byte{"with a changed byte": damaged, "cut": data[:i]} {
			if err := os.WriteFile(path, text, 0o600); err != nil {
				t.Fatal(err)
			}
			if r, err := Read(path); r != nil || err == nil {
				t.Errorf("byte %d: a plan %s was read", i, what)
			}
		}
	}
}
