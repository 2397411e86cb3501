package placer

import (
	"fmt"
	"math/rand/v2"
	"reflect"
	"slices"
	"strconv"
	"testing"
	"time"
)

// plainly is reserve without anything that is kept from one job to the next.
func plainly(l *line, w *Waiting, want Job) (r reservation, known bool) {
	times := []time.Time{l.now}
	for i := range l.holders {
		if h := &l.holders[i]; !h.Ends.IsZero() {
			times = append(times, h.ends(l.now))
		}
	}
	for _, other := range l.reserved {
		times = append(times, other.at)
		if !other.until.IsZero() {
			times = append(times, other.until)
		}
	}
	slices.SortFunc(times, time.Time.Compare)
	for _, at := range slices.CompactFunc(times, time.Time.Equal) {
		nodes := slices.Clone(l.nodes)
		for i := range l.holders {
			h := &l.holders[i]
			for k := range nodes {
				if !h.Ends.IsZero() && !h.ends(l.now).After(at) {
					nodes[k].give(h.Held[nodes[k].Name])
				}
			}
		}
		for _, other := range l.reserved {
			if other.until.IsZero() || other.until.After(at) {
				nodes = other.want.Take(nodes, other.placed)
			}
		}
		p, err := Place(want, nodes, nil)
		if err != nil {
			continue
		}
		r = reservation{id: w.ID, at: at, want: want, placed: p}
		if w.Takes > 0 {
			r.until = at.Add(w.Takes)
		}
		return r, true
	}
	return r, false
}

// TestReservationsAreThoseOfAPlainSearch, over random clusters and queues.
func TestReservationsAreThoseOfAPlainSearch(t *testing.T) {
	found := 0
	for seed := range uint64(500) {
		random := rand.New(rand.NewPCG(seed, 0))
		now := time.Unix(1700000000, 0)
		minutes := func(most int) time.Duration { return time.Duration(random.IntN(most)) * time.Minute }
		var nodes []Node
		var holders []Holder
		for i := range 1 + random.IntN(4) {
			n := node(fmt.Sprintf("n%d", i), 1+random.IntN(4))
			if random.IntN(2) > 0 {
				taken := 1 + random.IntN(len(n.Cores))
				h := Holder{ID: n.Name, Held: map[string]Held{n.Name: {Cores: n.Cores[:taken:taken]}}}
				if random.IntN(4) > 0 {
					h.Ends = now.Add(minutes(20) - 2*time.Minute)
				}
				n.Cores, holders = n.Cores[taken:], append(holders, h)
			}
			nodes = append(nodes, n)
		}
		l := newLine(now, nodes, holders)
		for i := range 8 {
			w := Waiting{ID: strconv.Itoa(i), Want: Job{Threads: 1, Spread: random.IntN(2) > 0}}
			for d := range 1 + random.IntN(4) {
				w.Want.Devices = append(w.Want.Devices, d)
			}
			if random.IntN(3) > 0 {
				w.Takes = minutes(30)
			}
			want, _ := w.Want.fitted(l.idle)
			if !l.blind {
				wanted, expect := plainly(l, &w, want)
				got, known := l.reserve(&w, want)
				if known != expect || !reflect.DeepEqual(got, wanted) {
					t.Fatalf("seed %d, job %d: %v %+v; want %v %+v", seed, i, known, got, expect, wanted)
				}
				if known && got.at.After(now) {
					found++
				}
			}
			l.next(&w)
		}
	}
	if found < 500 {
		t.Errorf("only %d reservations were of a later time", found)
	}
}
