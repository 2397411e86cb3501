package tokenizer

import "unicode/utf8"

// wordPiece takes the longest token that a word starts with, again and again (Wu et al. 2016, section 4.1; the greedy
// search of BERT's implementation).
type wordPiece struct {
	vocabulary
	prefix string // of a token that does not start a word
	most   int    // characters of a word; a longer one is unknown
}

func (w *wordPiece) append(ids []int32, word string) ([]int32, error) {
	from := len(ids)
	if utf8.RuneCountInString(word) > w.most {
		return w.give(ids, word)
	}
	for at := 0; at < len(word); {
		id, size := w.match(word, at)
		if size == 0 {
			return w.give(ids[:from], word)
		}
		ids = append(ids, id)
		at += size
	}
	return ids, nil
}

// match is the longest token at a place, and its length in bytes; 0 without one.
func (w *wordPiece) match(word string, at int) (id int32, size int) {
	prefix := ""
	if at > 0 {
		prefix = w.prefix
	}
	for end := min(len(word), at+w.longest); end > at; end-- {
		if end < len(word) && !utf8.RuneStart(word[end]) {
			continue
		}
		if id, ok := w.ids[prefix+word[at:end]]; ok {
			return id, end - at
		}
	}
	return 0, 0
}
