package data

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/avgpipe/avgpipe/internal/data/tokenizer"
	"github.com/avgpipe/avgpipe/internal/envtest"
)

// corpus writes files, by name, below a new directory.
func corpus(t *testing.T, files map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	for name, text := range files {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// numbered returns n files of size bytes each, every byte telling file and place apart as far as a byte can.
func numbered(n, size int) map[string]string {
	files := map[string]string{}
	for i := range n {
		text := make([]byte, size)
		for j := range text {
			text[j] = byte(1 + (i*31+j*7)%255)
		}
		files[fmt.Sprintf("d%d/f%03d.txt", i%3, i)] = string(text)
	}
	return files
}

func open(t *testing.T, c Config) *Set {
	t.Helper()
	s, err := Open(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// textOf is the text that windows of bytes lie in.
func textOf(s samples) []byte {
	var text []byte
	for _, r := range s.(windows).parts {
		text = append(text, r.raw...)
	}
	return text
}

// ofBytes makes windows of text whose tokens are its bytes.
func ofBytes(text []byte, sequence int) windows {
	return windows{joined: join([]run{{raw: text, width: 1}}), sequence: sequence, vocabulary: 256}
}

// TestTheTextIsTheFilesInOrder: what is held is every file once, in order of names, with a separator after each.
func TestTheTextIsTheFilesInOrder(t *testing.T) {
	files := numbered(40, 50)
	s := open(t, Config{Files: []string{corpus(t, files)}, Sequence: 8, Holdout: 0.2})
	seen := map[string]bool{}
	for part, text := range map[string][]byte{"train": textOf(s.train), "held": textOf(s.held)} {
		if text[len(text)-1] != tokenizer.ByteEnd {
			t.Fatalf("%s does not end with a separator", part)
		}
		var names []string
		for one := range bytes.SplitSeq(text[:len(text)-1], []byte{tokenizer.ByteEnd}) {
			i := slices.IndexFunc(slices.Collect(maps.Values(files)), func(v string) bool { return v == string(one) })
			if i < 0 {
				t.Fatalf("%s holds %q, which is no file", part, one)
			}
			for name, v := range files {
				if v == string(one) {
					names = append(names, name)
				}
			}
		}
		if !slices.IsSorted(names) {
			t.Errorf("%s is not in order: %v", part, names)
		}
		for _, name := range names {
			if seen[name] {
				t.Errorf("%s is there twice", name)
			}
			seen[name] = true
		}
	}
	if len(seen) != len(files) {
		t.Errorf("%d files of %d", len(seen), len(files))
	}
}

// TestDivide: both parts have a window, nothing is lost, and the share is kept, for corpora of every shape.
func TestDivide(t *testing.T) {
	for name, sizes := range map[string][]int64{
		"one file": {100_000}, "two": {500, 500}, "one large among small": {10, 20, 100_000, 30},
		"shorter than a window": slices.Repeat([]int64{7}, 1000), "many": slices.Repeat([]int64{1000, 300, 5000}, 100),
		"barely enough": {43}, "barely enough, cut up": {5, 5, 5, 5, 5, 5, 5, 2},
	} {
		for _, share := range []float64{0.001, 0.05, 0.3, 0.5} {
			const sequence = 20
			var files []File
			var total int64
			for i, n := range sizes {
				files = append(files, File{Name: strconv.Itoa(i), Bytes: n})
				total += n + 1
			}
			train, held, err := divide(files, share, sequence)
			if err != nil {
				t.Errorf("%s: %v", name, err)
				continue
			}
			if tokens(train) <= sequence || tokens(held) <= sequence {
				t.Errorf("%s, %v: %d and %d tokens, a window is %d", name, share, tokens(train), tokens(held), sequence+1)
			}
			covered := make([]int64, len(files))
			for _, p := range append(slices.Clone(train), held...) {
				if p.first != covered[p.file] || p.size < 1 {
					t.Errorf("%s, %v: piece %+v; bytes up to %d are covered", name, share, p, covered[p.file])
				}
				covered[p.file] += p.size
			}
			for i := range files {
				if covered[i] != sizes[i] {
					t.Errorf("%s, %v: %d of %d bytes of file %d", name, share, covered[i], sizes[i], i)
				}
			}
			if got, most := tokens(held), max(int64(share*float64(total)), sequence+1)+sequence+2; got > most {
				t.Errorf("%s, %v: %d of %d tokens are held out, at most %d are wanted", name, share, got, total, most)
			}
		}
	}
}

// TestHoldoutFollowsNames: a file's part depends on no seed and not on where the corpus lies.
func TestHoldoutFollowsNames(t *testing.T) {
	files := numbered(60, 40)
	a := open(t, Config{Files: []string{corpus(t, files)}, Sequence: 8, Holdout: 0.1, Seed: 1})
	b := open(t, Config{Files: []string{corpus(t, files) + "/**/*.txt"}, Sequence: 8, Holdout: 0.1, Seed: 2})
	if !bytes.Equal(textOf(a.held), textOf(b.held)) || !bytes.Equal(textOf(a.train), textOf(b.train)) {
		t.Error("the parts differ")
	}
	if a.Identity != b.Identity {
		t.Errorf("%v and %v", a.Identity, b.Identity)
	}
}

// TestIdentityTellsChangesApart: a byte, a name or a file more is another corpus.
func TestIdentityTellsChangesApart(t *testing.T) {
	base := map[string]string{"a": strings.Repeat("x", 100), "b": strings.Repeat("y", 100)}
	changed := maps.Clone(base)
	changed["a"] = strings.Repeat("x", 99) + "z"
	renamed := map[string]string{"a": base["a"], "c": base["b"]}
	more := maps.Clone(base)
	more["c"] = "z"
	moved := map[string]string{"a": base["a"] + "y", "b": base["b"][1:]}
	was := open(t, Config{Files: []string{corpus(t, base)}, Sequence: 4}).Identity
	for name, files := range map[string]map[string]string{"byte": changed, "name": renamed, "file": more, "boundary": moved} {
		is := open(t, Config{Files: []string{corpus(t, files)}, Sequence: 4}).Identity
		if is == was {
			t.Errorf("%s: still %v", name, is)
		}
	}
}

// TestOpenRefuses: each error is under the key of the job file that is to blame, with the nearest that would do.
func TestOpenRefuses(t *testing.T) {
	dir := corpus(t, map[string]string{
		"corpus.txt": strings.Repeat("text ", 100), "empty/none.txt": "", ".hidden/x.txt": "x", "deep/er/a.go": "x",
	})
	if err := os.Mkdir(filepath.Join(dir, "void"), 0o755); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		config             Config
		key, text, nearest string
	}{
		"no entries": {Config{}, "data.files", "no files are named", ""},
		"misspelt":   {Config{Files: []string{"corpus.text"}}, "data.files[0]", "corpus.text does not exist", "corpus.txt"},
		"misspelt directory": {
			Config{Files: []string{"corpus.txt", "depe/er/a.go"}}, "data.files[1]", "depe/er/a.go does not exist", "deep",
		},
		"no match":      {Config{Files: []string{"**/*.rs"}}, "data.files[0]", "matches none of 3 files below", ""},
		"only empty":    {Config{Files: []string{"empty"}}, "data.files[0]", "has only empty files (1)", ""},
		"empty":         {Config{Files: []string{"empty/none.txt"}}, "data.files[0]", "none.txt is empty", ""},
		"nothing below": {Config{Files: []string{"void"}}, "data.files[0]", "has no files below it", ""},
		"bad pattern":   {Config{Files: []string{"*.{go"}}, "data.files[0]", "unbalanced", ""},
		"too long":      {Config{Files: []string{"corpus.txt"}, Sequence: 400}, "data.sequence", "at least 803", "249"},
		"just too long": {Config{Files: []string{"corpus.txt"}, Sequence: 250}, "data.sequence", "at least 503", "249"},
		"no sequence":   {Config{Files: []string{"corpus.txt"}, Sequence: -1}, "data.sequence", "at least 1", "1"},
		"tiny":          {Config{Files: []string{"deep"}}, "data.files", "hold 2 tokens, too few", ""},
		"cap":           {Config{Files: []string{"corpus.txt"}, CapBytes: 100}, "data.files", "501 bytes, above the 100", ""},
		"format":        {Config{Files: []string{"corpus.txt"}, Format: "txt"}, "data.format", "does not hold", "text"},
		"holdout":       {Config{Files: []string{"corpus.txt"}, Holdout: 0.6}, "data.holdout", "at most 0.5", "0.05"},
	} {
		t.Run(name, func(t *testing.T) {
			if c.config.Sequence == 0 {
				c.config.Sequence = 16
			}
			if c.config.Sequence == -7 {
				c.config.Sequence = 16
			} else {
				for i := range c.config.Files {
					c.config.Files[i] = filepath.Join(dir, c.config.Files[i])
				}
			}
			if c.nearest == "corpus.txt" || c.nearest == "deep" {
				c.nearest = filepath.Join(dir, c.nearest)
			}
			_, err := Open(t.Context(), c.config)
			e, ok := errors.AsType[*Error](err)
			if !ok {
				t.Fatalf("error is %v, want an *Error", err)
			}
			if e.Key != c.key || !strings.Contains(e.Err.Error(), c.text) || e.Nearest != c.nearest {
				t.Errorf("got %q: %q nearest %q\nwant %q: ...%s... nearest %q", e.Key, e.Err, e.Nearest, c.key, c.text, c.nearest)
			}
			if _, checked := Check(t.Context(), c.config); checked == nil || checked.Error() != err.Error() {
				t.Errorf("Check says %v", checked)
			}
		})
	}
}

// TestTheLongestSequenceThatIsNamedFits: the nearest value of the error is accepted.
func TestTheLongestSequenceThatIsNamedFits(t *testing.T) {
	dir := corpus(t, map[string]string{"corpus.txt": strings.Repeat("text ", 100)})
	s := open(t, Config{Files: []string{dir}, Sequence: 249})
	if s.Samples() != 1 || s.HeldOut() != 1 {
		t.Errorf("%d windows to train on and %d held out", s.Samples(), s.HeldOut())
	}
}

// TestAFileThatChangesIsRefused: it is longer or shorter than it was when listed.
func TestAFileThatChangesIsRefused(t *testing.T) {
	dir := corpus(t, map[string]string{"a": "0123456789"})
	for size, want := range map[int64]string{9: "became longer", 11: "became shorter"} {
		f := File{Path: filepath.Join(dir, "a"), Name: "a", Bytes: size}
		o := &opener{vocab: tokenizer.Bytes()}
		text := o.textFile(f, func(string, bool) error { return nil })
		_, sum := o.sumOf(f)
		for _, err := range []error{text, sum} {
			if err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), f.Path) {
				t.Errorf("listed with %d bytes: %v", size, err)
			}
		}
	}
}

// goroot is where the Go tool chain lies: a test that is built with -trimpath does not know.
func goroot(t testing.TB) string {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), "go", "env", "GOROOT").Output()
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(string(out))
}

// TestTheStandardLibrary opens what the example job trains on.
func TestTheStandardLibrary(t *testing.T) {
	root := goroot(t)
	if _, err := os.Stat(filepath.Join(root, "src", "fmt")); err != nil {
		envtest.Missing(t, "the standard library's source is not installed")
	}
	c := Config{Files: []string{filepath.Join(root, "src/fmt/**/*.go")}, Sequence: 128, Holdout: 0.05}
	sum, err := Check(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	s := open(t, c)
	if s.Samples() != sum.Samples || s.HeldOut() != sum.HeldOut || s.Identity.Bytes != sum.Bytes || s.Identity.Files != sum.Files {
		t.Errorf("Check foretold %+v; open has %d and %d windows of %v", sum, s.Samples(), s.HeldOut(), s.Identity)
	}
	if !bytes.Contains(textOf(s.train), []byte("package fmt")) {
		t.Error("no package clause in the text")
	}
}
