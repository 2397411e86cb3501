package data

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"

	"github.com/avgpipe/avgpipe/internal/data/tokenizer"
	"github.com/avgpipe/avgpipe/internal/envtest"
)

// memory is a set without files: n windows whose first token, and the next three, tell which one it is.
func memory(n, sequence int) *Set {
	text := make([]byte, n*sequence+1)
	for w := range n {
		copy(text[w*sequence:], []byte{byte(w), byte(w >> 8), byte(w >> 16), 1})
	}
	all := ofBytes(text, sequence)
	return &Set{task: Language, seed: 5, sequence: sequence, train: all, held: all}
}

// windowOf tells which window inputs hold.
func windowOf(inputs []int32) int { return int(inputs[0]) | int(inputs[1])<<8 | int(inputs[2])<<16 }

// TestEachEpochCoversEveryWindowOnce: however many pipelines consume however large batches, any run of as many positions as
// there are windows, from an epoch's start, is every window once.
func TestEachEpochCoversEveryWindowOnce(t *testing.T) {
	for _, size := range []int{1, 2, 7, 64, 97} {
		for _, pipelines := range []int{1, 2, 3, 5} {
			for _, batch := range []int{1, 4, 6} {
				s := memory(size, 4)
				const epochs = 3
				perStep := pipelines * batch
				steps := (epochs*size + perStep - 1) / perStep
				count := make([]map[int]int, epochs+perStep/size+1) // of windows, by epoch
				for e := range count {
					count[e] = map[int]int{}
				}
				inputs := make([]int32, batch*4)
				for i := range pipelines {
					c := Cursor{Pipeline: i, Pipelines: pipelines, Batch: batch}
					for range steps {
						if err := s.Fill(c, 0, batch, Batch{Tokens: inputs}); err != nil {
							t.Fatal(err)
						}
						for j := range batch {
							count[int(c.Position(j))/size][windowOf(inputs[j*4:])]++
						}
						c.Step++
					}
				}
				for e := range epochs {
					for w := range size {
						if count[e][w] != 1 {
							t.Fatalf("%d windows, N=%d, batch %d: window %d is consumed %d times in epoch %d",
								size, pipelines, batch, w, count[e][w], e)
						}
					}
				}
			}
		}
	}
}

// TestPositionsFollowTheLaw: pipeline i of N at step s consumes positions sN*batch + i*batch + j.
func TestPositionsFollowTheLaw(t *testing.T) {
	for step := range uint64(5) {
		for i := range 3 {
			for j := range 4 {
				c := Cursor{Pipeline: i, Pipelines: 3, Batch: 4, Step: step}
				if got, want := c.Position(j), step*3*4+uint64(i*4+j); got != want {
					t.Errorf("%+v sample %d: position %d, want %d", c, j, got, want)
				}
			}
		}
	}
}

// TestAResumeEqualsAnUninterruptedRun: a cursor of a later step, a set that was opened again and batches that are filled in other
// portions give the same samples.
func TestAResumeEqualsAnUninterruptedRun(t *testing.T) {
	files := numbered(30, 70)
	c := Config{Files: []string{corpus(t, files)}, Sequence: 16, Holdout: 0.1, Seed: 11}
	first, again := open(t, c), open(t, c)
	const batch, steps = 6, 40 // several epochs
	run := func(s *Set, cursor Cursor, from, to, portion int) []int32 {
		var all []int32
		buffer := make([]int32, 2*portion*16)
		for range to - from {
			for at := 0; at < batch; at += portion {
				if err := s.Fill(cursor, at, portion, Batch{Tokens: buffer[:portion*16], Targets: buffer[portion*16:]}); err != nil {
					t.Fatal(err)
				}
				for k := range portion {
					all = append(all, buffer[k*16:k*16+16]...)
					all = append(all, buffer[(portion+k)*16:(portion+k)*16+16]...)
				}
			}
			cursor.Step++
		}
		return all
	}
	for i := range 2 {
		whole := run(first, Cursor{Pipeline: i, Pipelines: 2, Batch: batch}, 0, steps, batch)
		head := run(first, Cursor{Pipeline: i, Pipelines: 2, Batch: batch}, 0, 17, 2)
		stored := Cursor{Pipeline: i, Pipelines: 2, Batch: batch, Step: 17}
		if tail := run(again, stored, 17, steps, 3); !slices.Equal(whole, append(head, tail...)) {
			t.Errorf("pipeline %d: a resume at step 17 gives other samples", i)
		}
	}
}

