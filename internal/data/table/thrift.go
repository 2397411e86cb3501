package table

import (
	"errors"
	"fmt"
	"io"

	"github.com/parquet-go/parquet-go/encoding/thrift"
)

// thriftDepth bounds how deep structures lie in each other; those of Parquet's metadata go down to about eight. The decoder goes
// deeper with each of them.
const thriftDepth = 64

var errThrift = errors.New("its metadata are not those of a Parquet file")

// thriftStructure is how many bytes a structure takes that text begins with. Every length in it is held against the bytes that are
// left: whoever decodes it afterwards can allocate by them. io.ErrUnexpectedEOF: it goes on behind text.
func thriftStructure(text []byte) (int, error) {
	r := &boundedReader{BytesReader: new(thrift.CompactProtocol).NewReaderFromBytes(text), size: len(text), open: []int32{1}}
	err := thrift.NewDecoder(r).Decode(&struct{}{}) // without fields: everything is stepped over
	if errors.Is(err, io.EOF) {
		err = io.ErrUnexpectedEOF
	}
	return r.BytesRead(), err
}

// boundedReader refuses lists that are longer than what is left of the text, those in lists, which Parquet has not, and structures that
// lie too deep.
type boundedReader struct {
	thrift.BytesReader
	size int
	open []int32 // by depth: how many structures have begun or are announced there, and have not ended
}

// Discard makes the decoder step over the text, not over a copy of it.
func (r *boundedReader) Discard(n int) (int, error) {
	inner, ok := r.BytesReader.(interface{ Discard(n int) (int, error) })
	if !ok {
		return 0, errThrift // every reader of bytes is one
	}
	return inner.Discard(n)
}

func (r *boundedReader) ReadField() (thrift.Field, error) {
	f, err := r.BytesReader.ReadField()
	switch {
	case err != nil:
	case f.Type == thrift.STOP:
		r.close()
	case f.Type == thrift.STRUCT:
		err = r.elements(1, thrift.STRUCT)
	}
	return f, err
}

func (r *boundedReader) ReadList() (thrift.List, error) {
	l, err := r.BytesReader.ReadList()
	if err == nil {
		err = r.elements(l.Size, l.Type)
	}
	return l, err
}

func (r *boundedReader) ReadSet() (thrift.Set, error) {
	l, err := r.ReadList()
	return thrift.Set(l), err
}

func (r *boundedReader) ReadMap() (thrift.Map, error) {
	m, err := r.BytesReader.ReadMap()
	if err == nil {
		err = errors.Join(r.elements(m.Size, m.Key), r.elements(m.Size, m.Value))
	}
	return m, err
}

// elements judges n values of a type that are to follow. None takes less than a byte.
func (r *boundedReader) elements(n int32, of thrift.Type) error {
	left := r.size - r.BytesRead()
	switch {
	case n < 0 || int(n) > left:
		return fmt.Errorf("a list claims %d elements in %d bytes: %w", n, left, io.ErrUnexpectedEOF)
	case of == thrift.LIST || of == thrift.SET || of == thrift.MAP:
		return errThrift
	case of == thrift.STRUCT:
		if len(r.open) == thriftDepth {
			return errThrift
		}
		if n > 0 {
			r.open = append(r.open, n)
		}
	}
	return nil
}

// close ends the structure that began last.
func (r *boundedReader) close() {
	if last := len(r.open) - 1; last >= 0 {
		if r.open[last]--; r.open[last] == 0 {
			r.open = r.open[:last]
		}
	}
}
