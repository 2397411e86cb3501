package export

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"

	"github.com/avgpipe/avgpipe/internal/access"
	"github.com/avgpipe/avgpipe/internal/checkpoint"
	"github.com/avgpipe/avgpipe/internal/data/tokenizer"
	"github.com/avgpipe/avgpipe/job"
	"github.com/avgpipe/avgpipe/stage/model"
)

// Files that a job leaves beside the model, so that the model can be used on texts and images as it was trained on them.
const (
	CardFile      = "avgpipe.json"
	TokenizerFile = "tokenizer.json" // in Hugging Face's format; not there when tokens are bytes
)

// Files that the usual Python library reads beside the model and that nothing here does. A job that has a tokenizer, or starts from
// a model, passes on those that it finds there.
var (
	TokenizerCompanions = []string{"tokenizer_config.json", "special_tokens_map.json", "chat_template.jinja"}
	ModelCompanions     = []string{"generation_config.json"}
)

// companions lists the files that Pack takes along.
var companions = slices.Concat([]string{CardFile, TokenizerFile}, TokenizerCompanions, ModelCompanions)

// maxCompanionBytes bounds a file beside a model. The largest tokenizers in use take 35 MB.
const maxCompanionBytes = 1 << 28

// Card says how the data of a model were read.
type Card struct {
	Version  int        `json:"version"` // cardVersion
	Task     model.Task `json:"task"`
	Sequence int        `json:"sequence"` // tokens in a sample
	// Data is the job's section, less what is about one run and one host: the files are left out, a tokenizer of its own is
	// the name TokenizerFile, and the labels are those that were found.
	Data job.Data `json:"-"`
	// Notice says what a person should know of this copy of the model: that it is not of the last committed round, and why.
	Notice string  `json:"notice,omitempty"`
	Read   reading `json:"data"` // Data in the file
}

// reading is the data section of a job file with the keys that it has there.
type reading struct {
	Format    string    `json:"format"`
	Columns   columns   `json:"columns"`
	Header    bool      `json:"header"`
	Tokenizer string    `json:"tokenizer"`
	Holdout   float64   `json:"holdout"`
	Labels    []string  `json:"labels,omitempty"`
	Masked    float64   `json:"masked"`
	Mean      []float64 `json:"mean,omitempty"`
	Std       []float64 `json:"std,omitempty"`
}

type columns struct {
	Text     string `json:"text,omitempty"`
	TextPair string `json:"text_pair,omitempty"`
	Label    string `json:"label,omitempty"`
	Source   string `json:"source,omitempty"`
	Target   string `json:"target,omitempty"`
}

func readingOf(d job.Data) reading {
	return reading{
		Format: d.Format, Columns: columns(d.Columns), Header: d.Header, Tokenizer: d.Tokenizer, Holdout: d.Holdout,
		Labels: d.Labels, Masked: d.Masked, Mean: d.Mean, Std: d.Std,
	}
}

func (r reading) data() job.Data {
	return job.Data{
		Format: r.Format, Columns: job.Columns(r.Columns), Header: r.Header, Tokenizer: r.Tokenizer, Holdout: r.Holdout,
		Labels: r.Labels, Masked: r.Masked, Mean: r.Mean, Std: r.Std,
	}
}

const cardVersion = 1

// WriteCompanions writes the files that go with a job's model to dir: the card, and the contents of others by name.
func WriteCompanions(dir string, c Card, others map[string][]byte) error {
	c.Version, c.Read = cardVersion, readingOf(c.Data)
	if others[TokenizerFile] != nil {
		c.Read.Tokenizer = TokenizerFile
	}
	text, err := json.MarshalIndent(c, "", "  ")
	if err != nil {
		return fmt.Errorf("encode %s: %w", CardFile, err)
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	for _, name := range slices.Sorted(maps.Keys(others)) {
		if err := writeWhole(dir, name, others[name]); err != nil {
			return err
		}
	}
	return writeWhole(dir, CardFile, append(text, '\n'))
}

func writeWhole(dir, name string, content []byte) error {
	f, err := checkpoint.Create(checkpoint.OS, dir, 0o600, int64(len(content)))
	if err != nil {
		return err
	}
	if _, err := f.Write(content); err != nil {
		return errors.Join(err, f.Abort())
	}
	return f.Commit(name)
}

// ReadCard reads the card of a model directory. A directory that was not exported by a job has none: that is no error, and
// the second result is false.
func ReadCard(opener *access.Opener, dir string) (Card, bool, error) {
	var c Card
	text, err := readCompanion(opener, dir, CardFile)
	if err != nil || text == nil {
		return c, false, err
	}
	if err := json.Unmarshal(text, &c); err != nil {
		return c, false, fmt.Errorf("read %s: %w", filepath.Join(dir, CardFile), err)
	}
	if c.Version != cardVersion {
		return c, false, fmt.Errorf("read %s: its version is %d, this program reads %d", filepath.Join(dir, CardFile), c.Version, cardVersion)
	}
	c.Data = c.Read.data()
	return c, true, nil
}

// noticed is the content of a card that carries a notice, made from the one in dir, if there is one.
func noticed(dir, notice string, m *model.Model) ([]byte, error) {
	c, found, err := ReadCard(nil, dir)
	if err != nil {
		return nil, err
	}
	if !found {
		c = DefaultCard(m)
		c.Read = readingOf(c.Data)
	}
	c.Notice = notice
	text, err := json.MarshalIndent(c, "", "  ")
	return append(text, '\n'), err
}

// readCompanion reads a file beside a model; nil when there is none, or no directory.
func readCompanion(opener *access.Opener, dir, name string) ([]byte, error) {
	if dir == "" {
		return nil, nil
	}
	text, err := opener.ReadFile(filepath.Join(dir, name), maxCompanionBytes)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	return text, err
}

// TokenizerOf says what turns text into the tokens of the model m in dir: the path of its tokenizer.json, or job.TokenizerBytes
// when it has none and its tokens are bytes, as its card says or as many token ids as there are bytes.
func TokenizerOf(opener *access.Opener, dir string, m *model.Model) (string, error) {
	path := filepath.Join(dir, TokenizerFile)
	_, err := opener.Stat(path)
	switch {
	case err == nil:
		return path, nil
	case !errors.Is(err, fs.ErrNotExist):
		return "", err
	case m.Vocabulary() == tokenizer.Bytes().Vocabulary():
		return job.TokenizerBytes, nil
	}
	if _, found, err := ReadCard(opener, dir); err != nil || found {
		return job.TokenizerBytes, err
	}
	return "", fmt.Errorf("%s has no %s, and %d token ids are not bytes: save_pretrained of a fast tokenizer writes that file",
		dir, TokenizerFile, m.Vocabulary())
}

// DefaultCard is the card of a model that was not exported by a job: read as a job reads data by default.
func DefaultCard(m *model.Model) Card {
	return Card{Version: cardVersion, Task: m.Task, Sequence: m.Sequence(), Data: job.Default().Data}
}
