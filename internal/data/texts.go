package data

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"

	"github.com/avgpipe/avgpipe/internal/data/table"
	"github.com/avgpipe/avgpipe/internal/data/tokenizer"
)

// texts are samples of one or two texts each, as tokens: those of one file.
type texts struct {
	labels // of classifications
	tokens run
	ends   []uint32 // where each text ends: of sample i, 2i is the first text's and 2i+1 the second's
	ids    []int32  // of the text that is read
}

// maxTexts is how many tokens the texts of one file have at most, so that 4 bytes count them.
const maxTexts = 1<<32 - 1

func (t *texts) size() int { return len(t.ends) / 2 }

// pair are the tokens of the texts of one sample.
type pair struct {
	tokens     run
	from, size [2]int
}

func (t *texts) pair(i int) pair {
	p, at := pair{tokens: t.tokens}, 0
	if i > 0 {
		at = int(t.ends[2*i-1])
	}
	for k := range p.from {
		p.from[k], p.size[k] = at, int(t.ends[2*i+k])-at
		at += p.size[k]
	}
	return p
}

// lay writes what a template says to one sample, padded to its end, and cuts what goes beyond. A nil buffer is left out.
func (p pair) lay(template tokenizer.Template, sequence int, ids, types, mask []int32, padding int32) {
	at := 0
	for _, item := range template {
		n := 1
		if item.Text != tokenizer.None {
			n = p.size[item.Text]
		}
		n = min(n, sequence-at)
		if ids != nil && item.Text != tokenizer.None && n > 0 {
			p.tokens.read(ids[at:at+n], p.from[item.Text])
		} else {
			put(ids, at, n, item.ID)
		}
		put(types, at, n, item.Type)
		put(mask, at, n, 1)
		at += n
	}
	put(ids, at, sequence-at, padding)
	put(types, at, sequence-at, 0)
	put(mask, at, sequence-at, 0)
}

// library are the samples of several files, in their order.
type library struct{ joined[*texts] }

func (l library) count() uint64 { return uint64(l.total()) } //nolint:gosec // A count.

// openTexts reads the rows of classifications and translations, and names the classes. A check makes no tokens of them.
func (o *opener) openTexts(ctx context.Context, s *Set, check bool) error {
	files := slices.Concat(o.train, o.held)
	read, found := make([]*texts, len(files)), make([]*labels, len(files))
	var long atomic.Int64
	err := o.each(ctx, files, func(i int, f File) error {
		read[i] = &texts{labels: labels{path: f.Path}}
		found[i] = &read[i].labels
		return o.readTexts(ctx, f, read[i], check, &long)
	})
	if err == nil && o.Task == Classification {
		s.Labels, err = o.classify(found)
	}
	if err != nil {
		return err
	}
	if n := long.Load(); n > 0 {
		s.Notes = append(s.Notes, fmt.Sprintf("data.sequence: samples longer than %d tokens, which were cut: %d", o.Sequence, n))
	}
	s.train, s.held, err = o.divideTexts(read)
	return err
}

// divideTexts are the samples to train on and those that are held out; read are those of each file.
func (o *opener) divideTexts(read []*texts) (train, held samples, err error) {
	wrap := func(l library) samples {
		if o.Task == Classification {
			return o.classification(l)
		}
		return translation{library: l, t: o.vocab, sequence: o.Sequence}
	}
	if len(o.held) > 0 {
		return wrap(library{join(read[:len(o.train)])}), wrap(library{join(read[len(o.train):])}), nil
	}
	return o.split(wrap(library{join(read)}))
}

func (o *opener) classification(l library) classification {
	return classification{library: l, t: o.vocab, sequence: o.Sequence, pair: o.Columns.TextPair != ""}
}

// readTexts reads the rows of one file.
func (o *opener) readTexts(ctx context.Context, f File, t *texts, check bool, long *atomic.Int64) error {
	t.tokens.width = widthOf(o.vocab.Vocabulary)
	c, e, held := o.tableConfig(), o.vocab.NewEncoder(), int64(0)
	return table.Read(o.Access, f.Path, c, func(r table.Row) error {
		values, columns := r.Values, c.Columns
		var err error
		if o.Task == Classification {
			t.add(values[0], r.Line)
			if len(t.names) > maxClasses {
				err = fmt.Errorf("column %q has more than %d different labels; is it the class?", columns[0], maxClasses)
			}
			values, columns = values[1:], columns[1:]
		} else if i := slices.Index(values, ""); i >= 0 {
			err = fmt.Errorf("column %q is empty", columns[i])
		}
		if err == nil && check {
			t.ends = append(t.ends, 0, 0)
		} else if err == nil {
			err = o.addTexts(t, e, values, columns, long)
		}
		if err != nil {
			return place(f.Path, r.Line, err)
		}
		now := int64(len(t.tokens.raw)) + 4*int64(len(t.ends)+len(t.of))
		err, held = o.hold(f.Path, now-held), now
		return errors.Join(err, ctx.Err())
	})
}

