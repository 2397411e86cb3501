package tokenizer

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"strings"
)

// modelFile is "model" of tokenizer.json: the fields of every kind.
type modelFile struct {
	Type         string          `json:"type"`
	Vocabulary   json.RawMessage `json:"vocab"`  // ids by token; of Unigram a list of pairs of token and score
	Merges       []mergeFile     `json:"merges"` // of BPE
	Unknown      string          `json:"unk_token"`
	UnknownID    *int            `json:"unk_id"` // of Unigram
	Prefix       *string         `json:"continuing_subword_prefix"`
	Suffix       *string         `json:"end_of_word_suffix"`
	FuseUnknown  bool            `json:"fuse_unk"`
	ByteFallback bool            `json:"byte_fallback"`
	IgnoreMerges bool            `json:"ignore_merges"`
	Dropout      *float64        `json:"dropout"`
	LongestWord  *int            `json:"max_input_chars_per_word"`
}

// mergeFile is a pair of tokens: "a b", or ["a", "b"].
type mergeFile [2]string

// UnmarshalJSON reads both forms.
func (m *mergeFile) UnmarshalJSON(content []byte) error {
	if len(content) > 0 && content[0] == '[' {
		var pair []string
		if err := json.Unmarshal(content, &pair); err != nil {
			return err
		}
		if len(pair) != 2 {
			return fmt.Errorf("a merge of %d tokens; it has 2", len(pair))
		}
		*m = mergeFile(pair)
		return nil
	}
	var text string
	if err := json.Unmarshal(content, &text); err != nil {
		return err
	}
	left, right, ok := strings.Cut(text, " ")
	if !ok || left == "" || right == "" || strings.Contains(right, " ") {
		return fmt.Errorf("the merge %q is not two tokens with a blank between them", text)
	}
	*m = mergeFile{left, right}
	return nil
}

// kind is the model's type; old files leave it out, and their fields tell.
func (f *modelFile) kind() string {
	switch {
	case f.Type != "":
		return f.Type
	case f.Merges != nil:
		return "BPE"
	case len(f.Vocabulary) > 0 && f.Vocabulary[0] == '[':
		return "Unigram"
	}
	return "WordPiece"
}

// build makes the model and lists its tokens by id.
func (f *modelFile) build() (model, []string, error) {
	if f.Dropout != nil && *f.Dropout != 0 {
		return nil, nil, errors.New("dropout is not supported: a text has one encoding")
	}
	if f.kind() == "Unigram" {
		return f.unigram()
	}
	var ids map[string]int32
	if err := json.Unmarshal(f.Vocabulary, &ids); err != nil {
		return nil, nil, fmt.Errorf("vocab: %w", err)
	}
	if len(ids) == 0 {
		return nil, nil, errors.New("vocab is empty")
	}
	var tokens []string
	for token, id := range ids {
		if err := setToken(&tokens, id, token, len(ids)); err != nil {
			return nil, nil, fmt.Errorf("vocab: %w", err)
		}
	}
	unknown := int32(None)
	if f.Unknown != "" {
		id, ok := ids[f.Unknown]
		if !ok {
			return nil, nil, fmt.Errorf("unk_token %q is not in vocab", f.Unknown)
		}
		unknown = id
	}
	switch f.kind() {
	case "BPE":
		m, err := f.bpe(ids, unknown)
		return m, tokens, err
	case "WordPiece":
		w := &wordPiece{ids: ids, unknown: unknown, prefix: "##", longest: 100}
		if f.Prefix != nil {
			w.prefix = *f.Prefix
		}
		if f.LongestWord != nil {
			w.longest = *f.LongestWord
		}
		for token := range ids {
			w.most = max(w.most, len(token))
		}
		return w, tokens, nil
	}
	return nil, nil, unsupported(f.kind(), "BPE", "WordPiece", "Unigram")
}

func (f *modelFile) bpe(ids map[string]int32, unknown int32) (*bpe, error) {
	b := &bpe{
		ids: ids, merges: make(map[[2]int32]merge, len(f.Merges)), unknown: unknown,
		fuseUnknown: f.FuseUnknown, byteFallback: f.ByteFallback, whole: f.IgnoreMerges,
	}
	if f.Prefix != nil {
		b.prefix = *f.Prefix
	}
	if f.Suffix != nil {
		b.suffix = *f.Suffix
	}
	for rank, m := range f.Merges {
		joined := m[0] + strings.TrimPrefix(m[1], b.prefix)
		left, leftOK := ids[m[0]]
		right, rightOK := ids[m[1]]
		id, ok := ids[joined]
		if !leftOK || !rightOK || !ok {
			return nil, fmt.Errorf("merge %d, of %q and %q to %q: not all of them are in vocab", rank, m[0], m[1], joined)
		}
		pair := [2]int32{left, right}
		if _, twice := b.merges[pair]; !twice {
			b.merges[pair] = merge{rank: rank, id: id}
		}
	}
	return b, nil
}

func (f *modelFile) unigram() (model, []string, error) {
	var pairs [][2]any
	if err := json.Unmarshal(f.Vocabulary, &pairs); err != nil {
		return nil, nil, fmt.Errorf("vocab: %w", err)
	}
	if len(pairs) == 0 || len(pairs) > maxID {
		return nil, nil, fmt.Errorf("vocab has %d tokens; it has 1 to %d", len(pairs), maxID)
	}
	tokens, scores := make([]string, len(pairs)), make([]float64, len(pairs))
	for i, p := range pairs {
		token, ok := p[0].(string)
		score, ok2 := p[1].(float64)
		if !ok || !ok2 || math.IsInf(score, 0) {
			return nil, nil, fmt.Errorf("vocab: entry %d is %v; it is a token and its score", i, p)
		}
		tokens[i], scores[i] = token, score
	}
	unknown := int32(None)
	if f.UnknownID != nil {
		if *f.UnknownID < 0 || *f.UnknownID >= len(tokens) {
			return nil, nil, fmt.Errorf("unk_id is %d; vocab has %d tokens", *f.UnknownID, len(tokens))
		}
		unknown = int32(*f.UnknownID) //nolint:gosec // Below maxID.
	}
	if f.Unknown == "" && unknown != None {
		f.Unknown = tokens[unknown]
	}
	return newUnigram(tokens, scores, unknown, f.ByteFallback), tokens, nil
}