// TestTargetsAreTheNextTokens, across the border of windows too.
func TestTargetsAreTheNextTokens(t *testing.T) {
	text := []byte("abcdefghijklm")
	s := &Set{task: Language, sequence: 4, held: ofBytes(text, 4)}
	inputs, targets := make([]int32, 3*4), make([]int32, 3*4)
	if err := s.FillEvaluation(99, 0, 3, Batch{Tokens: inputs, Targets: targets}); err != nil {
		t.Fatal(err)
	}
	if got := show(inputs, 4) + " -> " + show(targets, 4); got != "abcd efgh ijkl -> bcde fghi jklm" {
		t.Errorf("got %s", got)
	}
}

// TestEvaluationIsFixedAndSpread: the samples do not depend on how they are fetched, never repeat, and span the whole.
func TestEvaluationIsFixedAndSpread(t *testing.T) {
	s := memory(100, 4)
	for _, n := range []int{1, 7, 32, 100, 1000} {
		count := s.EvaluationSamples(n)
		if want := min(n, 100); count != want {
			t.Fatalf("%d samples, want %d", count, want)
		}
		inputs, one := make([]int32, count*4), make([]int32, 4)
		if err := s.FillEvaluation(n, 0, count, Batch{Tokens: inputs}); err != nil {
			t.Fatal(err)
		}
		for j := range count {
			if err := s.FillEvaluation(n, j, 1, Batch{Tokens: one}); err != nil {
				t.Fatal(err)
			}
			w := windowOf(inputs[j*4:])
			if !slices.Equal(one, inputs[j*4:j*4+4]) || w != j*100/count {
				t.Errorf("sample %d of %d is window %d, alone %d", j, count, w, windowOf(one))
			}
		}
	}
	if s.EvaluationSamples(-1) != 0 {
		t.Error("samples of less than none")
	}
}

func TestFillRefuses(t *testing.T) {
	s := memory(10, 4)
	good := Cursor{Pipeline: 1, Pipelines: 2, Batch: 3}
	room := make([]int32, 3*4)
	for name, c := range map[string]struct {
		first, count    int
		inputs, targets []int32
		want            string
	}{
		"past end": {1, 3, room, room, "3 samples from 1 on; the batch has 3"},
		"far past": {0, 1 << 62, room, room, "the batch has 3"},
		"before":   {-1, 1, room, room, "the batch has 3"},
		"short":    {0, 3, room[1:], room, "tokens have room for 11 values"},
		"long":     {0, 2, nil, room, "targets have room for 12 values"},
	} {
		err := s.Fill(good, c.first, c.count, Batch{Tokens: c.inputs, Targets: c.targets})
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: error %v, want ...%s...", name, err, c.want)
		}
	}
	if err := s.FillEvaluation(4, 4, 3, Batch{Tokens: room}); err == nil || !strings.Contains(err.Error(), "evaluation has 4") {
		t.Errorf("evaluation: error %v", err)
	}
}

// TestSamplesThatFillUpAMicroBatchDoNotCount: they repeat the last, without targets.
func TestSamplesThatFillUpAMicroBatchDoNotCount(t *testing.T) {
	text := []byte("abcdefghijklm")
	s := &Set{task: Language, sequence: 4, held: ofBytes(text, 4)}
	inputs, targets := make([]int32, 3*4), make([]int32, 3*4)
	if err := s.FillEvaluation(99, 1, 3, Batch{Tokens: inputs, Targets: targets}); err != nil {
		t.Fatal(err)
	}
	if got := show(inputs, 4) + " -> " + show(targets[:8], 4); got != "efgh ijkl ijkl -> fghi jklm" || !slices.Equal(targets[8:], []int32{Ignored, Ignored, Ignored, Ignored}) {
		t.Errorf("got %s %v", got, targets[8:])
	}
}

