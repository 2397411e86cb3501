package tokenizer

import (
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"time"
	"unicode"

	"github.com/dlclark/regexp2"
	"golang.org/x/text/unicode/norm"

	"github.com/avgpipe/avgpipe/internal/access"
	"github.com/avgpipe/avgpipe/internal/nearest"
)

// FileName is the file that Open looks for in a directory.
const FileName = "tokenizer.json"

// MaxBytes bounds a tokenizer.json. The largest known has 40 MB.
const MaxBytes = 256 << 20

const (
	maxID  = 1 << 24 // ids are below it
	maxGap = 1 << 12 // ids below four times the tokens and this: a table by id is as large as the file allows
	// maxSearch bounds a search for a pattern of the file, which can go back over a text again and again.
	maxSearch = 10 * time.Second
)

// Open reads a tokenizer.json, or the one in a directory. The error names the path and what does not fit.
func Open(opener *access.Opener, path string) (*Tokenizer, error) {
	if info, err := opener.Stat(path); err == nil && info.IsDir() {
		path = filepath.Join(path, FileName)
	}
	content, err := opener.ReadFile(path, MaxBytes)
	if err != nil {
		return nil, fmt.Errorf("tokenizer: %w", err)
	}
	t, err := Parse(content)
	if err != nil {
		return nil, fmt.Errorf("tokenizer: %s: %w", path, err)
	}
	return t, nil
}

// tokenizerFile is tokenizer.json. Steps that are absent or null do nothing.
type tokenizerFile struct {
	AddedTokens   []addedToken `json:"added_tokens"`
	Normalizer    *component   `json:"normalizer"`
	PreTokenizer  *component   `json:"pre_tokenizer"`
	PostProcessor *component   `json:"post_processor"`
	Decoder       *component   `json:"decoder"`
	Model         *modelFile   `json:"model"`
}

// component is a step of any kind: the fields of all of them.
type component struct {
	Type string `json:"type"`

	Normalizers   []component `json:"normalizers"` // the steps of a Sequence
	PreTokenizers []component `json:"pretokenizers"`
	Processors    []component `json:"processors"`
	Decoders      []component `json:"decoders"`

	CleanText     *bool    `json:"clean_text"`
	HandleChinese *bool    `json:"handle_chinese_chars"`
	StripAccents  *bool    `json:"strip_accents"`
	Lowercase     *bool    `json:"lowercase"`
	StripLeft     *bool    `json:"strip_left"`
	StripRight    *bool    `json:"strip_right"`
	Pattern       *pattern `json:"pattern"`
	Content       string   `json:"content"`
	Prepend       string   `json:"prepend"`
	CharsMap      string   `json:"precompiled_charsmap"`

	AddPrefixSpace *bool    `json:"add_prefix_space"`
	UseRegex       *bool    `json:"use_regex"`
	Replacement    string   `json:"replacement"`
	PrependScheme  string   `json:"prepend_scheme"`
	Split          *bool    `json:"split"`
	Behavior       behavior `json:"behavior"`
	Invert         bool     `json:"invert"`
	Individual     bool     `json:"individual_digits"`

	Single        []templateItem           `json:"single"`
	Pair          []templateItem           `json:"pair"`
	SpecialTokens map[string]templateToken `json:"special_tokens"`
	Separator     *namedID                 `json:"sep"`
	Class         *namedID                 `json:"cls"`

	Prefix  string `json:"prefix"`
	Suffix  string `json:"suffix"`
	Cleanup *bool  `json:"cleanup"`
	Start   int    `json:"start"`
	Stop    int    `json:"stop"`
}

// pattern is a literal text or a regular expression.
type pattern struct {
	String *string
	Regex  *string
}

// compile makes an expression of a pattern.
func (p *pattern) compile() (*regexp2.Regexp, error) {
	if p == nil || (p.String == nil) == (p.Regex == nil) {
		return nil, errors.New(`a pattern is {"String": ...} or {"Regex": ...}`)
	}
	text := p.Regex
	if p.String != nil {
		escaped := regexp2.Escape(*p.String)
		text = &escaped
	}
	compiled, err := regexp2.Compile(*text, regexp2.None)
	if err != nil {
		return nil, fmt.Errorf("pattern %q: %w", *text, err)
	}
	compiled.MatchTimeout = maxSearch
	return compiled, nil
}

// Parse reads the content of a tokenizer.json.
func Parse(content []byte) (*Tokenizer, error) {
	var f tokenizerFile
	if err := json.Unmarshal(content, &f); err != nil {
		return nil, fmt.Errorf("not a tokenizer.json: %w", err)
	}
	if f.Model == nil {
		return nil, errors.New(`not a tokenizer.json: it has no "model"`)
	}
	t := &Tokenizer{Digest: sha256.Sum256(content)}
	var err error
	if t.model, t.tokens, err = f.Model.build(); err != nil {
		return nil, fmt.Errorf("model: %w", err)
	}
	if t.normalize, err = steps(f.Normalizer, normalizers); err != nil {
		return nil, fmt.Errorf("normalizer: %w", err)
	}
	if t.preTokenize, err = steps(f.PreTokenizer, preTokenizers); err != nil {
		return nil, fmt.Errorf("pre_tokenizer: %w", err)
	}
	if t.decode, err = steps(f.Decoder, decoders); err != nil {
		return nil, fmt.Errorf("decoder: %w", err)
	}
	if err := t.add(f.AddedTokens); err != nil {
		return nil, fmt.Errorf("added_tokens: %w", err)
	}
	t.name(f.Model.Unknown)
	if err := t.templatesOf(f.PostProcessor); err != nil {
		return nil, fmt.Errorf("post_processor: %w", err)
	}
	return t, nil
}

