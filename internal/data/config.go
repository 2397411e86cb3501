package data

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/avgpipe/avgpipe/internal/access"
	"github.com/avgpipe/avgpipe/internal/nearest"
	"github.com/avgpipe/avgpipe/internal/pinned"
	"github.com/avgpipe/avgpipe/job"
)

// Columns are the names of the columns of a table, by what they hold; "" for what the task does not read.
type Columns = job.Columns

// Config says what to read, for what, and how to cut it.
type Config struct {
	Task       Task     // Language, also when empty
	Files      []string // absolute paths of files and directories, or glob patterns; see List
	Validation []string // the same for what is held out; none: a share of Files
	HoldAll    bool     // nothing is to train on: all of Files is held out, as Validation would be
	Format     string   // text, also when empty, jsonl, csv, tsv, parquet, idx, images or tokens
	Columns    Columns  // of tables; empty ones are called text, label, source and target
	NoHeader   bool     // the first line of CSV and TSV is a row, and columns are called 1, 2, ...
	Tokenizer  string   // bytes, also when empty, or the absolute path of a tokenizer.json or its directory
	Vocabulary []byte   // the text of the tokenizer.json, which is then not read from there; nil: it is
	Labels     []string // the classes in the order of their numbers; none: those of the data
	Sequence   int      // tokens in a sample; not of images
	Holdout    float64  // the share kept for evaluation, above 0 and at most 0.5; 0 means 0.05
	Masked     float64  // the share of tokens that a masked language model guesses; 0 means 0.15 (Devlin et al. 2019)
	Mean, Std  []float64
	Seed       uint64 // of the order of the samples, and of what is random in them

	// What the model has room for; 0: anything.
	ModelVocabulary int   // token ids
	ModelClasses    int   // classes
	Image           Image // images are brought to this shape; must be known for the format images

	// Counts is how many samples there are, of the task Samples, which has no files.
	Counts Counts

	// CapBytes bounds what is held in memory: tokens (1, 2 or 4 bytes each) and offsets and classes (12 bytes a row), or pixels (a byte
	// each). 0 means 4 GiB: more would crowd out the model on hosts of the size that this loader is for. Token files are
	// mapped, and do not count. While it reads, Open takes up to some 64 MiB more for each of as many files as there are cores, 8 at
	// most: a portion of text and its words, a decoded image (up to 256 MiB), a page of each Parquet column.
	CapBytes int64
	// Remote are the objects that entries which are URLs stand for, and RemoteDir is where copies of them lie (pinned.Object.Path). Without that
	// directory they have names and lengths alone: Check and Pin look no further, and Open fails.
	Remote    []pinned.Object
	RemoteDir string
	// Access opens everything that is named here, with the rights of the job's user. Nil: with those of this process.
	Access *access.Opener
}

// What a Config leaves out.
const (
	defaultHoldout = 0.05
	defaultMasked  = 0.15
	defaultCap     = 4 << 30
)

func (c Config) withDefaults() Config {
	c.Task = cmp.Or(c.Task, Language)
	if c.Task == Samples {
		c.Format = formatProgram
	}
	c.Format = cmp.Or(c.Format, formatText)
	c.Tokenizer = cmp.Or(c.Tokenizer, job.TokenizerBytes)
	c.Holdout = cmp.Or(c.Holdout, defaultHoldout)
	c.Masked = cmp.Or(c.Masked, defaultMasked)
	c.CapBytes = cmp.Or(c.CapBytes, defaultCap)
	return c
}

// The formats that are no tables.
const (
	formatText   = "text"
	formatTokens = "tokens"
	formatIDX    = "idx"
	formatImages = "images"

	formatProgram = "program" // no files: a user's program makes samples
)

var tables = []string{"jsonl", "csv", "tsv", "parquet"}

// formats are those that a task is read from.
var formats = map[Task][]string{
	Language:       slices.Concat([]string{formatText}, tables, []string{formatTokens}),
	MaskedLanguage: slices.Concat([]string{formatText}, tables, []string{formatTokens}),
	Classification: tables,
	Translation:    tables,
	Images:         {formatIDX, formatImages},
	Samples:        {formatProgram},
}

func isTable(format string) bool { return slices.Contains(tables, format) }

