package data

import (
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/avgpipe/avgpipe/internal/envtest"
)

// batch makes room for n samples of a set.
func batch(s *Set, n int) Batch {
	tokens := func() []int32 { return make([]int32, n*s.sequence) }
	switch s.task {
	case Samples:
		return Batch{Tokens: tokens(), Targets: tokens()}
	case Images:
		return Batch{Pixels: make([]float32, n*s.image.Values()), Targets: make([]int32, n)}
	case Classification:
		return Batch{Tokens: tokens(), Types: tokens(), Mask: tokens(), Targets: make([]int32, n)}
	case Translation:
		return Batch{Tokens: tokens(), Mask: tokens(), Decoder: tokens(), Targets: tokens()}
	case Language, MaskedLanguage:
	}
	return Batch{Tokens: tokens(), Types: tokens(), Mask: tokens(), Targets: tokens()}
}

// everything fills the n samples of an evaluation of all that is held out.
func everything(t *testing.T, s *Set) Batch {
	t.Helper()
	n := int(s.HeldOut())
	b := batch(s, n)
	if err := s.FillEvaluation(n, 0, n, b); err != nil {
		t.Fatal(err)
	}
	return b
}

const bertFile = "tokenizer/testdata/bert.json"

// absolute is the path of a file of this package.
func absolute(t testing.TB, path string) string {
	t.Helper()
	path, err := filepath.Abs(path)
	if err != nil {
		t.Fatal(err)
	}
	return path
}

// TestClassification: a text and a pair, padded and cut, by hand.
func TestClassification(t *testing.T) {
	files := map[string]string{"a.jsonl": `{"q": "abc", "r": "de", "c": "yes"}
{"q": "abcdefgh", "r": "xy", "c": "no"}
{"q": "", "r": "12345678", "c": "yes"}
`}
	dir := corpus(t, files)
	c := Config{
		Task: Classification, Files: []string{dir}, Validation: []string{dir}, Format: "jsonl", Sequence: 9,
		Columns: Columns{Text: "q", TextPair: "r", Label: "c"},
	}
	s := open(t, c)
	b := everything(t, s)
	if got := fmt.Sprint(s.Labels, b.Targets); got != "[no yes] [1 0 1]" {
		t.Error(got)
	}
	const begin, end, pad = 2, 3, 0
	for j, want := range []struct{ ids, types, mask []int32 }{
		{[]int32{begin, 'a', 'b', 'c', end, 'd', 'e', end, pad}, []int32{0, 0, 0, 0, 0, 1, 1, 1, 0}, []int32{1, 1, 1, 1, 1, 1, 1, 1, 0}},
		{[]int32{begin, 'a', 'b', 'c', 'd', end, 'x', 'y', end}, []int32{0, 0, 0, 0, 0, 0, 1, 1, 1}, []int32{1, 1, 1, 1, 1, 1, 1, 1, 1}},
		{[]int32{begin, end, '1', '2', '3', '4', '5', '6', end}, []int32{0, 0, 1, 1, 1, 1, 1, 1, 1}, []int32{1, 1, 1, 1, 1, 1, 1, 1, 1}},
	} {
		if !slices.Equal(row(b.Tokens, j, 9), want.ids) || !slices.Equal(row(b.Types, j, 9), want.types) || !slices.Equal(row(b.Mask, j, 9), want.mask) {
			t.Errorf("sample %d: %v %v %v, want %v", j, row(b.Tokens, j, 9), row(b.Types, j, 9), row(b.Mask, j, 9), want)
		}
	}
	if notes := fmt.Sprint(s.Notes); !strings.Contains(notes, "were cut: 4") { // in both parts
		t.Error(notes)
	}
	c.Columns.TextPair = ""
	single := open(t, c)
	if got := everything(t, single); !slices.Equal(row(got.Tokens, 0, 9), []int32{begin, 'a', 'b', 'c', end, pad, pad, pad, pad}) {
		t.Error(got.Tokens)
	}
}

// TestTranslation: what the decoder is given is the target, one position late.
func TestTranslation(t *testing.T) {
	dir := corpus(t, map[string]string{"a.tsv": "source\ttarget\nabc\tde\nabcdef\tuvwxyz\na\tvwxyz\n"})
	s := open(t, Config{Task: Translation, Files: []string{dir}, Validation: []string{dir}, Format: "tsv", Sequence: 5})
	b := everything(t, s)
	const begin, end, pad, no = 2, 0, 0, Ignored
	for j, want := range []struct{ source, mask, decoder, target []int32 }{
		{[]int32{'a', 'b', 'c', end, pad}, []int32{1, 1, 1, 1, 0}, []int32{begin, 'd', 'e', pad, pad}, []int32{'d', 'e', end, no, no}},
		{[]int32{'a', 'b', 'c', 'd', end}, []int32{1, 1, 1, 1, 1}, []int32{begin, 'u', 'v', 'w', 'x'}, []int32{'u', 'v', 'w', 'x', 'y'}},
		{[]int32{'a', end, pad, pad, pad}, []int32{1, 1, 0, 0, 0}, []int32{begin, 'v', 'w', 'x', 'y'}, []int32{'v', 'w', 'x', 'y', 'z'}},
	} {
		if !slices.Equal(row(b.Tokens, j, 5), want.source) || !slices.Equal(row(b.Mask, j, 5), want.mask) ||
			!slices.Equal(row(b.Decoder, j, 5), want.decoder) || !slices.Equal(row(b.Targets, j, 5), want.target) {
			t.Errorf("sample %d: %v %v %v %v, want %v", j,
				row(b.Tokens, j, 5), row(b.Mask, j, 5), row(b.Decoder, j, 5), row(b.Targets, j, 5), want)
		}
	}
}

