package profile

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
	dir := t.TempDir() + "/plans"
	if r, err := ReadCache(dir, want.Digest); r != nil || err != nil {
		t.Fatalf("an empty cache holds %v, %v", r, err)
	}
	if err := WriteCache(dir, want); err != nil {
		t.Fatal(err)
	}
	got, err := ReadCache(dir, want.Digest)
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v, %v", got, err)
	}
	other := strings.Repeat("cd", 32)
	if err := os.Rename(cached(dir, want.Digest), cached(dir, other)); err != nil {
		t.Fatal(err)
	}
	if _, err := ReadCache(dir, other); err == nil || !strings.Contains(err.Error(), "abababab") {
		t.Errorf("under another name: %v", err)
	}
}

// What is no report is refused by name; so is one that an older program wrote, in a form of its own, and one of another version.
func TestWhatIsNotAReportIsRefusedByName(t *testing.T) {
	dir, digest := t.TempDir(), someReport().Digest
	path := cached(dir, digest)
	for content, want := range map[string]string{"": "it is empty", `{"version": 1}`: "expected \"avgpipe tuned", "AVGTUNED\x01": "expected \"avgpipe tuned"} {
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		if r, err := ReadCache(dir, digest); r != nil || err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), path) {
			t.Errorf("%q: %v, error %v, want %q", content, r, err, want)
		}
	}
	newer := someReport()
	newer.Version++
	if err := WriteCache(dir, newer); err != nil {
		t.Fatal(err)
	}
	if r, err := ReadCache(dir, digest); r != nil || err == nil || !strings.Contains(err.Error(), "this program reads") {
		t.Errorf("a newer report: %v, %v", r, err)
	}
}

func TestADamagedPlanIsNotRead(t *testing.T) {
	dir, digest := t.TempDir(), someReport().Digest
	path := cached(dir, digest)
	if err := WriteCache(dir, someReport()); err != nil {
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
			if r, err := ReadCache(dir, digest); r != nil || err == nil {
				t.Errorf("byte %d: a plan %s was read", i, what)
			}
		}
	}
}
