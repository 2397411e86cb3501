package data

import (
	"context"
	"fmt"
	"slices"
	"sort"
	"sync/atomic"

	"github.com/avgpipe/avgpipe/internal/data/table"
	"github.com/avgpipe/avgpipe/internal/data/tokenizer"
)

// texts are samples of one or two texts each, as tokens: those of one file.
type texts struct {
	tokens run
	ends   []uint32 // where each text ends: of sample i, 2i is the first text's and 2i+1 the second's
	labels []int32  // of classifications
	ids    []int32  // of the text that is read
}

// maxTexts is how many tokens the texts of one file have at most, so that 4 bytes count them.
const maxTexts = 1<<32 - 1

func (t *texts) count() int { return len(t.ends) / 2 }

// bounds are the places of text k of sample i.
func (t *texts) bounds(i, k int) (from, to int) {
	if at := 2*i + k; at > 0 {
		from = int(t.ends[at-1])
	}
	return from, int(t.ends[2*i+k])
}

// library are the samples of several files, in their order.
type library struct {
	files  []*texts
	starts []int // the number of each file's first sample, then the total
}

func newLibrary(files []*texts) library {
	l := library{starts: make([]int, 1, len(files)+1)}
	for _, f := range files {
		l.files = append(l.files, f)
		l.starts = append(l.starts, l.starts[len(l.starts)-1]+f.count())
	}
	return l
}

func (l library) count() uint64 { return uint64(l.starts[len(l.starts)-1]) } //nolint:gosec // A count.

// find is the file of a sample, and its number in it.
func (l library) find(i int) (*texts, int) {
	k := sort.SearchInts(l.starts, i+1) - 1
	return l.files[k], i - l.starts[k]
}

// eachTexts reads the rows of all files, and names the classes of classifications.
func (o *opener) eachTexts(ctx context.Context, read func(f File, t *texts, labels *labelTable) error) (all []*texts, classes []string, err error) {
	files := slices.Concat(o.train, o.held)
	all = make([]*texts, len(files))
	found, samples := make([]*labelTable, len(files)), make([][]int32, len(files))
	err = o.each(ctx, files, func(i int, f File) error {
		all[i], found[i] = &texts{}, newLabelTable(f.Path)
		err := read(f, all[i], found[i])
		samples[i] = all[i].labels
		return err
	})
	if err == nil && o.Task == Classification {
		classes, err = o.classify(samples, found)
	}
	return all, classes, err
}

// openTexts reads the rows of classifications and translations.
func (o *opener) openTexts(ctx context.Context, s *Set) error {
	var long atomic.Int64
	read, classes, err := o.eachTexts(ctx, func(f File, t *texts, labels *labelTable) error {
		return o.readTexts(ctx, f, t, labels, &long)
	})
	if err != nil {
		return err
	}
	s.labels = classes
	if n := long.Load(); n > 0 {
		s.notes = append(s.notes, fmt.Sprintf("data.sequence: samples longer than %d tokens, which were cut: %d", o.Sequence, n))
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
		return wrap(newLibrary(read[:len(o.train)])), wrap(newLibrary(read[len(o.train):])), nil
	}
	return o.split(wrap(newLibrary(read)))
}

func (o *opener) classification(l library) classification {
	return classification{library: l, t: o.vocab, sequence: o.Sequence, pair: o.Columns.TextPair != ""}
}

// readTexts reads the rows of one file.
func (o *opener) readTexts(ctx context.Context, f File, t *texts, labels *labelTable, long *atomic.Int64) error {
	t.tokens.width = widthOf(o.vocab.Vocabulary())
	e := o.vocab.NewEncoder()
	held := int64(0)
	return o.readRows(ctx, f, t, labels, func(values, columns []string) error {
		sizes, err := t.add(e, values, columns)
		if err != nil {
			return err
		}
		if err := o.fits(sizes, columns, long); err != nil {
			return err
		}
		now := int64(len(t.tokens.raw)) + 4*int64(len(t.ends)+len(t.labels))
		err, held = o.hold(f.Path, now-held), now
		return err
	})
}

