package data

import (
	"encoding/binary"
	"fmt"
	"sort"
)

// run is consecutive token ids as they lie in memory or in a mapped file: little-endian, of 1, 2 or 4 bytes.
type run struct {
	raw   []byte
	width int
}

func (r run) size() int { return len(r.raw) / r.width }

func (r run) slice(from, to int) run {
	return run{raw: r.raw[from*r.width : to*r.width], width: r.width}
}

// read writes the first len(ids) tokens from at on.
func (r run) read(ids []int32, at int) {
	raw := r.raw[at*r.width : (at+len(ids))*r.width]
	switch r.width {
	case 1:
		for i, b := range raw[:len(ids)] {
			ids[i] = int32(b)
		}
	case 2:
		for i := range ids {
			ids[i] = int32(binary.LittleEndian.Uint16(raw[2*i:]))
		}
	default:
		for i := range ids {
			ids[i] = int32(binary.LittleEndian.Uint32(raw[4*i:])) //nolint:gosec // Negative ones are refused by check.
		}
	}
}

// widthOf is the bytes that an id below vocabulary takes.
func widthOf(vocabulary int) int {
	switch {
	case vocabulary <= 1<<8:
		return 1
	case vocabulary <= 1<<16:
		return 2
	}
	return 4
}

func appendID(raw []byte, width, id int) []byte {
	switch width {
	case 1:
		return append(raw, byte(id))
	case 2:
		return binary.LittleEndian.AppendUint16(raw, uint16(id)) //nolint:gosec // Below 1<<16, by widthOf.
	}
	return binary.LittleEndian.AppendUint32(raw, uint32(id)) //nolint:gosec // Ids are below 1<<31.
}

// joined are parts one after the other, their entries numbered through.
type joined[T interface{ size() int }] struct {
	parts  []T
	starts []int // the number of each part's first entry, then the total
}

func join[T interface{ size() int }](parts []T) joined[T] {
	j := joined[T]{starts: make([]int, 1, len(parts)+1)}
	for _, p := range parts {
		if n := p.size(); n > 0 {
			j.parts = append(j.parts, p)
			j.starts = append(j.starts, j.total()+n)
		}
	}
	return j
}

func (j joined[T]) total() int { return j.starts[len(j.starts)-1] }

// find is the part of an entry, and the entry's number in it.
func (j joined[T]) find(i int) (T, int) {
	k := sort.SearchInts(j.starts, i+1) - 1
	return j.parts[k], i - j.starts[k]
}

// windows are the samples of a language: T+1 consecutive tokens, every T tokens.
type windows struct {
	joined[run]
	sequence   int
	vocabulary int // ids are below it
}

func (w windows) count() uint64 { return countWindows(int64(w.total()), w.sequence) }

// countWindows is how many windows n tokens make.
func countWindows(n int64, sequence int) uint64 { return uint64(max(n-1, 0)) / uint64(sequence) }

func (w windows) fill(b Batch, j int, i uint64, _ visit) error {
	at := int(i) * w.sequence
	for k, buffer := range [...][]int32{b.Tokens, b.Targets} {
		if buffer == nil {
			continue
		}
		ids := row(buffer, j, w.sequence)
		w.read(ids, at+k)
		if err := w.check(ids, at+k); err != nil {
			return err
		}
	}
	set(row(b.Types, j, w.sequence), 0)
	set(row(b.Mask, j, w.sequence), 1)
	return nil
}

// read writes len(ids) tokens from at on; there are as many.
func (w windows) read(ids []int32, at int) {
	for len(ids) > 0 {
		r, from := w.find(at)
		n := min(len(ids), r.size()-from)
		r.read(ids[:n], from)
		ids, at = ids[n:], at+n
	}
}

// check reports an id beyond the vocabulary: only a damaged token file has one.
func (w windows) check(ids []int32, at int) error {
	for i, id := range ids {
		if uint32(id) >= uint32(w.vocabulary) { //nolint:gosec // A negative id is above any vocabulary.
			return fmt.Errorf("token %d is %d; the vocabulary has %d", at+i, uint32(id), w.vocabulary) //nolint:gosec // As above.
		}
	}
	return nil
}
