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
	"strconv"

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

// Files that Hugging Face's transformers reads beside the model and that nothing here does. A job that has a tokenizer, or starts from
// a model, passes on those that it finds there.
var (
	TokenizerCompanions = []string{"tokenizer_config.json", "special_tokens_map.json", "chat_template.jinja"}
	ModelCompanions     = []string{"generation_config.json"}
)

// maxCompanionBytes bounds a file beside a model. The largest tokenizers in use take 35 MB.
const maxCompanionBytes = 1 << 28

// Card says how the data of a model were read.
type Card struct {
	Version  int        `json:"version"` // cardVersion
	Task     model.Task `json:"task"`
	Sequence int        `json:"sequence"` // tokens in a sample
	// Data is the job's section, less what is about one run and one host: the files are left out, a tokenizer of its own is
	// the name TokenizerFile, and the labels are those that were found.
	Data job.Data `json:"data"`
	// Notice says what a person should know of this copy of the model: that it is not of the last committed round, and why.
	Notice string `json:"notice,omitempty"`
}

const cardVersion = 1

// Encode is the text of the card's file.
func (c Card) Encode() ([]byte, error) {
	c.Version, c.Data.Files, c.Data.Validation, c.Data.Sequence = cardVersion, nil, nil, 0
	text, err := json.MarshalIndent(c, "", "  ")
	if err != nil {
		return nil, fmt.Errorf("encode %s: %w", CardFile, err)
	}
	return append(text, '\n'), nil
}

func decodeCard(path string, text []byte) (Card, error) {
	var c Card
	if err := json.Unmarshal(text, &c); err != nil {
		return c, fmt.Errorf("read %s: %w", path, err)
	}
	if c.Version != cardVersion {
		return c, fmt.Errorf("read %s: its version is %d, this program reads %d", path, c.Version, cardVersion)
	}
	return c, nil
}

// WriteCompanions keeps the files that go with a job's model in dir, the card and the contents of others by name, and returns their
// digests for ShardMeta.
func WriteCompanions(dir string, c Card, others map[string][]byte) (digests map[string]string, err error) {
	if others[TokenizerFile] != nil {
		c.Data.Tokenizer = TokenizerFile
	}
	files := map[string][]byte{}
	maps.Copy(files, others)
	if files[CardFile], err = c.Encode(); err != nil {
		return nil, err
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	digests = map[string]string{}
	for name, content := range files {
		if digests[name], err = checkpoint.WriteObject(dir, content, 0o600); err != nil {
			return nil, err
		}
	}
	return digests, nil
}

// ReadCompanions reads the files with these digests that WriteCompanions kept in dir, by name.
func ReadCompanions(dir string, digests map[string]string) (map[string][]byte, error) {
	files := map[string][]byte{}
	var err error
	for name, digest := range digests {
		if files[name], err = checkpoint.ReadObject(dir, digest); err != nil {
			return nil, fmt.Errorf("%s, which goes with the model, is lost or damaged: %w; put it there again from a backup, or from an earlier export of the job",
				name, err)
		}
	}
	if digests != nil || dir == "" {
		return files, nil
	}
	for _, name := range slices.Concat([]string{CardFile, TokenizerFile}, TokenizerCompanions, ModelCompanions) { // of rounds without digests
		content, err := readCompanion(nil, dir, name)
		if err != nil {
			return nil, err
		}
		if content != nil {
			files[name] = content
		}
	}
	return files, nil
}

// ReadCard reads the card of a model directory. A directory that was not exported by a job has none: that is no error, and
// the second result is false.
func ReadCard(opener *access.Opener, dir string) (Card, bool, error) {
	var c Card
	text, err := readCompanion(opener, dir, CardFile)
	if err != nil || text == nil {
		return c, false, err
	}
	c, err = decodeCard(filepath.Join(dir, CardFile), text)
	return c, err == nil, err
}

// readCompanion reads a file beside a model; nil when there is none.
func readCompanion(opener *access.Opener, dir, name string) ([]byte, error) {
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
	case m.Vocabulary() == tokenizer.Bytes().Vocabulary:
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

// Labels are the names that a model directory's config.json gives its classes, in order; nil when it names none.
func Labels(dir string) ([]string, error) {
	path := filepath.Join(dir, ConfigFile)
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	var config struct {
		Names map[string]string `json:"id2label"`
	}
	if err := json.Unmarshal(text, &config); err != nil {
		return nil, fmt.Errorf("read id2label of %s: %w", path, err)
	}
	var labels []string
	for i := range len(config.Names) {
		name, ok := config.Names[strconv.Itoa(i)]
		if !ok {
			return nil, fmt.Errorf("read id2label of %s: %d classes, and none has the number %d", path, len(config.Names), i)
		}
		labels = append(labels, name)
	}
	return labels, nil
}
