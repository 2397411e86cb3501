package tokenizer

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"slices"
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
	v := vocabulary{ids: ids, unknown: None, byteFallback: f.ByteFallback && f.kind() == "BPE"}
	for token := range ids {
		v.longest = max(v.longest, len(token))
	}
	if f.Unknown != "" {
		id, ok := ids[f.Unknown]
		if !ok {
			return nil, nil, fmt.Errorf("unk_token %q is not in vocab", f.Unknown)
		}
		v.unknown = id
	}
	switch f.kind() {
	case "BPE":
		m, err := f.bpe(v)
		return m, tokens, err
	case "WordPiece":
		return &wordPiece{vocabulary: v, prefix: or(f.Prefix, "##"), most: or(f.LongestWord, 100)}, tokens, nil
	}
	return nil, nil, unsupported(f.kind(), "BPE", "WordPiece", "Unigram")
}

// or is a setting that may be absent.
func or[T any](setting *T, absent T) T {
	if setting == nil {
		return absent
	}
	return *setting
}

func (f *modelFile) bpe(v vocabulary) (*bpe, error) {
	b := &bpe{
		vocabulary: v, merges: make(map[[2]int32]merge, len(f.Merges)),
		fuseUnknown: f.FuseUnknown, whole: f.IgnoreMerges, prefix: or(f.Prefix, ""), suffix: or(f.Suffix, ""),
	}
	for rank, m := range f.Merges {
		joined := m[0] + strings.TrimPrefix(m[1], b.prefix)
		left, leftOK := v.ids[m[0]]
		right, rightOK := v.ids[m[1]]
		id, ok := v.ids[joined]
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
	u := &unigram{vocabulary: vocabulary{ids: map[string]int32{}, unknown: None, byteFallback: f.ByteFallback}, scores: make([]float64, len(pairs))}
	tokens := make([]string, len(pairs))
	for i, p := range pairs {
		token, ok := p[0].(string)
		score, ok2 := p[1].(float64)
		if !ok || !ok2 || math.IsInf(score, 0) {
			return nil, nil, fmt.Errorf("vocab: entry %d is %v; it is a token and its score", i, p)
		}
		tokens[i], u.scores[i], u.ids[token] = token, score, int32(i) //nolint:gosec // Ids are below maxID.
		u.longest = max(u.longest, len(token))
	}
	u.unknownScore = slices.Min(u.scores) - unknownPenalty
	if f.UnknownID != nil {
		if *f.UnknownID < 0 || *f.UnknownID >= len(tokens) {
			return nil, nil, fmt.Errorf("unk_id is %d; vocab has %d tokens", *f.UnknownID, len(tokens))
		}
		u.unknown = int32(*f.UnknownID) //nolint:gosec // Below maxID.
		f.Unknown = cmp.Or(f.Unknown, tokens[*f.UnknownID])
	}
	return u, tokens, nil
}
