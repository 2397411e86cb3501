package history

import (
	"bytes"
	"context"
	"errors"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var epoch = time.Date(2026, 1, 2, 3, 4, 5, 6, time.UTC)

func step(s uint64) Record {
	v := float64(s)
	return Record{
		Kind: Step, First: s, Last: s, Generation: 1, Count: 1, Time: epoch.Add(time.Duration(s) * time.Second),
		Values: [Metrics]Stat{{v, v - 1, v + 1}, One(0.1), One(v / 3), One(100)},
	}
}

func evaluation(round uint64, loss float64) Record {
	r := Mark(Evaluation, round, round, 1, epoch)
	r.Values[Loss] = One(loss)
	return r
}

// open opens a history whose warnings fail the test.
func open(t *testing.T, path string) *Writer {
	t.Helper()
	w, err := Open(path, func(err error) { t.Errorf("warned: %v", err) })
	if err != nil {
		t.Fatal(err)
	}
	return w
}

// shut ends a writer as Run does.
func shut(t *testing.T, w *Writer) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	w.Run(ctx)
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
}

func read(t *testing.T, path string) []Record {
	t.Helper()
	records, damaged, err := Read(path)
	if err != nil || damaged != 0 {
		t.Fatalf("read: %d damaged, %v", damaged, err)
	}
	return records
}

func TestWhatIsAppendedIsRead(t *testing.T) {
	path := filepath.Join(t.TempDir(), "history")
	if records := read(t, path); records != nil {
		t.Errorf("no file reads as %v", records)
	}
	var want []Record
	for s := range uint64(3) {
		w := open(t, path)
		w.Append(step(s))
		w.Append(evaluation(s, 0.5))
		want = append(want, step(s), evaluation(s, 0.5))
		shut(t, w)
	}
	// NaN is not equal to itself: compare what was written.
	got := read(t, path)
	if len(got) != len(want) {
		t.Fatalf("%d records, want %d", len(got), len(want))
	}
	for i := range got {
		if !bytes.Equal(got[i].append(nil), want[i].append(nil)) {
			t.Errorf("record %d is %+v, want %+v", i, got[i], want[i])
		}
	}
}

// A write that a crash cut short anywhere, or that left zeros, loses what it wrote and nothing else.
func TestTornTailIsCut(t *testing.T) {
	path := filepath.Join(t.TempDir(), "history")
	whole := header() // 472 bytes: 16 and 3 of 152
	for s := range uint64(3) {
		r := step(s)
		whole = r.append(whole)
	}
	for cut := 0; cut <= len(whole); cut += 7 {
		for _, rest := range []int{0, recordSize, 2*recordSize + 5} {
			if rest > 0 && cut < headerSize {
				continue
			}
			if err := os.WriteFile(path, append(bytes.Clone(whole[:cut]), make([]byte, rest)...), 0o600); err != nil {
				t.Fatal(err)
			}
			w := open(t, path)
			w.Append(step(9))
			shut(t, w)
			var steps []uint64
			for _, r := range read(t, path) {
				steps = append(steps, r.First)
			}
			kept := max(cut-headerSize, 0) / recordSize
			if want := append([]uint64{0, 1, 2}[:kept:kept], 9); !reflect.DeepEqual(steps, want) {
				t.Fatalf("cut at %d with %d zeros: steps %v, want %v", cut, rest, steps, want)
			}
		}
	}
}

func TestDamageInTheMiddleIsPassedOverAndSaid(t *testing.T) {
	path := filepath.Join(t.TempDir(), "history")
	text := header()
	for s := range uint64(3) {
		r := step(s)
		text = r.append(text)
	}
	text[headerSize+recordSize+20] ^= 1
	if err := os.WriteFile(path, text, 0o600); err != nil {
		t.Fatal(err)
	}
	if records, damaged, err := Read(path); err != nil || damaged != 1 || len(records) != 2 {
		t.Errorf("%d records, %d damaged, %v; want 2, 1", len(records), damaged, err)
	}
	var warned []string
	w, err := Open(path, func(err error) { warned = append(warned, err.Error()) })
	if err != nil || len(warned) != 1 || !strings.Contains(warned[0], "1 records are damaged") {
		t.Fatalf("warned %q, %v", warned, err)
	}
	shut(t, w)
	if after, err := os.ReadFile(path); err != nil || !bytes.Equal(after, text) {
		t.Errorf("a history with damage in its middle was changed by opening it, %v", err)
	}
}

