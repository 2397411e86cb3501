package tokenizer

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
)

// templateItem is one entry of a TemplateProcessing.
type templateItem struct {
	SpecialToken *struct {
		ID   string `json:"id"`
		Type int32  `json:"type_id"`
	}
	Sequence *struct {
		ID   string `json:"id"` // A or B
		Type int32  `json:"type_id"`
	}
}

// templateToken is what a name of a template stands for.
type templateToken struct {
	IDs []int32 `json:"ids"`
}

// namedID is a token and its id, as a pair.
type namedID struct {
	Token string
	ID    int32
}

// UnmarshalJSON reads ["[SEP]", 102].
func (n *namedID) UnmarshalJSON(content []byte) error {
	return json.Unmarshal(content, &[]any{&n.Token, &n.ID})
}

// templatesOf sets what a model is given for one text and for two. Where the file does not say, it is the text alone, and two
// with a separator between them.
func (t *Tokenizer) templatesOf(c *component) error {
	t.Single = Template{{Text: 0}}
	for _, id := range []int32{t.Special.Separator, t.Special.End} {
		if id != None && t.Pair == nil {
			t.Pair = Template{{Text: 0}, {Text: None, ID: id}, {Text: 1, Type: 1}}
		}
	}
	return t.process(c)
}

// process takes the templates from a post-processor that has some.
func (t *Tokenizer) process(c *component) (err error) {
	if c == nil {
		return nil
	}
	switch c.Type {
	case "ByteLevel": // about offsets in the text alone
		return nil
	case "Sequence":
		for i := range c.Processors {
			if err := t.process(&c.Processors[i]); err != nil {
				return err
			}
		}
		return nil
	case "TemplateProcessing":
		if t.Single, err = t.template(c.Single, c.SpecialTokens, 1); err != nil {
			return fmt.Errorf("single: %w", err)
		}
		if t.Pair, err = t.template(c.Pair, c.SpecialTokens, 2); err != nil {
			return fmt.Errorf("pair: %w", err)
		}
		return nil
	case "BertProcessing", "RobertaProcessing":
		return t.processPair(c)
	}
	return unsupported(c.Type, "Sequence", "TemplateProcessing", "BertProcessing", "RobertaProcessing", "ByteLevel")
}

// template reads a list of items, in which each of so many texts stands once.
func (t *Tokenizer) template(items []templateItem, tokens map[string]templateToken, texts int) (Template, error) {
	var out Template
	count := make([]int, 2)
	for i, item := range items {
		switch {
		case item.Sequence != nil:
			text := slices.Index([]string{"A", "B"}, item.Sequence.ID)
			if text < 0 {
				return nil, fmt.Errorf("item %d: the sequence %q is neither A nor B", i, item.Sequence.ID)
			}
			count[text]++
			out = append(out, Item{Text: text, Type: item.Sequence.Type})
		case item.SpecialToken != nil:
			token, ok := tokens[item.SpecialToken.ID]
			if !ok {
				return nil, fmt.Errorf("item %d: %q is not among special_tokens", i, item.SpecialToken.ID)
			}
			for _, id := range token.IDs {
				if id < 0 || int(id) >= t.Vocabulary {
					return nil, fmt.Errorf("item %d: %q has the id %d; the vocabulary has %d", i, item.SpecialToken.ID, id, t.Vocabulary)
				}
				out = append(out, Item{Text: None, ID: id, Type: item.SpecialToken.Type})
			}
		default:
			return nil, fmt.Errorf("item %d is neither a Sequence nor a SpecialToken", i)
		}
	}
	if want := []int{1, texts - 1}; !slices.Equal(count, want) {
		return nil, fmt.Errorf("the texts A and B stand %v times; each of %d stands once", count, texts)
	}
	return out, nil
}

// processPair makes BERT's and RoBERTa's templates; RoBERTa has no token types, and two separators between texts.
func (t *Tokenizer) processPair(c *component) error {
	if c.Separator == nil || c.Class == nil {
		return errors.New(`"sep" and "cls" are missing`)
	}
	for _, n := range []namedID{*c.Separator, *c.Class} {
		if n.ID < 0 || int(n.ID) >= t.Vocabulary {
			return fmt.Errorf("%q has the id %d; the vocabulary has %d", n.Token, n.ID, t.Vocabulary)
		}
	}
	class, separator := Item{Text: None, ID: c.Class.ID}, Item{Text: None, ID: c.Separator.ID}
	t.Single = Template{class, {Text: 0}, separator}
	if c.Type == "RobertaProcessing" {
		t.Pair = append(slices.Clone(t.Single), separator, Item{Text: 1}, separator)
		return nil
	}
	t.Pair = append(slices.Clone(t.Single), Item{Text: 1, Type: 1}, Item{Text: None, ID: separator.ID, Type: 1})
	return nil
}
