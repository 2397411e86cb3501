package data

import (
	"cmp"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"slices"
	"strconv"
)

// piece is a run of bytes of one file. In memory a separator follows it.
type piece struct {
	file        int // index in the listing
	first, size int64
}

// tokens is the room a piece takes, its separator included.
func (p piece) tokens() int64 { return p.size + 1 }

func tokens(pieces []piece) (n int64) {
	for _, p := range pieces {
		n += p.tokens()
	}
	return n
}

// divide parts the files into those to train on and those held out, of about share of all tokens. It depends on names and
// sizes alone, so that every host and every run holds out the same, whatever their seed.
//
// Files are held out whole, in the order of a hash of their names, until the next would exceed the share. When that does
// not give a window (a single file, or few large ones), the end of the largest file makes up for it. Both parts have at
// least one window of sequence+1 tokens.
func divide(files []File, share float64, sequence int) (train, held []piece, err error) {
	var total int64
	for _, f := range files {
		total += f.Bytes + 1
	}
	need := int64(sequence) + 1
	if total <= 2*need { // one more than two windows, so that a cut may cost a separator
		return nil, nil, tooShort(total, sequence)
	}
	want := max(int64(share*float64(total)), need)
	limit := min(want+need, total-need) // for the few first files, each shorter than a window
	out := make([]bool, len(files))
	var have int64
	for _, i := range byHash(files) {
		size := files[i].Bytes + 1
		if have >= need && have+size > want {
			break
		}
		if have+size <= want || size < need && have+size <= limit {
			out[i], have = true, have+size
		}
	}
	tail, take := -1, int64(0)
	if have < need {
		tail, take = largest(files, out), want-have
	}
	for i, f := range files {
		switch {
		case i == tail && f.Bytes > take:
			train = append(train, piece{file: i, size: f.Bytes - take})
			held = append(held, piece{file: i, first: f.Bytes - take, size: take})
		case i == tail || out[i]:
			held = append(held, piece{file: i, size: f.Bytes})
		default:
			train = append(train, piece{file: i, size: f.Bytes})
		}
	}
	return train, held, nil
}

// byHash orders files by a hash of their names. Two patterns can give the same name: then as they are listed.
func byHash(files []File) []int {
	hashes, order := make([]uint64, len(files)), make([]int, len(files))
	for i, f := range files {
		sum := sha256.Sum256([]byte(f.Name))
		hashes[i], order[i] = binary.BigEndian.Uint64(sum[:]), i
	}
	slices.SortStableFunc(order, func(a, b int) int { return cmp.Compare(hashes[a], hashes[b]) })
	return order
}

func largest(files []File, out []bool) int {
	best := -1
	for i, f := range files {
		if !out[i] && (best < 0 || f.Bytes > files[best].Bytes) {
			best = i
		}
	}
	return best
}

func tooShort(total int64, sequence int) *Error {
	fits := (total-1)/2 - 1
	if fits < 1 {
		return &Error{Key: "data.files", Err: fmt.Errorf("the files hold %d tokens, too few to train on", total)}
	}
	return &Error{
		Key: "data.sequence", Nearest: strconv.FormatInt(fits, 10),
		Err: fmt.Errorf("a sample of %d tokens needs files of at least %d, to train on one and hold out another; they hold %d",
			sequence, 2*(int64(sequence)+1)+1, total),
	}
}