// TestMasking: the shares are BERT's, targets are the hidden tokens, and the same sample of the same epoch is always hidden
// the same way, differently in the next epoch.
func TestMasking(t *testing.T) {
	text := strings.Repeat("the stage computes a micro-batch and sends it to the next one\n", 400)
	dir := corpus(t, map[string]string{"a.txt": text})
	c := Config{Task: MaskedLanguage, Files: []string{dir}, Tokenizer: absolute(t, bertFile), Sequence: 64, Seed: 3}
	s := open(t, c)
	c.Task = Language
	c.Sequence = 62
	plain := open(t, c)
	special := s.Tokenizer.Special
	n := int(s.Samples())
	if n != int(plain.Samples()) || n < 100 {
		t.Fatal(n, plain.Samples())
	}
	all, origin := batch(s, n), batch(plain, n)
	cursor := Cursor{Pipelines: 1, Batch: n}
	if err := errors.Join(s.Fill(cursor, 0, n, all), plain.Fill(cursor, 0, n, origin)); err != nil {
		t.Fatal(err)
	}
	var chosen, hidden, kept, other, total int
	for j := range n {
		ids, targets, was := row(all.Tokens, j, 64), row(all.Targets, j, 64), row(origin.Tokens, j, 62)
		if ids[0] != special.Class || ids[63] != special.Separator || targets[0] != Ignored || targets[63] != Ignored {
			t.Fatal("no frame around", ids)
		}
		asked := 0
		for k, id := range ids[1:63] {
			total++
			target := targets[k+1]
			switch {
			case target == Ignored && id != was[k]:
				t.Fatalf("token %d is %d, was %d, and is not asked for", k, id, was[k])
			case target == Ignored:
				continue
			case target != was[k]:
				t.Fatalf("target %d is %d, was %d", k, target, was[k])
			}
			asked++
			chosen++
			switch id {
			case special.Mask:
				hidden++
			case was[k]:
				kept++
			default:
				other++
			}
		}
		if asked == 0 {
			t.Error("a sample asks for nothing")
		}
	}
	share := func(a, b int) float64 { return float64(a) / float64(b) }
	if x := share(chosen, total); x < 0.13 || x > 0.17 {
		t.Errorf("%.3f of the tokens are asked for", x)
	}
	if x, y, z := share(hidden, chosen), share(kept, chosen), share(other, chosen); x < 0.76 || x > 0.84 || y < 0.07 || y > 0.13 || z < 0.07 || z > 0.13 {
		t.Errorf("%.3f are hidden, %.3f kept, %.3f replaced", x, y, z)
	}
	again, next := batch(s, n), batch(s, n)
	for j := range n { // one by one
		one := Batch{Tokens: row(again.Tokens, j, 64), Targets: row(again.Targets, j, 64)}
		if err := s.Fill(cursor, j, 1, one); err != nil {
			t.Fatal(err)
		}
	}
	if !slices.Equal(again.Tokens, all.Tokens) || !slices.Equal(again.Targets, all.Targets) {
		t.Error("one by one they are hidden otherwise")
	}
	if err := s.Fill(Cursor{Pipelines: 1, Batch: n, Step: 1}, 0, n, next); err != nil {
		t.Fatal(err)
	}
	if slices.Equal(next.Targets, all.Targets) {
		t.Error("the next epoch hides the same tokens")
	}
}