// add puts added tokens in the vocabulary.
func (t *Tokenizer) add(tokens []addedToken) error {
	var before, after []addedToken
	for i, a := range tokens {
		if a.Content == "" {
			return fmt.Errorf("token %d is empty", i)
		}
		if err := setToken(&t.tokens, a.ID, a.Content, len(t.tokens)+len(tokens)); err != nil {
			return err
		}
		if !a.Normalized {
			before = append(before, a)
			continue
		}
		for _, n := range t.normalize {
			var err error
			if a.Content, err = n(a.Content); err != nil {
				return err
			}
		}
		if a.Content != "" {
			after = append(after, a)
		}
	}
	t.Vocabulary = len(t.tokens)
	t.hidden = make([]bool, len(t.tokens))
	for _, a := range tokens {
		t.hidden[a.ID] = a.Special
	}
	t.added, t.addedAfter = newAdded(before), newAdded(after)
	return nil
}

// setToken gives an id its token, of count in all. An id has one.
func setToken(tokens *[]string, id int32, token string, count int) error {
	if limit := min(maxID, 4*count+maxGap); id < 0 || int(id) >= limit {
		return fmt.Errorf("token %q has the id %d; ids of a vocabulary of %d are 0 to %d", token, id, count, limit-1)
	}
	if n := int(id) + 1; n > len(*tokens) {
		*tokens = append(*tokens, make([]string, n-len(*tokens))...)
	}
	if have := (*tokens)[id]; have != "" && have != token {
		return fmt.Errorf("tokens %q and %q have the same id, %d", have, token, id)
	}
	(*tokens)[id] = token
	return nil
}

// name finds the special tokens by the names that they have in the usual models.
func (t *Tokenizer) name(unknown string) {
	ids := make(map[string]int32, len(t.tokens))
	for id, token := range t.tokens {
		ids[token] = int32(id) //nolint:gosec // Below maxID.
	}
	first := func(names ...string) int32 {
		for _, name := range names {
			if id, ok := ids[name]; ok && name != "" {
				return id
			}
		}
		return None
	}
	t.Special = Special{
		Pad:       first("[PAD]", "<pad>", "<|pad|>"),
		Unknown:   first(unknown, "[UNK]", "<unk>"),
		Class:     first("[CLS]", "<s>"),
		Separator: first("[SEP]", "</s>"),
		Mask:      first("[MASK]", "<mask>"),
		Begin:     first("<s>", "<bos>", "<|begin_of_text|>", "[CLS]"),
		End:       first("</s>", "<eos>", "<|endoftext|>", "<|end_of_text|>", "[SEP]"),
	}
}

// unsupported reports a step of an unknown kind.
func unsupported(kind string, known ...string) error {
	slices.Sort(known)
	if near := nearest.Word(kind, known); near != "" {
		return fmt.Errorf("the type %q is not supported; the nearest that is: %s", kind, near)
	}
	return fmt.Errorf("the type %q is not supported, only: %s", kind, strings.Join(known, ", "))
}

// builder makes the steps of a component of one type.
type builder[S any] func(c *component) ([]S, error)

// always are steps without settings.
func always[S any](all ...S) builder[S] { return func(*component) ([]S, error) { return all, nil } }

// steps makes the steps of a component: of a Sequence, those of each of its components.
func steps[S any](c *component, known map[string]builder[S]) ([]S, error) {
	if c == nil {
		return nil, nil
	}
	if c.Type == "Sequence" {
		var all []S
		for _, inner := range slices.Concat(c.Normalizers, c.PreTokenizers, c.Decoders) {
			more, err := steps(&inner, known)
			if err != nil {
				return nil, err
			}
			all = append(all, more...)
		}
		return all, nil
	}
	build, ok := known[c.Type]
	if !ok {
		return nil, unsupported(c.Type, slices.AppendSeq([]string{"Sequence"}, maps.Keys(known))...)
	}
	return build(c)
}