func TestWhatIsNoHistoryIsLeftAlone(t *testing.T) {
	newer := header()
	newer[8] = 2
	for _, text := range [][]byte{[]byte("my diary, do not touch"), newer} {
		path := filepath.Join(t.TempDir(), "history")
		if err := os.WriteFile(path, text, 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := Open(path, nil); err == nil || !strings.Contains(err.Error(), path) {
			t.Errorf("opened %q: %v", text, err)
		}
		if after, err := os.ReadFile(path); err != nil || !bytes.Equal(after, text) {
			t.Errorf("it is %q now, %v", after, err)
		}
	}
}

// A pipe at the file's place would be waited for without end.
func TestWhatIsNoFileIsRefused(t *testing.T) {
	pipe := filepath.Join(t.TempDir(), "history")
	if err := syscall.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]string{pipe: "is a pipe, not a file", t.TempDir(): "is a directory, not a file", "/dev/zero": "is a device, not a file"} {
		if _, _, err := Read(path); err == nil || !strings.Contains(err.Error(), path+" "+want) {
			t.Errorf("read: %v, want that it %s", err, want)
		}
		if _, err := Open(path, nil); err == nil || !strings.Contains(err.Error(), path+" "+want) {
			t.Errorf("open: %v, want that it %s", err, want)
		}
	}
}

// However many steps there are, the file keeps below its bound, the newest are there in full, and no step is lost from a mean.
func TestFileIsBounded(t *testing.T) {
	path := filepath.Join(t.TempDir(), "history")
	const limit, steps = 200, 20_000
	w := open(t, path)
	w.limit = limit
	largest := int64(0)
	for s := range uint64(steps) {
		w.Append(step(s))
		if s%10 == 0 {
			w.Append(evaluation(s, 1))
		}
		if s%7 == 0 {
			w.flush(false)
			largest = max(largest, w.size)
		}
	}
	shut(t, w)
	if largest > headerSize+limit*recordSize {
		t.Errorf("the file had %d bytes; %d records of %d are allowed", largest, limit, recordSize)
	}
	next, merged, sum := uint64(0), uint64(0), 0.0
	for _, r := range read(t, path) {
		if r.Kind != Step {
			continue
		}
		if r.First != next || r.Count != r.Last-r.First+1 {
			t.Fatalf("steps %d to %d of %d records follow step %d", r.First, r.Last, r.Count, next-1)
		}
		if l := r.Values[Loss]; l.Min != float64(r.First)-1 || l.Max != float64(r.Last)+1 {
			t.Errorf("steps %d to %d: %+v", r.First, r.Last, l)
		}
		next, sum = r.Last+1, sum+r.Values[Loss].Mean*float64(r.Count)
		if r.Count > 1 {
			merged = r.Last + 1
		}
	}
	if want := float64(steps) * (steps - 1) / 2; next != steps || sum < want*(1-1e-9) || sum > want*(1+1e-9) {
		t.Errorf("up to step %d, sum of losses %v; want %d, %v", next, sum, steps, want)
	}
	if merged == 0 || steps-merged < limit/3 {
		t.Errorf("the newest %d steps are there in full; want at least %d", steps-merged, limit/3)
	}
}

func TestStartSupersedesWhatWasRolledBack(t *testing.T) {
	var records []Record
	records = append(records, Mark(Start, 0, 0, 1, epoch), evaluation(0, 9))
	for s := range uint64(6) {
		records = append(records, step(s))
	}
	records = append(records, Mark(Commit, 4, 4, 1, epoch), evaluation(4, 5), Mark(Commit, 6, 6, 1, epoch), evaluation(6, 4))
	records = append(records, Mark(Start, 4, 4, 2, epoch), evaluation(4, 5.5), step(4))
	var got []string
	names := [...]string{Step: "step", Evaluation: "evaluation", Commit: "commit", Start: "start"}
	for _, r := range Live(records) {
		got = append(got, names[r.Kind]+" "+string(rune('0'+r.First)))
	}
	want := "start 0, evaluation 0, step 0, step 1, step 2, step 3, commit 4, start 4, evaluation 4, step 4"
	if strings.Join(got, ", ") != want {
		t.Errorf("live are %s\nwant %s", strings.Join(got, ", "), want)
	}
	wide := step(0)
	wide.Last, wide.Count = 7, 8
	if live := Live([]Record{wide, Mark(Start, 4, 4, 2, epoch)}); len(live) != 2 || live[0].Last != 3 {
		t.Errorf("merged steps across the round are %+v", live)
	}
}

func TestEvenKeepsKindsApart(t *testing.T) {
	var records []Record
	for s := range uint64(1000) {
		records = append(records, step(s))
		if s == 500 {
			records = append(records, Mark(Start, s, s, 2, epoch))
		}
	}
	even := Even(records, 100)
	starts := 0
	for _, r := range even {
		if r.Kind == Start {
			starts++
		}
	}
	if len(even) > 100 || len(even) < 50 || starts != 1 {
		t.Errorf("%d records with %d starts; want 50 to 100 with 1", len(even), starts)
	}
}