// readRows reads the rows of one file, notes their labels, and passes their texts on.
func (o *opener) readRows(ctx context.Context, f File, t *texts, labels *labelTable, add func(values, columns []string) error) error {
	c := o.tableConfig()
	return table.Read(o.Access, f.Path, c, func(r table.Row) error {
		values, columns := r.Values, c.Columns
		var err error
		if o.Task == Classification {
			t.labels = append(t.labels, labels.number(values[0], r.Line))
			if len(labels.names) > maxClasses {
				err = fmt.Errorf("column %q has more than %d different labels; is it the class?", columns[0], maxClasses)
			}
			values, columns = values[1:], columns[1:]
		} else if i := slices.Index(values, ""); i >= 0 {
			err = fmt.Errorf("column %q is empty", columns[i])
		}
		if err == nil {
			err = add(values, columns)
		}
		if err != nil {
			return place(f.Path, r.Line, err)
		}
		return ctx.Err()
	})
}

// add appends a sample of one or two texts, and returns their tokens.
func (t *texts) add(e *tokenizer.Encoder, values, columns []string) (sizes [2]int, err error) {
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

// fits refuses a text to classify that has no tokens, and counts those that will be cut.
func (o *opener) fits(sizes [2]int, columns []string, long *atomic.Int64) error {
	if o.Task == Translation {
		if max(sizes[0], sizes[1]) >= o.Sequence { // with the end token
			long.Add(1)
		}
		return nil
	}
	n := sizes[0] + sizes[1] + o.classification(library{}).template().Special()
	if n == 0 {
		return fmt.Errorf("column %q is empty", columns[0])
	}
	if n > o.Sequence {
		long.Add(1)
	}
	return nil
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
		return c.t.Pair()
	}
	return c.t.Single()
}

func (c classification) fill(b Batch, j int, i, _ uint64) error {
	file, i1 := c.find(int(i)) //nolint:gosec // A sample's number is below the count.
	if b.Targets != nil {
		b.Targets[j] = file.labels[i1]
	}
	template := c.template()
	var from, size [2]int
	for k := range from {
		var to int
		from[k], to = file.bounds(i1, k)
		size[k] = to - from[k]
	}
	shorten(&size, c.sequence-template.Special())
	ids, types, mask := row(b.Tokens, j, c.sequence), row(b.Types, j, c.sequence), row(b.Mask, j, c.sequence)
	at := 0
	for _, item := range template {
		n := 1
		if item.Text != tokenizer.None {
			n = size[item.Text]
		}
		n = min(n, c.sequence-at) // a sequence shorter than the template
		if ids != nil && item.Text == tokenizer.None && n > 0 {
			ids[at] = item.ID
		} else if ids != nil && n > 0 {
			file.tokens.read(ids[at:at+n], from[item.Text])
		}
		put(types, at, n, item.Type)
		put(mask, at, n, 1)
		at += n
	}
	put(ids, at, c.sequence-at, c.t.Special().Padding())
	put(types, at, c.sequence-at, 0)
	put(mask, at, c.sequence-at, 0)
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
	one := &texts{tokens: run{width: widthOf(t.Vocabulary())}}
	if _, err := one.add(t.NewEncoder(), parts, []string{"text", "text_pair"}); err != nil {
		return err
	}
	c.library = newLibrary([]*texts{one})
	return c.fill(b, 0, 0, 0)
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

func (c translation) fill(b Batch, j int, i, _ uint64) error {
	file, i1 := c.find(int(i)) //nolint:gosec // A sample's number is below the count.
	special := c.t.Special()
	pad, end := special.Padding(), special.End
	source, target := row(b.Tokens, j, c.sequence), row(b.Targets, j, c.sequence)
	decoder := row(b.Decoder, j, c.sequence)

	from, to := file.bounds(i1, 0)
	n := min(to-from, c.sequence-1) // the end token is there in any case
	if source != nil {
		file.tokens.read(source[:n], from)
		source[n] = end
		set(source[n+1:], pad)
	}
	put(row(b.Types, j, c.sequence), 0, c.sequence, 0)
	put(row(b.Mask, j, c.sequence), 0, n+1, 1)
	put(row(b.Mask, j, c.sequence), n+1, c.sequence-n-1, 0)

	from, to = file.bounds(i1, 1)
	n = min(to-from, c.sequence) // one that is cut has no end
	if target != nil {
		file.tokens.read(target[:n], from)
		put(target, n, min(1, c.sequence-n), end)
		put(target, min(n+1, c.sequence), max(c.sequence-n-1, 0), Ignored)
	}
	if decoder != nil {
		decoder[0] = special.Start()
		n = min(n, c.sequence-1)
		file.tokens.read(decoder[1:1+n], from)
		set(decoder[1+n:], pad)
	}
	return nil
}
