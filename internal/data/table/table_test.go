package table

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/parquet-go/parquet-go"
)

// write makes a file.
func write(t testing.TB, name, content string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// read prints rows: "LINE:VALUE|VALUE".
func read(path string, c Config) (rows []string, err error) {
	err = Read(nil, path, c, func(r Row) error {
		rows = append(rows, fmt.Sprintf("%d:%s", r.Line, strings.Join(r.Values, "|")))
		return nil
	})
	return rows, err
}

// TestRows reads the same kind of rows of every text format.
func TestRows(t *testing.T) {
	for name, c := range map[string]struct {
		config  Config
		content string
		want    []string
	}{
		"jsonl": {
			Config{Format: JSONL, Columns: []string{"text", "label"}},
			"{\"label\": 1, \"text\": \"a\\nb \\u00e9\", \"other\": null}\n{\"text\": \"\", \"label\": true}\r\n{\"text\": \"no end\", \"label\": -1.50}",
			[]string{"1:a\nb é|1", "2:|true", "3:no end|-1.50"},
		},
		"byte order mark": {
			Config{Format: CSV, Header: true, Columns: []string{"a"}}, "\xef\xbb\xbfa,b\n1,2\n", []string{"2:1"},
		},
		"csv": {
			Config{Format: CSV, Header: true, Columns: []string{"label", "text"}},
			"text,label\n\"quoted, \"\"twice\"\"\nover lines\",1\nplain,2\n",
			[]string{"2:1|quoted, \"twice\"\nover lines", "4:2|plain"},
		},
		"csv without a header": {
			Config{Format: CSV, Columns: []string{"2", "1"}}, "a,b\nc,d\n", []string{"1:b|a", "2:d|c"},
		},
		"tsv": {
			Config{Format: TSV, Header: true, Columns: []string{"text"}},
			"text\tlabel\nit is 5\" wide\t1\n\"\t2",
			[]string{"2:it is 5\" wide", "3:\""},
		},
		"tsv without a header": {Config{Format: TSV, Columns: []string{"1"}}, "a\tb\r\n", []string{"1:a"}},
	} {
		got, err := read(write(t, "f", c.content), c.config)
		if err != nil || !slices.Equal(got, c.want) {
			t.Errorf("%s: got %q %v, want %q", name, got, err, c.want)
		}
	}
}

type both struct {
	Text  string  `parquet:"text,dict"`
	Label int64   `parquet:"label,delta"`
	Maybe *string `parquet:"maybe,optional"`
	List  []int32 `parquet:"list"`
	Score float64 `parquet:"score"`
}

// writeParquet makes a file of n rows in groups.
func writeParquet(t testing.TB, n, group int) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "f.parquet")
	file, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	w := parquet.NewGenericWriter[both](file, parquet.MaxRowsPerRowGroup(int64(group)), parquet.PageBufferSize(1024))
	for i := range n {
		row := both{Text: fmt.Sprintf("text %d", i), Label: int64(i % 3), List: []int32{1, 2}, Score: 0.5}
		if i != 700 {
			row.Maybe = &row.Text
		}
		if _, err := w.Write([]both{row}); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(w.Close(), file.Close()); err != nil {
		t.Fatal(err)
	}
	return path
}

// TestParquet reads columns of several types over several row groups and pages.
func TestParquet(t *testing.T) {
	path := writeParquet(t, 1000, 300)
	got, err := read(path, Config{Format: Parquet, Columns: []string{"label", "text", "score"}})
	if err != nil || len(got) != 1000 {
		t.Fatal(len(got), err)
	}
	for i, row := range got {
		if want := fmt.Sprintf("%d:%d|text %d|0.5", i+1, i%3, i); row != want {
			t.Fatalf("got %s, want %s", row, want)
		}
	}
	for column, want := range map[string]string{
		"maybe": `:701: column "maybe" is null`, "list": `column "list" holds lists`, "texts": `no column "texts"; there are: text, label, maybe, list, score`,
	} {
		if _, err := read(path, Config{Format: Parquet, Columns: []string{column}}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: error %v", column, err)
		}
	}
}