// While the disk takes nothing, training goes on: it is said once, what waits is bounded, and is written when the disk is back.
func TestWritesThatFailAreTriedAgain(t *testing.T) {
	path := filepath.Join(t.TempDir(), "history")
	warned := 0
	w, err := Open(path, func(error) { warned++ })
	if err != nil {
		t.Fatal(err)
	}
	good := w.file
	if w.file, err = os.Open(path); err != nil { // for reading
		t.Fatal(err)
	}
	for s := range uint64(maxBuffered + 10) {
		w.Append(step(s))
		if s%5000 == 0 {
			w.Sync()
		}
	}
	if warned != 1 || len(w.waiting) > maxBuffered {
		t.Errorf("warned %d times, %d records wait", warned, len(w.waiting))
	}
	if err := w.file.Close(); err != nil {
		t.Fatal(err)
	}
	w.file = good
	shut(t, w)
	records := read(t, path)
	if last := records[len(records)-1]; last.First != maxBuffered+9 || len(records) != maxBuffered*3/4+10 {
		t.Errorf("%d records up to step %d were written", len(records), last.First)
	}
}

// TestARemovedHistoryIsBegunAgain: it is said once, and only what the file held is lost.
func TestARemovedHistoryIsBegunAgain(t *testing.T) {
	path := filepath.Join(t.TempDir(), "history")
	var warned []string
	w, err := Open(path, func(err error) { warned = append(warned, err.Error()) })
	if err != nil {
		t.Fatal(err)
	}
	w.Append(step(0))
	w.Sync()
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	w.Append(step(1))
	w.flush(false)
	w.Append(step(2))
	shut(t, w)
	if records := read(t, path); len(records) != 2 || records[0].First != 1 || records[1].First != 2 {
		t.Errorf("after the removal: %+v", records)
	}
	if len(warned) != 1 || !strings.Contains(warned[0], path+" was removed, and is begun again") {
		t.Errorf("warned %q", warned)
	}
}

// FuzzParse: no file may crash a worker or the daemon, and what is read is written back as it was.
func FuzzParse(f *testing.F) {
	r := step(3)
	whole := r.append(header())
	f.Add([]byte{})
	f.Add(header())
	f.Add(whole)
	f.Add(whole[:len(whole)-1])
	f.Add(append(bytes.Clone(whole), make([]byte, recordSize)...))
	f.Fuzz(func(t *testing.T, text []byte) {
		records, _, good, err := parse(text)
		if err != nil {
			return
		}
		if good > int64(len(text)) || len(records) > len(text)/recordSize {
			t.Fatalf("%d records, %d bytes are good of %d", len(records), good, len(text))
		}
		again := header()
		for i := range records {
			again = records[i].append(again)
		}
		back, damaged, _, err := parse(again)
		if err != nil || damaged != 0 || len(back) != len(records) {
			t.Fatalf("%d records were read back as %d, %d damaged, %v", len(records), len(back), damaged, err)
		}
		if thinned := Thin(Live(records), 8); len(thinned) > 8+4 {
			t.Fatalf("thinned to %d", len(thinned))
		}
	})
}

// What a disk does not take is an error that names the file.
func TestOpenNamesThePath(t *testing.T) {
	path := filepath.Join(t.TempDir(), "missing", "history")
	if _, err := Open(path, nil); !errors.Is(err, os.ErrNotExist) || !strings.Contains(err.Error(), path) {
		t.Errorf("open: %v", err)
	}
}

// Files that were written before hold a rate of a worker's first step: that of the time between the first steps of two pipelines.
func TestTheFirstStepOfAWorkerHasNoRate(t *testing.T) {
	step := func(n uint64, rate float64) Record {
		r := Mark(Step, n, n/2+1, 1, time.Unix(0, 0))
		r.Values[TokensPerS] = One(rate)
		return r
	}
	start := func(at uint64) Record { return Mark(Start, at, at/2, 1, time.Unix(0, 0)) }
	known := map[uint64]bool{}
	for _, r := range Live([]Record{start(0), step(0, 2.75e6), step(1, 65e3), step(2, 65e3), start(2), step(2, 3e6), step(3, 66e3)}) {
		if r.Kind == Step {
			known[r.First] = r.Values[TokensPerS].Known()
		}
	}
	if want := map[uint64]bool{0: false, 1: true, 2: false, 3: true}; !maps.Equal(known, want) {
		t.Errorf("steps with a rate: %v, want %v", known, want)
	}
}
