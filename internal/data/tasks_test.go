package data

import (
	"errors"
	"fmt"
	"image"
	"image/color"
	"image/jpeg"
	"image/png"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/avgpipe/avgpipe/internal/data/table"
	"github.com/avgpipe/avgpipe/internal/data/tokenfile"
	"github.com/avgpipe/avgpipe/internal/data/tokenizer"
)

// batch makes room for n samples of a set.
func batch(s *Set, n int) Batch {
	tokens := func() []int32 { return make([]int32, n*s.Sequence()) }
	switch s.Task() {
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
	if got := fmt.Sprint(s.Labels(), b.Targets); got != "[no yes] [1 0 1]" {
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
	if notes := fmt.Sprint(s.Notes()); !strings.Contains(notes, "were cut: 4") { // in both parts
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
	special := s.Tokenizer().Special()
	n := int(s.Samples())
	if n != int(plain.Samples()) || n < 100 {
		t.Fatal(n, plain.Samples())
	}
	all, origin := batch(s, n), batch(plain, n)
	cursor := s.Cursor(0, 1, n)
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
	if err := s.Fill(cursor.Next(), 0, n, next); err != nil {
		t.Fatal(err)
	}
	if slices.Equal(next.Targets, all.Targets) {
		t.Error("the next epoch hides the same tokens")
	}
}

// TestPackingJoinsDocuments of tables and of text files, an end token after each, whatever the tokenizer.
func TestPackingJoinsDocuments(t *testing.T) {
	tok, err := tokenizer.Open("tokenizer/testdata/gpt2.json")
	if err != nil {
		t.Fatal(err)
	}
	documents := []string{"The first one.", "the second, with \"quotes\"", "third", "a fourth to hold out some"}
	var want []int32
	e := tok.NewEncoder()
	var rows strings.Builder
	files := map[string]string{}
	for i, d := range documents {
		if want, err = e.Append(want, d); err != nil {
			t.Fatal(err)
		}
		want = append(want, tok.Special().End)
		fmt.Fprintf(&rows, "{\"body\": %q}\n", d)
		files[fmt.Sprintf("%d.txt", i)] = d
	}
	rows.WriteString("{\"body\": \"\"}\n")
	const sequence = 4
	for name, c := range map[string]Config{
		"table": {Files: []string{corpus(t, map[string]string{"a.jsonl": rows.String()})}, Format: "jsonl", Columns: Columns{Text: "body"}},
		"files": {Files: []string{corpus(t, files)}, Format: "text"},
	} {
		c.Sequence, c.Tokenizer, c.Validation = sequence, absolute(t, "tokenizer/testdata/gpt2.json"), c.Files
		s := open(t, c)
		b := everything(t, s)
		n := (len(want) - 1) / sequence * sequence
		if len(b.Tokens) != n || !slices.Equal(b.Tokens, want[:n]) || !slices.Equal(b.Targets, want[1:n+1]) {
			t.Errorf("%s: %v, want %v", name, b.Tokens, want)
		}
		if slices.Contains(b.Types, 1) || slices.Contains(b.Mask, 0) {
			t.Errorf("%s: types %v, mask %v", name, b.Types, b.Mask)
		}
	}
}

// TestPortionsAreTheText: a file longer than a portion has the tokens of the whole, and an error in it has its line.
func TestPortionsAreTheText(t *testing.T) {
	var b strings.Builder
	for i := 0; b.Len() < 3*portion; i++ {
		fmt.Fprintf(&b, "line %d of the text\n\n  indented, it's long\n", i)
	}
	text := b.String()
	file := absolute(t, "tokenizer/testdata/gpt2.json")
	tok, err := tokenizer.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	want, err := tok.NewEncoder().Append(nil, text)
	if err != nil {
		t.Fatal(err)
	}
	s := open(t, Config{Files: []string{corpus(t, map[string]string{"a": text})}, Tokenizer: file, Sequence: 7})
	got := make([]int32, s.train.(windows).total())
	s.train.(windows).read(got, 0)
	if len(got) < len(want)/2 || !slices.Equal(got[:len(got)-1], want[:len(got)-1]) {
		t.Errorf("%d tokens differ from the %d of the whole", len(got), len(want))
	}
	bad := text + "and\n\xff no UTF-8\n"
	_, err = Open(t.Context(), Config{Files: []string{corpus(t, map[string]string{"a": bad})}, Tokenizer: file, Sequence: 7})
	if want := fmt.Sprintf(":%d: it is not UTF-8", strings.Count(text, "\n")+2); err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("error %v, want %s", err, want)
	}
}

// writeTokens writes a token file of documents of bytes.
func writeTokens(t *testing.T, documents ...string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "f.tokens")
	w, err := tokenfile.Create(path, tokenfile.Header{Width: 1, Vocabulary: 256})
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range documents {
		var ids []int32
		for i := range len(d) {
			ids = append(ids, int32(d[i]))
		}
		if err := w.Add(ids, true); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return path
}

// TestTokenFilesAreTheText that they were made of: the same windows in the same order.
func TestTokenFilesAreTheText(t *testing.T) {
	one, two := strings.Repeat("abcdefg", 40), strings.Repeat("0123456789", 30)
	a := open(t, Config{Files: []string{corpus(t, map[string]string{"a": one}), corpus(t, map[string]string{"b": two})}, Sequence: 6, Holdout: 0.2})
	files := []string{writeTokens(t, one), writeTokens(t, two)}
	c := Config{Files: files, Format: "tokens", Sequence: 6, Holdout: 0.2}
	sum, err := Check(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	b := open(t, c)
	if b.Samples() != a.Samples() || b.HeldOut() != a.HeldOut() || sum.Samples != a.Samples() || sum.HeldOut != a.HeldOut() {
		t.Fatalf("%d and %d samples of the files, %d and %d of the text, foretold %+v", b.Samples(), b.HeldOut(), a.Samples(), a.HeldOut(), sum)
	}
	x, y := batch(a, 90), batch(b, 90)
	if err := errors.Join(a.Fill(a.Cursor(0, 1, 90), 0, 90, x), b.Fill(b.Cursor(0, 1, 90), 0, 90, y)); err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(x.Tokens, y.Tokens) || !slices.Equal(x.Targets, y.Targets) {
		t.Error("the samples differ")
	}
	if err := b.Close(); err != nil {
		t.Error(err)
	}
}

// TestATokenFileThatShrinksIsAnError, not the end of the process.
func TestATokenFileThatShrinksIsAnError(t *testing.T) {
	path := writeTokens(t, strings.Repeat("some text ", 2000))
	s := open(t, Config{Files: []string{path}, Format: "tokens", Sequence: 100})
	if err := os.Truncate(path, 200); err != nil {
		t.Fatal(err)
	}
	n := int(s.Samples())
	err := s.Fill(s.Cursor(0, 1, n), 0, n, batch(s, n))
	if err == nil || !strings.Contains(err.Error(), "became shorter") {
		t.Errorf("error %v", err)
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
}

// idxFile is an IDX file of bytes.
func idxFile(elements []byte, sizes ...int) string {
	out := []byte{0, 0, 8, byte(len(sizes))}
	for _, n := range sizes {
		out = append(out, byte(n>>24), byte(n>>16), byte(n>>8), byte(n))
	}
	return string(append(out, elements...))
}

// TestIDXImages: pixels are scaled, less the mean, over the deviation; channels come one after the other.
func TestIDXImages(t *testing.T) {
	dir := corpus(t, map[string]string{
		"images": idxFile([]byte{0, 255, 51, 102, 1, 2, 3, 4}, 2, 2, 2), "labels": idxFile([]byte{7, 1}, 2),
	})
	s := open(t, Config{
		Task: Images, Files: []string{dir}, Validation: []string{dir}, Format: "idx",
		Image: Image{1, 2, 2}, Mean: []float64{0.2}, Std: []float64{0.5}, ModelClasses: 10,
	})
	b := everything(t, s)
	if !slices.Equal(b.Targets, []int32{7, 1}) || len(s.Labels()) != 8 || s.Sequence() != 1 {
		t.Error(b.Targets, s.Labels())
	}
	for i, want := range []float64{-0.4, 1.6, 0, 0.4} {
		if got := float64(b.Pixels[i]); got < want-1e-6 || got > want+1e-6 {
			t.Errorf("pixel %d is %v, want %v", i, got, want)
		}
	}
	color := corpus(t, map[string]string{"images": idxFile([]byte{1, 2, 3, 4, 5, 6, 11, 12, 13, 14, 15, 16}, 2, 1, 2, 3), "labels": idxFile([]byte{0, 1}, 2)})
	b = everything(t, open(t, Config{Task: Images, Files: []string{color}, Validation: []string{color}, Format: "idx", Std: []float64{1. / 255, 1. / 255, 1. / 255}}))
	if got := fmt.Sprintf("%.0f", b.Pixels); got != "[1 4 2 5 3 6 11 14 12 15 13 16]" {
		t.Error(got)
	}
}

// TestImageFolders: the class is the directory; images are scaled to cover the shape, and their middle is cut out.
func TestImageFolders(t *testing.T) {
	dir := t.TempDir()
	paint := func(name string, w, h int, at func(x, y int) color.Color) {
		t.Helper()
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		file, err := os.Create(path)
		if err != nil {
			t.Fatal(err)
		}
		m := image.NewNRGBA(image.Rect(0, 0, w, h))
		for y := range h {
			for x := range w {
				m.Set(x, y, at(x, y))
			}
		}
		if strings.HasSuffix(name, ".png") {
			err = png.Encode(file, m)
		} else {
			err = jpeg.Encode(file, m, &jpeg.Options{Quality: 100})
		}
		if err := errors.Join(err, file.Close()); err != nil {
			t.Fatal(err)
		}
	}
	red := color.NRGBA{255, 0, 0, 255}
	paint("cat/a.png", 8, 4, func(x, _ int) color.Color { // black at the sides, which are cut off
		if x < 2 || x >= 6 {
			return color.Black
		}
		return red
	})
	paint("dog/b.jpg", 6, 6, func(int, int) color.Color { return color.White })
	paint("dog/c.png", 4, 4, func(int, int) color.Color { return color.NRGBA{255, 255, 255, 0} })
	s := open(t, Config{Task: Images, Files: []string{dir}, Validation: []string{dir}, Format: "images", Image: Image{3, 4, 4}, ModelClasses: 2})
	b := everything(t, s)
	if fmt.Sprint(s.Labels(), b.Targets) != "[cat dog] [0 1 1]" {
		t.Error(s.Labels(), b.Targets)
	}
	for i, v := range b.Pixels {
		want := float32(0)
		if i < 16 || i >= 48 && i < 96 { // the red of the first, all of the second; the third is transparent
			want = 1
		}
		if v < want-0.02 || v > want+0.02 {
			t.Fatalf("value %d is %v, want %v", i, v, want)
		}
	}
	grey := everything(t, open(t, Config{Task: Images, Files: []string{dir}, Validation: []string{dir}, Format: "images", Image: Image{1, 4, 4}}))
	if v := grey.Pixels[0]; v < 0.29 || v > 0.31 { // ITU-R BT.601
		t.Errorf("red is %v of white", v)
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
			if err := s.Fill(s.Cursor(0, 1, int(s.Samples())), 0, int(s.Samples()), train); err != nil {
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

// TestReshardingAnEpochOfEveryTask: after the number of pipelines changes at a round boundary, each sample of the epoch is
// still consumed once.
func TestReshardingAnEpochOfEveryTask(t *testing.T) {
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
		consume := func(cursors []Cursor, steps int) []Cursor {
			for range steps {
				for i := range cursors {
					b := batch(s, cursors[i].Batch)
					if err := s.Fill(cursors[i], 0, cursors[i].Batch, b); err != nil {
						t.Fatal(err)
					}
					for j := range cursors[i].Batch {
						if cursors[i].Position(j) < s.Samples() { // of the first epoch
							seen[fmt.Sprint(row(b.Tokens, j, 4), row(b.Pixels, j, 1))]++
						}
					}
					cursors[i] = cursors[i].Next()
				}
			}
			return cursors
		}
		cursors := []Cursor{s.Cursor(0, 2, 3), s.Cursor(1, 2, 3)}
		for _, next := range []struct{ pipelines, batch, steps int }{{3, 3, 3}, {1, 3, 2}, {4, 2, 9}} {
			cursors = consume(cursors, 2)
			var err error
			if cursors, err = Reshard(cursors, next.pipelines, next.batch); err != nil {
				t.Fatal(err)
			}
			cursors = consume(cursors, next.steps)
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
		b, cursor := batch(s, 6), s.Cursor(0, 2, 6)
		if n := testing.AllocsPerRun(50, func() {
			if err := s.Fill(cursor, 0, 6, b); err != nil {
				t.Fatal(err)
			}
			cursor = cursor.Next()
		}); n != 0 {
			t.Errorf("%s from %s: %v allocations", c.Task, c.Format, n)
		}
	}
}

// TestOpenRefusesBadContent: before training starts, with the file and the line.
func TestOpenRefusesBadContent(t *testing.T) {
	good := "text,label\na,yes\nb,no\n"
	one := func(content string) []string { return []string{corpus(t, map[string]string{"f": content})} }
	gpt2 := absolute(t, "tokenizer/testdata/gpt2.json")
	for name, c := range map[string]struct {
		config             Config
		key, text, nearest string
	}{
		"missing column": {Config{Task: Classification, Format: "csv", Files: one("text,lable\na,1\n")}, "data.columns", `/f:1: no column "label"`, "lable"},
		"short row":      {Config{Task: Classification, Format: "csv", Files: one(good + "c\n")}, "data.files", "/f:4: it has 1 fields", ""},
		"wrong label": {
			Config{Task: Classification, Format: "csv", Files: one(good + "c,yess\n"), Labels: []string{"no", "yes"}},
			"data.labels", `/f:4: the label "yess" is none of the 2 classes`, "yes",
		},
		"number beyond the labels": {
			Config{Task: Classification, Format: "csv", Files: one("text,label\na,0\nb,2\n"), Labels: []string{"no", "yes"}},
			"data.labels", `/f:3: the label "2"`, "",
		},
		"too many classes": {
			Config{Task: Classification, Format: "csv", Files: one(good + "c,maybe\n"), ModelClasses: 2},
			"data.columns.label", "there are 3 classes (maybe, no, yes), the model has 2", "",
		},
		"one class":    {Config{Task: Classification, Format: "csv", Files: one("text,label\na,x\nb,x\n")}, "data.files", "one class, x", ""},
		"one sample":   {Config{Task: Translation, Format: "csv", Files: one("source,target\na,b\n")}, "data.files", "1 sample", ""},
		"empty source": {Config{Task: Translation, Format: "csv", Files: one("source,target\na,b\n,c\n")}, "data.files", `/f:3: column "source" is empty`, ""},
		"unknown text": {
			Config{Task: Classification, Format: "csv", Files: one(good + "\u00e9,no\n"), Tokenizer: absolute(t, "testdata/letters.json")},
			"data.files", `/f:4: column "text": "é" has no token`, "",
		},
		"unknown text of a file": {
			Config{Files: one("a b\nb a\nc\n"), Tokenizer: absolute(t, "testdata/letters.json")}, "data.files", `/f:3: "c" has no token`, "",
		},
		"vocabulary":    {Config{Files: one(good), Tokenizer: gpt2, ModelVocabulary: 100}, "data.tokenizer", "makes 507 token ids, the model has room for 100", ""},
		"no mask":       {Config{Task: MaskedLanguage, Files: one(good), Tokenizer: gpt2}, "data.tokenizer", "no token that hides", ""},
		"no tokenizer":  {Config{Files: one(good), Tokenizer: "/no/such/tokenizer.json"}, "data.tokenizer", "no such file", ""},
		"frame":         {Config{Task: MaskedLanguage, Files: one(good), Tokenizer: absolute(t, bertFile), Sequence: 2}, "data.sequence", "no room", "3"},
		"token file":    {Config{Format: "tokens", Files: one("no token file, but text")}, "data.files", "not a token file", ""},
		"its tokenizer": {Config{Format: "tokens", Files: []string{writeTokens(t, good)}, Tokenizer: gpt2}, "data.tokenizer", "written with the tokenizer", ""},
		"images alone": {
			Config{Task: Images, Format: "idx", Files: one(idxFile([]byte{1}, 1, 1, 1))}, "data.files", "1 files of images and 0 of labels", "",
		},
		"counts": {
			Config{Task: Images, Format: "idx", Files: []string{corpus(t, map[string]string{
				"i": idxFile([]byte{1, 2}, 2, 1, 1), "l": idxFile([]byte{1, 2, 3}, 3),
			})}}, "data.files", "2 images, and", "",
		},
		"shape": {
			Config{Task: Images, Format: "idx", Image: Image{1, 28, 28}, Files: []string{corpus(t, map[string]string{
				"i": idxFile([]byte{1, 2}, 2, 1, 1), "l": idxFile([]byte{1, 2}, 2),
			})}}, "data.files", "the model takes {1 28 28}", "",
		},
		"no image":         {Config{Task: Images, Format: "images", Image: Image{3, 2, 2}, Files: one("text")}, "data.files", "neither PNG nor JPEG", ""},
		"numbers":          {Config{Task: Images, Format: "idx", Mean: []float64{1, 2}, Files: []string{corpus(t, map[string]string{"i": idxFile([]byte{1, 2}, 2, 1, 1), "l": idxFile([]byte{1, 2}, 2)})}}, "data.mean", "2 numbers for images of 1", ""},
		"cap":              {Config{Task: Classification, Format: "csv", Files: one(good), CapBytes: 20}, "data.files", "above the 20", ""},
		"format":           {Config{Task: Classification, Files: one(good)}, "data.format", "classification", "jsonl"},
		"column unread":    {Config{Format: "csv", Files: one(good), Columns: Columns{Label: "label"}}, "data.columns.label", "is not read", ""},
		"columns of text":  {Config{Files: one(good), Columns: Columns{Text: "text"}}, "data.columns.text", "is not read", ""},
		"labels unread":    {Config{Files: one(good), Labels: []string{"a", "b"}}, "data.labels", "is not read", ""},
		"label twice":      {Config{Task: Classification, Format: "csv", Files: one(good), Labels: []string{"a", "a"}}, "data.labels[1]", "twice", ""},
		"validation":       {Config{Files: one(strings.Repeat(good, 9)), Validation: []string{"/no/such"}}, "data.validation[0]", "does not exist", ""},
		"short validation": {Config{Files: one(strings.Repeat(good, 9)), Validation: one("short")}, "data.validation", "6 tokens, too few", ""},
	} {
		if c.config.Sequence == 0 {
			c.config.Sequence = 16
		}
		s, err := Open(t.Context(), c.config)
		e, ok := errors.AsType[*Error](err)
		if !ok || s != nil {
			t.Errorf("%s: error is %v, want an *Error", name, err)
			continue
		}
		if e.Key != c.key || !strings.Contains(e.Err.Error(), c.text) || e.Nearest != c.nearest {
			t.Errorf("%s: got %q: %q nearest %q\nwant %q: ...%s... nearest %q", name, e.Key, e.Err, e.Nearest, c.key, c.text, c.nearest)
		}
	}
}

// TestCheckFindsWhatTheStartTells, without reading on: a column that is not there, a damaged header, a wrong tokenizer.
func TestCheckFindsWhatTheStartTells(t *testing.T) {
	bad := Config{Task: Classification, Format: "csv", Sequence: 4, Files: []string{corpus(t, map[string]string{"f": "a,b\n1,2\n"})}}
	if _, err := Check(t.Context(), bad); err == nil || !strings.Contains(err.Error(), `no column "label"`) {
		t.Errorf("error %v", err)
	}
	late := Config{Task: Classification, Format: "csv", Sequence: 4, Files: []string{corpus(t, map[string]string{"f": "text,label\na,1\nb\n"})}}
	if sum, err := Check(t.Context(), late); err != nil || sum.Files != 1 || sum.Samples != 0 {
		t.Errorf("%+v %v", sum, err)
	}
	_, err := Open(t.Context(), late)
	if e, ok := errors.AsType[*table.Error](err); !ok || e.Line != 3 {
		t.Errorf("error %v", err)
	}
	refused := errors.New("not for you")
	late.Tokenizer = absolute(t, bertFile)
	late.Access = func(path string) error {
		if path == late.Tokenizer {
			return refused
		}
		return nil
	}
	if _, err := Check(t.Context(), late); !errors.Is(err, refused) {
		t.Errorf("error %v", err)
	}
}

// TestIdentityCountsTheTokenizer: the same files in other tokens are other data.
func TestIdentityCountsTheTokenizer(t *testing.T) {
	c := Config{Files: []string{corpus(t, map[string]string{"a": strings.Repeat("some text. ", 50)})}, Sequence: 4}
	seen := map[string]string{}
	for _, name := range []string{"", "gpt2", "bert", "roberta"} {
		if name != "" {
			c.Tokenizer = absolute(t, "tokenizer/testdata/"+name+".json")
		}
		digest := open(t, c).Identity().Digest
		if other, ok := seen[digest]; ok {
			t.Errorf("%q and %q have the same identity", name, other)
		}
		seen[digest] = name
	}
}
