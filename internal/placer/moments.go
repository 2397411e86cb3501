package placer

import (
	"slices"
	"time"
)

// moment is what is free from a time on, until the next moment.
type moment struct {
	at    time.Time
	nodes []Node // its own, without what is reserved then, or will be later: who starts now may still be there
}

// reserve finds the first place and time at which a job has room, beside those that are reserved.
func (l *line) reserve(w *Waiting, want Job) (r reservation, known bool) {
	if l.blind {
		return r, false
	}
	l.foresee()
	for _, m := range l.moments {
		p, lacks := place(want, m.nodes, nil)
		if lacks != nil {
			continue
		}
		r = reservation{id: w.ID, at: m.at, want: want, placed: p}
		if w.Takes > 0 {
			r.until = m.at.Add(w.Takes)
		}
		return r, true
	}
	return r, false
}

// foresee makes the moments: now, and each time at which something is given back.
func (l *line) foresee() {
	if l.moments != nil {
		return
	}
	var ending []*Holder
	for i := range l.holders {
		if h := &l.holders[i]; !h.Ends.IsZero() {
			ending = append(ending, h)
		}
	}
	slices.SortStableFunc(ending, func(a, b *Holder) int { return a.ends(l.now).Compare(b.ends(l.now)) })
	l.moments = []moment{{l.now, slices.Clone(l.nodes)}}
	for _, h := range ending {
		last := &l.moments[len(l.moments)-1]
		if ends := h.ends(l.now); ends.After(last.at) {
			l.moments = append(l.moments, moment{ends, slices.Clone(last.nodes)})
			last = &l.moments[len(l.moments)-1]
		}
		for name, held := range h.Held {
			if i, known := l.at[name]; known {
				last.nodes[i].give(held)
			}
		}
	}
	for i := range l.reserved {
		l.withhold(&l.reserved[i])
	}
}

// keep notes a reservation.
func (l *line) keep(r reservation) {
	l.reserved = append(l.reserved, r)
	l.withhold(&r)
}

// withhold takes what is reserved from all moments before it is given back.
func (l *line) withhold(r *reservation) {
	if !r.until.IsZero() {
		i, known := slices.BinarySearchFunc(l.moments, r.until, func(m moment, at time.Time) int { return m.at.Compare(at) })
		if !known { // after now, since the job begins at some moment
			l.moments = slices.Insert(l.moments, i, moment{r.until, slices.Clone(l.moments[i-1].nodes)})
		}
	}
	for i := range l.moments {
		if m := &l.moments[i]; r.until.IsZero() || m.at.Before(r.until) {
			l.take(m.nodes, r)
		}
	}
}