// TestReadRefuses: every error names the file and the line.
func TestReadRefuses(t *testing.T) {
	two := []string{"text", "label"}
	for name, c := range map[string]struct {
		config        Config
		content, want string
		nearest       string
	}{
		"empty":            {Config{Format: CSV, Header: true, Columns: two}, "", ": it has no rows", ""},
		"only a header":    {Config{Format: CSV, Header: true, Columns: two}, "text,label\n", ": it has no rows", ""},
		"no rows":          {Config{Format: JSONL, Columns: two}, "", ": it has no rows", ""},
		"misspelt":         {Config{Format: CSV, Header: true, Columns: two}, "text,lable\na,1\n", `:1: no column "label"; there are: text, lable`, "lable"},
		"twice":            {Config{Format: CSV, Header: true, Columns: two}, "text,label,text\na,1,b\n", `:1: two columns are called "text"`, ""},
		"short row":        {Config{Format: CSV, Header: true, Columns: two}, "text,label\na,1\nb\n", ":3: it has 1 fields, the first line has 2", ""},
		"long row":         {Config{Format: TSV, Header: true, Columns: two}, "text\tlabel\na\t1\t2\n", ":2: it has 3 fields", ""},
		"no such position": {Config{Format: TSV, Columns: []string{"3"}}, "a\tb\n", `:1: no column "3"; there are: 1, 2`, "1"},
		"open quote":       {Config{Format: CSV, Header: true, Columns: two}, "text,label\n\"a,1\n", ":2: ", ""},
		"bare quote":       {Config{Format: CSV, Header: true, Columns: two}, "text,label\na\"b,1\n", ":2: ", ""},
		"no key":           {Config{Format: JSONL, Columns: two}, "{\"text\": \"a\", \"label\": 1}\n{\"text\": \"a\", \"labels\": 1}\n", `:2: no column "label"; there are: labels, text`, "labels"},
		"null":             {Config{Format: JSONL, Columns: two}, "{\"text\": null, \"label\": 1}\n", `:1: column "text" is null`, ""},
		"object":           {Config{Format: JSONL, Columns: two}, "{\"text\": {}, \"label\": 1}\n", `:1: column "text" is {}, not a text`, ""},
		"no object":        {Config{Format: JSONL, Columns: two}, "[1]\n", ":1: not a JSON object", ""},
		"cut off":          {Config{Format: JSONL, Columns: two}, "{\"text\": \"a\", \"label\": 1}\n{\"text\"", ":2: not a JSON object", ""},
		"empty line":       {Config{Format: JSONL, Columns: two}, "{\"text\": \"a\", \"label\": 1}\n\n", ":2: the line is empty", ""},
		"not UTF-8":        {Config{Format: TSV, Columns: []string{"1"}}, "a\n\xff\n", `:2: column "1" is not UTF-8`, ""},
		"not Parquet":      {Config{Format: Parquet, Columns: two}, "text,label\n", ": not a Parquet file", ""},
	} {
		path := write(t, "f", c.content)
		_, err := read(path, c.config)
		e, ok := errors.AsType[*Error](err)
		if !ok || !strings.HasPrefix(err.Error(), path+c.want) && !strings.HasPrefix(err.Error(), path+":"+c.want) || e.Nearest != c.nearest {
			t.Errorf("%s: error %v (nearest %q)", name, err, e.Nearest)
		}
	}
}

// TestDamagedParquetIsAnError, wherever a file is cut off or a byte of it differs: never a panic.
func TestDamagedParquetIsAnError(t *testing.T) {
	content, err := os.ReadFile(writeParquet(t, 50, 20))
	if err != nil {
		t.Fatal(err)
	}
	c := Config{Format: Parquet, Columns: []string{"label", "text"}}
	for n := 0; n < len(content); n += 7 {
		if _, err := read(write(t, "cut", string(content[:n])), c); err == nil {
			t.Errorf("the first %d of %d bytes are read", n, len(content))
		}
		changed := slices.Clone(content)
		changed[n] ^= 0x55
		_, _ = read(write(t, "changed", string(changed)), c) // may still be right; must not panic
	}
}

// TestAYieldEndsTheReading, with its error or in silence.
func TestAYieldEndsTheReading(t *testing.T) {
	path := write(t, "f", "a\nb\nc\n")
	for _, want := range []error{errors.New("enough"), ErrStop} {
		rows := 0
		err := Read(nil, path, Config{Format: TSV, Columns: []string{"1"}}, func(Row) error {
			rows++
			return want
		})
		if rows != 1 || errors.Is(want, ErrStop) && err != nil || !errors.Is(want, ErrStop) && !errors.Is(err, want) {
			t.Errorf("%d rows, error %v", rows, err)
		}
	}
}
