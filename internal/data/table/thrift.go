package table

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
)

// Types of the compact protocol of Apache Thrift, in which Parquet writes its metadata.
const (
	thriftStop   = 0
	thriftTrue   = 1
	thriftFalse  = 2
	thriftByte   = 3
	thriftI64    = 6 // and the two below: variable length
	thriftDouble = 7
	thriftBinary = 8
	thriftList   = 9
	thriftSet    = 10
	thriftMap    = 11
	thriftStruct = 12
)

// thriftDepth bounds structures in structures. Those of Parquet have 6.
const thriftDepth = 32

var errThrift = errors.New("its metadata are not those of a Parquet file")

// thriftStructure is how many bytes a structure takes that text begins with. Every length in it is held against the bytes that are
// left: whoever decodes it afterwards can allocate by them. io.ErrUnexpectedEOF: it goes on behind text.
func thriftStructure(text []byte) (int, error) {
	t := thriftText{text}
	err := t.structure(0)
	return len(text) - len(t.text), err
}

// thriftText steps over values.
type thriftText struct{ text []byte }

func (t *thriftText) structure(depth int) error {
	if depth > thriftDepth {
		return errThrift
	}
	for {
		head, err := t.byte()
		if err != nil || head == thriftStop {
			return err
		}
		if head>>4 == 0 { // the field's number follows
			if _, err := t.number(); err != nil {
				return err
			}
		}
		kind := head & 0xf
		if kind == thriftTrue || kind == thriftFalse { // the type is the value
			continue
		}
		if err := t.value(kind, depth); err != nil {
			return err
		}
	}
}

func (t *thriftText) value(kind byte, depth int) error {
	switch kind {
	case thriftTrue, thriftFalse, thriftByte:
		return t.skip(1)
	case thriftByte + 1, thriftI64 - 1, thriftI64:
		_, err := t.number()
		return err
	case thriftDouble:
		return t.skip(8)
	case thriftBinary:
		n, err := t.number()
		if err != nil {
			return err
		}
		return t.skip(n)
	case thriftList, thriftSet:
		head, err := t.byte()
		n := uint64(head >> 4)
		if err == nil && n == 0xf {
			n, err = t.number()
		}
		if err != nil {
			return err
		}
		return t.elements(n, depth, head&0xf)
	case thriftMap:
		n, err := t.number()
		if err != nil || n == 0 {
			return err
		}
		kinds, err := t.byte()
		if err != nil {
			return err
		}
		return t.elements(n, depth, kinds>>4, kinds&0xf)
	case thriftStruct:
		return t.structure(depth + 1)
	}
	return errThrift
}

// elements steps over n values of each kind. None takes less than a byte.
func (t *thriftText) elements(n uint64, depth int, kinds ...byte) error {
	if depth > thriftDepth {
		return errThrift
	}
	if n > uint64(len(t.text)) {
		return fmt.Errorf("a list claims %d elements in %d bytes: %w", n, len(t.text), io.ErrUnexpectedEOF)
	}
	for range n {
		for _, kind := range kinds {
			if err := t.value(kind, depth+1); err != nil {
				return err
			}
		}
	}
	return nil
}

func (t *thriftText) byte() (byte, error) {
	if len(t.text) == 0 {
		return 0, io.ErrUnexpectedEOF
	}
	b := t.text[0]
	t.text = t.text[1:]
	return b, nil
}

func (t *thriftText) skip(n uint64) error {
	if n > uint64(len(t.text)) {
		return fmt.Errorf("a value claims %d bytes of %d: %w", n, len(t.text), io.ErrUnexpectedEOF)
	}
	t.text = t.text[n:]
	return nil
}

// number steps over a number of variable length.
func (t *thriftText) number() (uint64, error) {
	v, n := binary.Uvarint(t.text)
	switch {
	case n == 0:
		return 0, io.ErrUnexpectedEOF
	case n < 0:
		return 0, errThrift
	}
	t.text = t.text[n:]
	return v, nil
}
