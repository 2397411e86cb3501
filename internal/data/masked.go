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
	if s := t.Special(); s.Class == tokenizer.None || s.Separator == tokenizer.None {
		return 0
	}
	return 2
}

func newMasked(w windows, t *tokenizer.Tokenizer, full int, share float64) masked {
	return masked{windows: w, full: full, share: share, t: t}
}

func (m masked) fill(b Batch, j int, i, key uint64) error {
	set(row(b.Types, j, m.full), 0)
	set(row(b.Mask, j, m.full), 1)
	ids, targets := row(b.Tokens, j, m.full), row(b.Targets, j, m.full)
	frame := (m.full - m.sequence) / 2
	at := int(i) * m.sequence
	for _, v := range [...][]int32{ids, targets} {
		if v == nil {
			continue
		}
		v = v[frame : frame+m.sequence]
		m.read(v, at)
		if err := m.check(v, at); err != nil {
			return err
		}
	}
	if ids != nil {
		m.hide(ids[frame:frame+m.sequence], key)
		if frame > 0 {
			ids[0], ids[m.full-1] = m.t.Special().Class, m.t.Special().Separator
		}
	}
	if targets != nil {
		m.ask(targets[frame:frame+m.sequence], key)
		if frame > 0 {
			targets[0], targets[m.full-1] = Ignored, Ignored
		}
	}
	return nil
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

func (m masked) ask(ids []int32, key uint64) {
	forced := m.forced(ids, key)
	for place, id := range ids {
		if !m.chosen(id, place, forced, key) {
			ids[place] = Ignored
		}
	}
}

func (m masked) hide(ids []int32, key uint64) {
	forced := m.forced(ids, key)
	for place, id := range ids {
		if !m.chosen(id, place, forced, key) {
			continue
		}
		draw := mix(key ^ mix(uint64(place))) //nolint:gosec // A place is not negative.
		switch u := unit(draw); {
		case u < 0.8:
			ids[place] = m.t.Special().Mask
		case u < 0.9:
			ids[place] = m.any(draw)
		}
	}
}

// any is a random token that is text; the mask if chance does not find one.
func (m masked) any(draw uint64) int32 {
	for range 64 {
		draw = mix(draw)
		if id := int32(draw % uint64(m.t.Vocabulary())); !m.t.IsSpecial(id) { //nolint:gosec // Below the vocabulary.
			return id
		}
	}
	return m.t.Special().Mask
}