var normalizers = map[string]builder[normalizer]{
	"NFC": always(change(norm.NFC.String)), "NFD": always(change(norm.NFD.String)),
	"NFKC": always(change(norm.NFKC.String)), "NFKD": always(change(norm.NFKD.String)),
	"Lowercase":    always(lower),
	"StripAccents": always(without(unicode.M)),
	"BertNormalizer": func(c *component) ([]normalizer, error) {
		return bertNormalizer(*c), nil
	},
	"Strip": func(c *component) ([]normalizer, error) {
		return []normalizer{trim(or(c.StripLeft, true), or(c.StripRight, true))}, nil
	},
	"Prepend": func(c *component) ([]normalizer, error) {
		return []normalizer{change(func(text string) string {
			if text == "" {
				return text
			}
			return c.Prepend + text
		})}, nil
	},
	"Replace": func(c *component) ([]normalizer, error) {
		r, err := replacementOf(c)
		return []normalizer{r.normalize}, err
	},
	"Precompiled": func(c *component) ([]normalizer, error) {
		m, err := newCharsMap(c.CharsMap)
		return []normalizer{m.normalize}, err
	},
}

func replacementOf(c *component) (replacement, error) {
	if c.Pattern != nil && c.Pattern.String != nil && *c.Pattern.String != "" {
		return replacement{text: *c.Pattern.String, content: c.Content}, nil
	}
	p, err := c.Pattern.compile()
	return replacement{pattern: p, content: c.Content}, err
}

var preTokenizers = map[string]builder[preTokenizer]{
	"BertPreTokenizer": always[preTokenizer](byRune{unicode.IsSpace, removed}, byRune{isPunctuation, isolated}),
	"Whitespace":       always[preTokenizer](byRune{unicode.IsSpace, removed}, byRune{isWord, contiguous}), // \w+|[^\w\s]+
	"WhitespaceSplit":  always[preTokenizer](byRune{unicode.IsSpace, removed}),
	"ByteLevel": func(c *component) ([]preTokenizer, error) {
		return []preTokenizer{byteLevel{addPrefixSpace: or(c.AddPrefixSpace, true), cuts: or(c.UseRegex, true)}}, nil
	},
	"Punctuation": func(c *component) ([]preTokenizer, error) {
		b, err := behaviorOf(c, isolated)
		return []preTokenizer{byRune{isPunctuation, b}}, err
	},
	"Digits": func(c *component) ([]preTokenizer, error) {
		if c.Individual {
			return []preTokenizer{byRune{unicode.IsNumber, isolated}}, nil
		}
		return []preTokenizer{byRune{unicode.IsNumber, contiguous}}, nil
	},
	"Split": func(c *component) ([]preTokenizer, error) {
		b, err := behaviorOf(c, "")
		if err != nil {
			return nil, err
		}
		p, err := c.Pattern.compile()
		return []preTokenizer{byPattern{pattern: p, invert: c.Invert, behavior: b}}, err
	},
	"Metaspace": func(c *component) ([]preTokenizer, error) {
		m, err := metaspaceOf(c)
		return []preTokenizer{m}, err
	},
}

func behaviorOf(c *component, fallback behavior) (behavior, error) {
	b := c.Behavior
	if b == "" {
		b = fallback
	}
	if !slices.Contains(behaviors, string(b)) {
		return b, fmt.Errorf("%s: the behavior %q is none of: %s", c.Type, b, strings.Join(behaviors, ", "))
	}
	return b, nil
}

func metaspaceOf(c *component) (metaspace, error) {
	m := metaspace{mark: c.Replacement, prepend: c.PrependScheme, split: or(c.Split, true)}
	if m.prepend == "" { // files of before there were schemes
		m.prepend = "always"
		if !or(c.AddPrefixSpace, true) {
			m.prepend = "never"
		}
	}
	if len([]rune(m.mark)) != 1 {
		return m, fmt.Errorf("the replacement %q is not one character", m.mark)
	}
	if schemes := []string{"always", "first", "never"}; !slices.Contains(schemes, m.prepend) {
		return m, fmt.Errorf("the prepend_scheme %q is none of: %s", m.prepend, strings.Join(schemes, ", "))
	}
	return m, nil
}

var decoders = map[string]builder[decoder]{
	"ByteLevel":    always[decoder](fromByteLevel),
	"ByteFallback": always[decoder](fromBytes),
	"Fuse":         always[decoder](fuse),
	"WordPiece": func(c *component) ([]decoder, error) {
		return []decoder{fromWordPiece(c.Prefix, or(c.Cleanup, true))}, nil
	},
	"Metaspace": func(c *component) ([]decoder, error) {
		m, err := metaspaceOf(c)
		return []decoder{fromMetaspace(m.mark, m.prepend != "never")}, err
	},
	"Strip": func(c *component) ([]decoder, error) {
		if c.Content == "" {
			return nil, errors.New("the content of Strip is empty")
		}
		return []decoder{strip(c.Content, c.Start, c.Stop)}, nil
	},
	"Replace": func(c *component) ([]decoder, error) {
		r, err := replacementOf(c)
		return []decoder{each(func(_ int, part string) string {
			replaced, err := r.normalize(part)
			if err != nil { // one token, and 10 seconds
				return part
			}
			return replaced
		})}, err
	},
	"BPEDecoder": func(c *component) ([]decoder, error) {
		return []decoder{fuse, each(func(_ int, part string) string {
			return strings.TrimSuffix(strings.ReplaceAll(part, c.Suffix, " "), " ")
		})}, nil
	},
}