// Validate reports the first field that does not fit, as an *Error.
func (c Config) Validate() error {
	c = c.withDefaults()
	allowed, known := formats[c.Task]
	switch {
	case !known:
		return fmt.Errorf("data: unknown task %q", c.Task)
	case c.Task == Samples && (c.Counts.Train < 1 || c.Counts.HeldOut < 0 || c.Counts.Train > math.MaxInt32-c.Counts.HeldOut):
		return &Error{Key: "data.samples", Err: fmt.Errorf("%d samples to train on and %d held out; expected 1 to %d", c.Counts.Train, c.Counts.HeldOut, math.MaxInt32)}
	case len(c.Files) == 0 && c.Task != Samples:
		return &Error{Key: "data.files", Err: errors.New("no files are named")}
	case !slices.Contains(allowed, c.Format):
		return &Error{Key: "data.format", Nearest: cmp.Or(nearest.Word(c.Format, allowed), allowed[0]), Err: fmt.Errorf(
			"the format %q does not hold what this model trains on (%s); formats that do: %s", c.Format, c.Task, strings.Join(allowed, ", "))}
	case c.Task.texts() && c.Sequence < 1:
		return &Error{Key: "data.sequence", Nearest: "1", Err: fmt.Errorf("a sample of %d tokens; it has at least 1", c.Sequence)}
	case math.IsNaN(c.Holdout) || c.Holdout <= 0 || c.Holdout > 0.5:
		return &Error{Key: "data.holdout", Nearest: "0.05", Err: fmt.Errorf("a share of %v; it is above 0 and at most 0.5", c.Holdout)}
	case math.IsNaN(c.Masked) || c.Masked <= 0 || c.Masked >= 1:
		return &Error{Key: "data.masked", Nearest: "0.15", Err: fmt.Errorf("a share of %v; it is above 0 and below 1", c.Masked)}
	}
	return c.validateUnread()
}

// reading says whether the task and the format have a use for a key of the job file.
type reading struct {
	key   string
	set   bool // differs from what it is when nobody sets it
	read  bool
	other string // what to do instead of removing it; "" for nothing
}

func (c Config) readings() []reading {
	texts := c.Task.texts()
	classes := c.Task == Classification || c.Task == Images
	return []reading{
		{"data.columns.text", c.Columns.Text != "", isTable(c.Format) && c.Task != Translation, ""},
		{"data.columns.text_pair", c.Columns.TextPair != "", c.Task == Classification, ""},
		{"data.columns.label", c.Columns.Label != "", c.Task == Classification, ""},
		{"data.columns.source", c.Columns.Source != "", c.Task == Translation, ""},
		{"data.columns.target", c.Columns.Target != "", c.Task == Translation, ""},
		{"data.header", c.NoHeader, c.Format == "csv" || c.Format == "tsv", "set data.format to csv or tsv"},
		{"data.labels", len(c.Labels) > 0, classes, ""},
		{"data.tokenizer", c.Tokenizer != job.TokenizerBytes, texts, ""},
		{"data.sequence", false, texts, ""}, // a model of images has the length 1
		{"data.holdout", false, c.Counts.HeldOut == 0, "have data.samples return no samples to evaluate on"},
		{"data.masked", c.Masked != defaultMasked, c.Task == MaskedLanguage, "train a masked language model, as bert with architectures: BertForMaskedLM"},
		{"data.mean", len(c.Mean) > 0, c.Task == Images, ""},
		{"data.std", len(c.Std) > 0, c.Task == Images, ""},
	}
}

func (c Config) problem(r reading) *Error {
	fix := "remove it"
	if r.other != "" {
		fix += ", or " + r.other
	}
	return &Error{Key: r.key, Err: fmt.Errorf("is not read in the task %s from the format %s; %s", c.Task, c.Format, fix)}
}

// Unread lists a problem for each key below data of a job file that has no effect with this configuration. Has tells which keys were
// written: one that was counts even with its default value.
func (c Config) Unread(has func(key string) bool) []*Error {
	c = c.withDefaults()
	var all []*Error
	for _, r := range c.readings() {
		if !r.read && has(r.key) {
			all = append(all, c.problem(r))
		}
	}
	return all
}

// validateUnread refuses what the task or the format does not read: without effect, it would cost its author a run.
func (c Config) validateUnread() error {
	for _, r := range c.readings() {
		if r.set && !r.read {
			return c.problem(r)
		}
	}
	if len(c.Labels) == 1 {
		return &Error{Key: "data.labels", Err: errors.New("one class; there are at least 2")}
	}
	for i, label := range c.Labels {
		if slices.Contains(c.Labels[:i], label) {
			return &Error{Key: fmt.Sprintf("data.labels[%d]", i), Err: fmt.Errorf("the class %q is there twice", label)}
		}
	}
	return nil
}

// keepDirectories has Access follow the path to a directory once for all files in it, until the caller calls release.
func (c *Config) keepDirectories() (release func()) {
	c.Access, release = c.Access.Keeping()
	c.Access.Own = c.copies()
	return release
}

// Error is a problem with the data, under the key of the job file that it belongs to.
type Error struct {
	Key     string // "data.files[1]", "data.sequence"
	Nearest string // the nearest valid value; "" when nothing is near
	Err     error
}

// Error names the key, what is wrong, and the nearest valid value.
func (e *Error) Error() string {
	if e.Nearest == "" {
		return fmt.Sprintf("%s: %v", e.Key, e.Err)
	}
	return fmt.Sprintf("%s: %v; nearest: %s", e.Key, e.Err, e.Nearest)
}

// Unwrap returns what is wrong.
func (e *Error) Unwrap() error { return e.Err }
