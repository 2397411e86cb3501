package data

import "github.com/avgpipe/avgpipe/internal/data/tokenizer"

// masked are the samples of a masked language model: windows of a stream, between the class and the separator token where
// the tokenizer has them. Of the tokens that are text, a share is to be guessed; of those, 80% become the mask, 10% any
// other token, and 10% stay (Devlin et al. 2019, section 3.1 and appendix A.1). Unlike there, each token is chosen by itself,
// not a fixed number of them, but at least one; and again in every epoch (Liu et al. 2019, section 4.1).
type masked struct {
	windows
	full  int // T, with the tokens around the window
	share float64
	t     *tokenizer.Tokenizer
}

// framing is how many tokens stand around a window.
func framing(t *tokenizer.Tokenizer) int {
	if s := t.Special; s.Class == tokenizer.None || s.Separator == tokenizer.None {
		return 0
	}
	return 2
}

func (m masked) fill(b Batch, j int, i uint64, of visit) error {
	set(row(b.Types, j, m.full), 0)
	set(row(b.Mask, j, m.full), 1)
	frame, at, special := (m.full-m.sequence)/2, int(i)*m.sequence, m.t.Special
	around := [...][2]int32{{special.Class, special.Separator}, {Ignored, Ignored}}
	for k, buffer := range [...][]int32{b.Tokens, b.Targets} {
		if buffer == nil {
			continue
		}
		v := row(buffer, j, m.full)
		ids := v[frame : frame+m.sequence]
		m.read(ids, at)
		if err := m.check(ids, at); err != nil {
			return err
		}
		m.mask(ids, of.key, k == 1)
		if frame > 0 {
			v[0], v[m.full-1] = around[k][0], around[k][1]
		}
	}
	return nil
}

// mask hides the tokens of a window that are to be guessed or, of targets, ignores all others.
func (m masked) mask(ids []int32, key uint64, targets bool) {
	forced := m.forced(ids, key)
	for place, id := range ids {
		switch chosen := m.chosen(id, place, forced, key); {
		case targets && !chosen:
			ids[place] = Ignored
		case !targets && chosen:
			ids[place] = m.hidden(id, mix(key^mix(uint64(place)))) //nolint:gosec // A place is not negative.
		}
	}
}

func unit(x uint64) float64 { return float64(x>>11) / (1 << 53) }

// chosen reports whether the token at a place of the window is to be guessed. Forced is a place that is in any case.
func (m masked) chosen(id int32, place, forced int, key uint64) bool {
	return !m.t.IsSpecial(id) && (place == forced || unit(mix(key+uint64(place))) < m.share) //nolint:gosec // A place is not negative.
}

// forced is the place of a token that is to be guessed if no other is: the first that is text from a random one on; -1
// when one is chosen anyway, or all are special.
func (m masked) forced(ids []int32, key uint64) int {
	for place, id := range ids {
		if m.chosen(id, place, -1, key) {
			return -1
		}
	}
	start := mix(^key) % uint64(len(ids))
	for k := range ids {
		place := (int(start) + k) % len(ids) //nolint:gosec // Below len(ids).
		if !m.t.IsSpecial(ids[place]) {
			return place
		}
	}
	return -1
}

// hidden is what a model sees of a token that it has to guess.
func (m masked) hidden(id int32, draw uint64) int32 {
	switch u := unit(draw); {
	case u < 0.8:
		return m.t.Special.Mask
	case u < 0.9:
		return m.any(draw)
	}
	return id
}

// any is a random token that is text; the mask if chance does not find one.
func (m masked) any(draw uint64) int32 {
	for range 64 {
		draw = mix(draw)
		if id := int32(draw % uint64(m.t.Vocabulary)); !m.t.IsSpecial(id) { //nolint:gosec // Below the vocabulary.
			return id
		}
	}
	return m.t.Special.Mask
}
