package tokenizer

import "unicode/utf8"

// bpe merges neighbouring pieces of a word, the pair that was learned first before others (Sennrich et al. 2016, section 3.2).
type bpe struct {
	vocabulary
	merges      map[[2]int32]merge
	fuseUnknown bool // several unknown characters in a row are one token
	whole       bool // a word that is a token as it is needs no merges
	prefix      string
	suffix      string
}

// merge is what becomes of a pair.
type merge struct {
	rank int
	id   int32
}

// piece is a part of a word while it is merged: a list in an array.
type piece struct {
	id         int32
	prev, next int  // None at the ends
	gone       bool // merged into the one before
}

func (b *bpe) append(ids []int32, word string) ([]int32, error) {
	if b.whole {
		if id, ok := b.ids[word]; ok {
			return append(ids, id), nil
		}
	}
	pieces, err := b.pieces(word)
	if err != nil {
		return ids, err
	}
	b.join(pieces)
	for _, p := range pieces {
		if !p.gone {
			ids = append(ids, p.id)
		}
	}
	return ids, nil
}

// pieces are the characters of a word.
func (b *bpe) pieces(word string) ([]piece, error) {
	var ids []int32
	fusing := false
	for i, size := 0, 0; i < len(word); i += size {
		_, size = utf8.DecodeRuneInString(word[i:])
		name := word[i : i+size]
		if i > 0 {
			name = b.prefix + name
		}
		if i+size == len(word) {
			name += b.suffix
		}
		if id, ok := b.ids[name]; ok {
			ids, fusing = append(ids, id), false
			continue
		}
		more, err := b.give(nil, word[i:i+size])
		if err != nil {
			return nil, err
		}
		unknown := len(more) == 1 && more[0] == b.unknown
		if !unknown || !fusing || !b.fuseUnknown {
			ids = append(ids, more...)
		}
		fusing = unknown
	}
	pieces := make([]piece, len(ids))
	for i, id := range ids {
		pieces[i] = piece{id: id, prev: i - 1, next: i + 1}
	}
	if n := len(pieces); n > 0 {
		pieces[n-1].next = None
	}
	return pieces, nil
}

// candidate is a pair that could be merged when it was found.
type candidate struct {
	merge
	at          int // of the left piece
	left, right int32
}

// candidates is a binary heap: the earliest merge first, of equal ones the leftmost. It is written out, since the standard
// library's boxes every candidate, which takes a long word half as much time again.
type candidates []candidate

func (c candidates) less(i, j int) bool {
	return c[i].rank < c[j].rank || c[i].rank == c[j].rank && c[i].at < c[j].at
}

func (c *candidates) push(x candidate) {
	*c = append(*c, x)
	h := *c
	for i := len(h) - 1; i > 0; {
		parent := (i - 1) / 2
		if !h.less(i, parent) {
			return
		}
		h[i], h[parent] = h[parent], h[i]
		i = parent
	}
}

func (c *candidates) pop() candidate {
	h := *c
	top, last := h[0], len(h)-1
	h[0] = h[last]
	h = h[:last]
	*c = h
	for i := 0; ; {
		child := 2*i + 1
		if child >= last {
			return top
		}
		if child+1 < last && h.less(child+1, child) {
			child++
		}
		if !h.less(child, i) {
			return top
		}
		h[i], h[child] = h[child], h[i]
		i = child
	}
}

// join merges until nothing can be merged, in n log n steps: without a step that cuts words, a word is a whole text.
func (b *bpe) join(pieces []piece) {
	var open candidates
	look := func(at int) {
		if at == None || pieces[at].next == None {
			return
		}
		left, right := pieces[at].id, pieces[pieces[at].next].id
		if m, ok := b.merges[[2]int32{left, right}]; ok {
			open.push(candidate{merge: m, at: at, left: left, right: right})
		}
	}
	for i := range pieces {
		look(i)
	}
	for len(open) > 0 {
		c := open.pop()
		p := &pieces[c.at]
		if p.gone || p.id != c.left || p.next == None || pieces[p.next].id != c.right {
			continue // changed since it was found
		}
		next := p.next
		p.id, p.next = c.id, pieces[next].next
		pieces[next].gone = true
		if p.next != None {
			pieces[p.next].prev = c.at
		}
		look(p.prev)
		look(c.at)
	}
}
