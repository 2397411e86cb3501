package tokenizer

import (
	"math"
	"unicode/utf8"
)

// unknownPenalty is how much less likely an unknown character is than the least likely token.
const unknownPenalty = 10

// unigram cuts a word into the tokens of the greatest probability (Kudo 2018, section 3.2; Viterbi's algorithm).
type unigram struct {
	ids          map[string]int32
	scores       []float64 // by id: the logarithm of a probability
	trie         map[edge]int32
	tokenAt      []int32 // by node of the trie: the token that ends there, or None
	unknown      int32
	unknownScore float64
	byteFallback bool
}

// edge leads from a node of the trie to the next.
type edge struct {
	node int32
	b    byte
}

func newUnigram(tokens []string, scores []float64, unknown int32, byteFallback bool) *unigram {
	u := &unigram{
		ids: map[string]int32{}, scores: scores, trie: map[edge]int32{}, tokenAt: []int32{None},
		unknown: unknown, byteFallback: byteFallback,
	}
	least := math.Inf(1)
	for i, token := range tokens {
		u.ids[token] = int32(i) //nolint:gosec // Ids are below maxID.
		least = min(least, scores[i])
		node := int32(0)
		for _, b := range []byte(token) {
			next, ok := u.trie[edge{node, b}]
			if !ok {
				next = int32(len(u.tokenAt)) //nolint:gosec // Fewer nodes than bytes in a file, which MaxBytes bounds.
				u.trie[edge{node, b}] = next
				u.tokenAt = append(u.tokenAt, None)
			}
			node = next
		}
		if node != 0 {
			u.tokenAt[node] = int32(i) //nolint:gosec // As above.
		}
	}
	u.unknownScore = least - unknownPenalty
	return u
}

// step is the best way to a place of a word.
type step struct {
	score   float64
	from    int // where its last token starts
	id      int32
	reached bool
}

func (u *unigram) append(ids []int32, word string) ([]int32, error) {
	best := u.search(word)
	var path []step // from the end
	for at := len(word); at > 0; at = best[at].from {
		path = append(path, best[at])
	}
	for k := len(path) - 1; k >= 0; k-- {
		from := path[k].from
		for path[k].id == u.unknown && k > 0 && path[k-1].id == u.unknown { // unknown characters in a row are one token
			k--
		}
		if path[k].id != u.unknown {
			ids = append(ids, path[k].id)
			continue
		}
		end := len(word)
		if k > 0 {
			end = path[k-1].from
		}
		var err error
		if ids, err = u.give(ids, word[from:end]); err != nil {
			return ids, err
		}
	}
	return ids, nil
}

func (u *unigram) give(ids []int32, text string) ([]int32, error) {
	if id, ok := u.ids[text]; ok { // the unknown token's own name
		return append(ids, id), nil
	}
	if u.byteFallback {
		if bytes, ok := byteTokens(u.ids, text); ok {
			return append(ids, bytes...), nil
		}
	}
	if u.unknown == None {
		return ids, &UnknownError{Text: text}
	}
	return append(ids, u.unknown), nil
}

func (u *unigram) search(word string) []step {
	best := make([]step, len(word)+1)
	best[0].reached = true
	better := func(from, to int, id int32, score float64) {
		if s := &best[to]; !s.reached || score > s.score {
			*s = step{score: score, from: from, id: id, reached: true}
		}
	}
	for at := 0; at < len(word); {
		_, size := utf8.DecodeRuneInString(word[at:])
		single := false
		node := int32(0)
		for end := at; end < len(word); {
			next, ok := u.trie[edge{node, word[end]}]
			if !ok {
				break
			}
			node = next
			end++
			if id := u.tokenAt[node]; id != None {
				better(at, end, id, best[at].score+u.scores[id])
				single = single || end-at == size
			}
		}
		if !single {
			better(at, at+size, u.unknown, best[at].score+u.unknownScore)
		}
		at += size
	}
	return best
}
