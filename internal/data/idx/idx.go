// Package idx reads IDX files, the format of the MNIST database (LeCun, Cortes and Burges 1998): a header of the element
// type and the sizes, big-endian, then the elements. Of the types it reads bytes, which are all that images and their
// labels use.
package idx

import (
	"bufio"
	"compress/gzip"
	"encoding/binary"
	"errors"
	"fmt"
	"io"

	"github.com/avgpipe/avgpipe/internal/access"
)

// Data is the content of a file.
type Data struct {
	Sizes []int  // of the dimensions, the outermost first
	Bytes []byte // the elements, the last dimension the fastest
}

const (
	typeByte      = 0x08
	maxDimensions = 8
)

// Read reads a file, through gzip if it is compressed. It takes at most limit bytes of elements. The error names the file.
func Read(opener *access.Opener, path string, limit int64) (Data, error) {
	file, err := opener.Open(path, 0)
	if err != nil {
		return Data{}, err
	}
	defer func() { _ = file.Close() }() // opened for reading: nothing is lost
	d, err := read(file, limit)
	if err != nil {
		return Data{}, fmt.Errorf("%s: %w", path, err)
	}
	return d, nil
}

func read(r io.Reader, limit int64) (Data, error) {
	plain := bufio.NewReader(r)
	if magic, err := plain.Peek(2); err != nil || magic[0] != 0x1f || magic[1] != 0x8b {
		return parse(plain, limit)
	}
	z, err := gzip.NewReader(plain)
	if err != nil {
		return Data{}, fmt.Errorf("gzip: %w", err)
	}
	return parse(z, limit)
}

// parse reads the header, the elements, and makes sure that nothing follows them.
func parse(r io.Reader, limit int64) (Data, error) {
	var head [4]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return Data{}, fmt.Errorf("not an IDX file: it ends within its first 4 bytes: %w", err)
	}
	if head[0] != 0 || head[1] != 0 {
		return Data{}, fmt.Errorf("not an IDX file: it starts with % x, not with 00 00", head[:2])
	}
	if head[2] != typeByte {
		return Data{}, fmt.Errorf("the elements have the type %#02x; only bytes (%#02x) are images or labels", head[2], typeByte)
	}
	if head[3] < 1 || head[3] > maxDimensions {
		return Data{}, fmt.Errorf("it has %d dimensions; 1 to %d are read", head[3], maxDimensions)
	}
	raw := make([]byte, 4*int(head[3]))
	if _, err := io.ReadFull(r, raw); err != nil {
		return Data{}, fmt.Errorf("it ends within the sizes of its %d dimensions: %w", head[3], err)
	}
	var d Data
	total := int64(1)
	for i := range int(head[3]) {
		n := int64(binary.BigEndian.Uint32(raw[4*i:]))
		if n == 0 {
			return Data{}, fmt.Errorf("dimension %d is empty", i)
		}
		d.Sizes = append(d.Sizes, int(n))
		if n > limit/total {
			return Data{}, fmt.Errorf("%v or more bytes, above the %d that are held in memory", d.Sizes, limit)
		}
		total *= n
	}
	var err error
	d.Bytes, err = io.ReadAll(io.LimitReader(r, total+1)) // room for them grows with what is there, not with what the header promises
	switch have := int64(len(d.Bytes)); {
	case errors.Is(err, io.ErrUnexpectedEOF):
		return Data{}, errors.New("it is truncated: the compressed stream has no end")
	case err != nil:
		return Data{}, err // also a wrong checksum of gzip
	case have < total:
		return Data{}, fmt.Errorf("it is truncated: %v needs %d bytes, %d are there", d.Sizes, total, have)
	case have > total:
		return Data{}, fmt.Errorf("it is longer than the %d bytes of %v", total, d.Sizes)
	}
	return d, nil
}