// TestSplitBySamples: both parts together are all samples, each once, whatever the seed, and the share is kept.
func TestSplitBySamples(t *testing.T) {
	for _, n := range []int{2, 3, 19, 100, 257} {
		var rows strings.Builder
		for i := range n {
			fmt.Fprintf(&rows, "%d,%c\n", i%2, rune(0x100+i))
		}
		dir := corpus(t, map[string]string{"a.csv": rows.String()})
		c := Config{Task: Classification, Files: []string{dir}, Format: "csv", NoHeader: true, Columns: Columns{Label: "1", Text: "2"}, Sequence: 4, Holdout: 0.1}
		var before Batch
		for seed := range uint64(2) {
			c.Seed = seed
			s := open(t, c)
			if want := max(1, (n+5)/10); int(s.HeldOut()) != want || int(s.Samples()) != n-want {
				t.Errorf("%d samples: %d are held out, %d trained on", n, s.HeldOut(), s.Samples())
			}
			held := everything(t, s)
			if seed > 0 && !slices.Equal(held.Tokens, before.Tokens) {
				t.Error("the seed changes what is held out")
			}
			before = held
			train := batch(s, int(s.Samples()))
			if err := s.Fill(Cursor{Pipelines: 1, Batch: int(s.Samples())}, 0, int(s.Samples()), train); err != nil {
				t.Fatal(err)
			}
			seen := map[[4]int32]int{}
			for sample := range slices.Chunk(append(slices.Clone(train.Tokens), held.Tokens...), 4) {
				seen[[4]int32(sample)]++
			}
			if len(seen) != n {
				t.Errorf("%d different samples of %d", len(seen), n)
			}
		}
	}
}

// TestAnEpochOfEveryTask consumes each sample once.
func TestAnEpochOfEveryTask(t *testing.T) {
	var csv strings.Builder
	csv.WriteString("label,text,source,target\n")
	for i := range 67 {
		fmt.Fprintf(&csv, "%d,%c,%c,x\n", i%2, rune(0x100+i), rune(0x100+i))
	}
	pixels := make([]byte, 67)
	for i := range pixels {
		pixels[i] = byte(i)
	}
	for _, c := range []Config{
		{Task: Classification, Format: "csv", Files: []string{corpus(t, map[string]string{"a": csv.String()})}},
		{Task: Translation, Format: "csv", Files: []string{corpus(t, map[string]string{"a": csv.String()})}},
		{Task: Images, Format: "idx", Files: []string{corpus(t, map[string]string{
			"a": idxFile(pixels, 67, 1, 1), "b": idxFile(slices.Repeat([]byte{0, 1}, 34)[:67], 67),
		})}},
	} {
		c.Sequence, c.Seed = 4, 9
		s := open(t, c)
		seen := map[string]int{}
		for step := range s.Samples()/6 + 1 {
			for i := range 2 {
				b, cursor := batch(s, 3), Cursor{Pipeline: i, Pipelines: 2, Batch: 3, Step: step}
				if err := s.Fill(cursor, 0, 3, b); err != nil {
					t.Fatal(err)
				}
				for j := range 3 {
					if cursor.Position(j) < s.Samples() { // of the first epoch
						seen[fmt.Sprint(row(b.Tokens, j, 4), row(b.Pixels, j, 1))]++
					}
				}
			}
		}
		if len(seen) != int(s.Samples()) {
			t.Errorf("%s: %d samples of %d were seen", c.Task, len(seen), s.Samples())
		}
		for sample, n := range seen {
			if n != 1 {
				t.Errorf("%s: %s was seen %d times", c.Task, sample, n)
			}
		}
	}
}

func TestFillOfEveryTaskAllocatesNothing(t *testing.T) {
	csv := "label,text,source,target\n" + strings.Repeat("0,abc,abcd,efg\n1,de,a,bc\n", 40)
	dir := corpus(t, map[string]string{"a": csv})
	for _, c := range []Config{
		{Task: Classification, Format: "csv", Files: []string{dir}},
		{Task: Translation, Format: "csv", Files: []string{dir}},
		{Task: MaskedLanguage, Format: "csv", Files: []string{dir}},
		{Task: Language, Format: "tokens", Files: []string{writeTokens(t, csv)}},
	} {
		c.Sequence = 8
		s := open(t, c)
		b, cursor := batch(s, 6), Cursor{Pipelines: 2, Batch: 6}
		if n := envtest.Allocations(50, func() {
			if err := s.Fill(cursor, 0, 6, b); err != nil {
				t.Fatal(err)
			}
			cursor.Step++
		}); n != 0 {
			t.Errorf("%s from %s: %v allocations", c.Task, c.Format, n)
		}
	}
}

// TestWhatIsTrainedOnAndEvaluatedIsNamed: the loss of the same texts says nothing about others.
func TestWhatIsTrainedOnAndEvaluatedIsNamed(t *testing.T) {
	dir := corpus(t, map[string]string{"a.txt": strings.Repeat("some text. ", 50), "b.txt": strings.Repeat("other text. ", 50)})
	a, b := filepath.Join(dir, "a.txt"), filepath.Join(dir, "b.txt")
	for _, c := range []struct {
		validation string
		noted      bool
	}{{a, true}, {b, false}} {
		s := open(t, Config{Task: Language, Format: "text", Files: []string{a}, Validation: []string{c.validation}, Sequence: 8})
		if notes := fmt.Sprint(s.Notes); strings.Contains(notes, "1 file trained on as well ("+a) != c.noted {
			t.Errorf("evaluated on %s: %s", c.validation, notes)
		}
	}
}