func TestFillAllocatesNothing(t *testing.T) {
	s := memory(1000, 8)
	c := Cursor{Pipelines: 2, Batch: 16}
	inputs, targets := make([]int32, 16*8), make([]int32, 16*8)
	if n := envtest.Allocations(100, func() {
		if err := s.Fill(c, 0, 16, Batch{Tokens: inputs, Targets: targets}); err != nil {
			t.Fatal(err)
		}
		c.Step++
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

// TestOrderNeverChanges holds the first samples of fixed data against a recorded file: a job that was started by an older
// version has to go on with the samples that it has not seen.
func TestOrderNeverChanges(t *testing.T) {
	datadriven.RunTest(t, "testdata/order", func(t *testing.T, d *datadriven.TestData) string {
		var size, seed, pipelines, batch, steps int
		switch d.Cmd {
		case "permutation": // windows in the order of an epoch
			var epoch int
			d.ScanArgs(t, "size", &size)
			d.ScanArgs(t, "seed", &seed)
			d.ScanArgs(t, "epoch", &epoch)
			p := newPermutation(uint64(seed), uint64(epoch), uint64(size))
			var out []string
			for i := range uint64(min(size, 20)) {
				out = append(out, strconv.FormatUint(p.at(i), 10))
			}
			return strings.Join(out, " ") + "\n"
		case "batches": // the input's lines are files; inputs, a line for each step and pipeline
			d.ScanArgs(t, "seed", &seed)
			d.ScanArgs(t, "pipelines", &pipelines)
			d.ScanArgs(t, "batch", &batch)
			d.ScanArgs(t, "steps", &steps)
			files := map[string]string{}
			for i, line := range strings.Split(d.Input, "\n") {
				files[fmt.Sprintf("f%02d", i)] = line
			}
			s := open(t, Config{Files: []string{corpus(t, files)}, Sequence: 6, Holdout: 0.2, Seed: uint64(seed)})
			var b strings.Builder
			fmt.Fprintf(&b, "%v\ntrain %q\nheld  %q\n", s.Identity, textOf(s.train), textOf(s.held))
			inputs := make([]int32, batch*6)
			for step := range steps {
				for i := range pipelines {
					c := Cursor{Pipeline: i, Pipelines: pipelines, Batch: batch}
					c.Step = uint64(step)
					if err := s.Fill(c, 0, batch, Batch{Tokens: inputs}); err != nil {
						t.Fatal(err)
					}
					fmt.Fprintf(&b, "step %d pipeline %d: %s\n", step, i, show(inputs, 6))
				}
			}
			return b.String()
		default:
			d.Fatalf(t, "unknown command %q", d.Cmd)
			return ""
		}
	})
}

// show prints samples of a length as text, separators as slashes.
func show(ids []int32, length int) string {
	var out []string
	for sample := range slices.Chunk(ids, length) {
		text := make([]byte, len(sample))
		for i, id := range sample {
			text[i] = byte(id)
			if id == tokenizer.ByteEnd {
				text[i] = '/'
			}
		}
		out = append(out, strings.ReplaceAll(string(text), " ", "_"))
	}
	return strings.Join(out, " ")
}

// TestTokensOverwrittenInPlaceEndTheReading: while samples are read, and when the data are opened again, whatever the header says.
func TestTokensOverwrittenInPlaceEndTheReading(t *testing.T) {
	path := writeTokens(t, strings.Repeat("some text of a few words. ", 200))
	c := Config{Format: "tokens", Files: []string{path}, Sequence: 8}
	s := open(t, c)
	cursor, room := Cursor{Pipelines: 1, Batch: 4}, make([]int32, 32)
	b := Batch{Tokens: room, Targets: make([]int32, 32)}
	if err := s.Fill(cursor, 0, 4, b); err != nil {
		t.Fatal(err)
	}
	file, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := file.WriteAt([]byte("zzzz"), 1000); err != nil {
		t.Fatal(err)
	}
	// A file system that tells times to a few milliseconds may give the same one again.
	if err := errors.Join(file.Close(), os.Chtimes(path, time.Time{}, time.Unix(1e9, 1))); err != nil {
		t.Fatal(err)
	}
	for what, err := range map[string]error{"samples": s.Fill(cursor, 0, 4, b), "evaluation": s.FillEvaluation(4, 0, 4, b)} {
		if err == nil || !strings.Contains(err.Error(), "was overwritten while it was read") {
			t.Errorf("%s: %v", what, err)
		}
	}
	if _, err := Open(t.Context(), c); err == nil || !strings.Contains(err.Error(), "its header says") {
		t.Errorf("opened again: %v", err)
	}
}