// addTexts adds a sample. It refuses a text to classify that has no tokens, and counts samples that will be cut.
func (o *opener) addTexts(t *texts, e *tokenizer.Encoder, values, columns []string, long *atomic.Int64) error {
	sizes, err := t.encode(e, values, columns)
	if err != nil {
		return err
	}
	n := max(sizes[0], sizes[1]) + 1 // the end token
	if o.Task == Classification {
		n = sizes[0] + sizes[1] + o.classification(library{}).template().Special()
	}
	if n == 0 {
		return fmt.Errorf("column %q is empty", columns[0])
	}
	if n > o.Sequence {
		long.Add(1)
	}
	return nil
}

// encode appends a sample of one or two texts, and returns how many tokens they have.
func (t *texts) encode(e *tokenizer.Encoder, values, columns []string) (sizes [2]int, err error) {
	for k := range sizes {
		if k < len(values) {
			before := t.tokens.size()
			if t.ids, err = e.Append(t.ids[:0], values[k]); err != nil {
				return sizes, fmt.Errorf("column %q: %w", columns[k], err)
			}
			for _, id := range t.ids {
				t.tokens.raw = appendID(t.tokens.raw, t.tokens.width, int(id))
			}
			sizes[k] = t.tokens.size() - before
		}
		if t.tokens.size() > maxTexts {
			return sizes, fmt.Errorf("the file has more than %d tokens up to here; cut it", maxTexts)
		}
		t.ends = append(t.ends, uint32(t.tokens.size())) //nolint:gosec // At most maxTexts.
	}
	return sizes, nil
}

// classification are texts, or pairs of them, with a class each.
type classification struct {
	library
	t        *tokenizer.Tokenizer
	sequence int
	pair     bool
}

// template is what a model that classifies is given.
func (c classification) template() tokenizer.Template {
	if c.pair {
		return c.t.Pair
	}
	return c.t.Single
}

func (c classification) fill(b Batch, j int, i uint64, _ visit) error {
	file, i1 := c.find(int(i)) //nolint:gosec // A sample's number is below the count.
	if b.Targets != nil {
		b.Targets[j] = file.of[i1]
	}
	template, p := c.template(), file.pair(i1)
	shorten(&p.size, c.sequence-template.Special())
	p.lay(template, c.sequence, row(b.Tokens, j, c.sequence), row(b.Types, j, c.sequence), row(b.Mask, j, c.sequence), c.t.Special.Padding())
	return nil
}

// put writes n values, unless v is nil.
func put(v []int32, at, n int, value int32) {
	if v != nil {
		set(v[at:at+n], value)
	}
}

// FillText writes a text, or a pair of them, as the only sample of b, as one that is classified: in the template of the tokenizer.
func FillText(t *tokenizer.Tokenizer, sequence int, parts []string, b Batch) error {
	c := classification{t: t, sequence: sequence, pair: len(parts) > 1}
	if sequence-c.template().Special() < len(parts) {
		return fmt.Errorf("samples of %d tokens have no room for a text", sequence)
	}
	one := &texts{tokens: run{width: widthOf(t.Vocabulary)}}
	if _, err := one.encode(t.NewEncoder(), parts, []string{"text", "text_pair"}); err != nil {
		return err
	}
	c.library = library{join([]*texts{one})}
	return c.fill(b, 0, 0, visit{})
}

// shorten takes tokens from the end of the longer text until both fit (the second if they are equally long).
func shorten(size *[2]int, room int) {
	room = max(room, 0)
	for size[0]+size[1] > room {
		over := size[0] + size[1] - room
		k := 1
		if size[0] > size[1] {
			k = 0
		}
		size[k] -= min(max(size[k]-size[1-k], 1), over)
	}
}

// translation are pairs of texts.
type translation struct {
	library
	t        *tokenizer.Tokenizer
	sequence int
}

func (c translation) fill(b Batch, j int, i uint64, _ visit) error {
	file, i1 := c.find(int(i)) //nolint:gosec // A sample's number is below the count.
	p, special := file.pair(i1), c.t.Special
	first, end := tokenizer.Item{Text: tokenizer.None, ID: special.Start()}, tokenizer.Item{Text: tokenizer.None, ID: special.End}
	source, target := tokenizer.Item{Text: 0}, tokenizer.Item{Text: 1}
	p.size[0] = min(p.size[0], c.sequence-1) // a source that is cut has its end token, a target has none
	p.lay(tokenizer.Template{source, end}, c.sequence, row(b.Tokens, j, c.sequence), row(b.Types, j, c.sequence), row(b.Mask, j, c.sequence), special.Padding())
	p.lay(tokenizer.Template{target, end}, c.sequence, row(b.Targets, j, c.sequence), nil, nil, Ignored)
	p.lay(tokenizer.Template{first, target}, c.sequence, row(b.Decoder, j, c.sequence), nil, nil, special.Padding())
	return nil
}
