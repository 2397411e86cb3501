package tokenizer

import "unicode/utf8"

// unknownPenalty is how much less likely an unknown character is than the least likely token.
const unknownPenalty = 10

// unigram cuts a word into the tokens of the greatest probability (Kudo 2018, section 3.2; Viterbi's algorithm).
type unigram struct {
	vocabulary
	scores       []float64 // by id: the logarithm of a probability
	unknownScore float64
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
		if id, ok := u.ids[word[from:end]]; ok { // the unknown token's own name
			ids = append(ids, id)
		} else if ids, err = u.give(ids, word[from:end]); err != nil {
			return ids, err
		}
	}
	return ids, nil
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
		for end := at + 1; end <= min(len(word), at+u.longest); end++ {
			if id, ok := u.ids[word[at:end]]; ok {
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
