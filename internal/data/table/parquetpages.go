package table

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"

	"github.com/parquet-go/parquet-go/encoding/thrift"
	"github.com/parquet-go/parquet-go/format"
)

// The library that reads Parquet allocates what headers ask for. So they are looked at first: what a file holds is held against its
// size, and what is made of it against these bounds.
const (
	maxFooter     = 256 << 20 // bytes of metadata
	maxPageHeader = 16 << 20  // bytes of a page's header, statistics included
	maxPage       = 256 << 20 // bytes of a page once it is decompressed; writers make them of about 1 MiB
	maxPageValues = 16 << 20  // values of a page; a run of equal ones takes a few bytes
)

// checkFooter looks at the metadata at the end of a file.
func checkFooter(file io.ReaderAt, size int64) error {
	const frame = 8 // the length of the metadata, and PAR1
	if size < frame+4 {
		return fmt.Errorf("not a Parquet file, or truncated: it has %d bytes", size)
	}
	var tail [frame]byte
	if _, err := file.ReadAt(tail[:], size-frame); err != nil {
		return err
	}
	if magic := string(tail[4:]); magic != "PAR1" {
		return fmt.Errorf("not a Parquet file, encrypted, or truncated: it ends with %q, not with PAR1", magic)
	}
	length := int64(binary.LittleEndian.Uint32(tail[:]))
	if length > size-frame-4 || length > maxFooter {
		return fmt.Errorf("its metadata claim %d bytes of %d (at most %d are read): it is damaged", length, size, maxFooter)
	}
	footer := make([]byte, length)
	if _, err := file.ReadAt(footer, size-frame-length); err != nil {
		return err
	}
	if _, err := thriftStructure(footer); err != nil {
		return fmt.Errorf("its metadata are damaged: %w", err)
	}
	return nil
}

// checkPages looks at the header of every page of a column chunk.
func checkPages(file io.ReaderAt, size int64, chunk *format.ColumnChunk) error {
	m := &chunk.MetaData
	at := m.DataPageOffset
	if m.DictionaryPageOffset != 0 {
		at = m.DictionaryPageOffset
	}
	if at < 0 || m.TotalCompressedSize < 0 || at > size || m.TotalCompressedSize > size-at {
		return fmt.Errorf("a column claims %d bytes from byte %d on, the file has %d: it is damaged", m.TotalCompressedSize, at, size)
	}
	end := at + m.TotalCompressedSize
	for at < end {
		header, length, err := readPageHeader(file, at, end)
		if err != nil {
			return fmt.Errorf("the page at byte %d: %w", at, err)
		}
		at += int64(length)
		if err := checkPage(file, m.Codec, header, at, end-at); err != nil {
			return fmt.Errorf("the page at byte %d: %w", at, err)
		}
		at += int64(header.CompressedPageSize)
	}
	return nil
}

// readPageHeader reads a header and says how long it is.
func readPageHeader(file io.ReaderAt, at, end int64) (*format.PageHeader, int, error) {
	for room := min(int64(1<<10), end-at); ; room = min(8*room, end-at) {
		text := make([]byte, room)
		if _, err := file.ReadAt(text, at); err != nil {
			return nil, 0, err
		}
		length, err := thriftStructure(text)
		if errors.Is(err, io.ErrUnexpectedEOF) && room < min(end-at, maxPageHeader) {
			continue
		}
		if err != nil {
			return nil, 0, fmt.Errorf("its header is damaged: %w", err)
		}
		header := new(format.PageHeader)
		return header, length, thrift.Unmarshal(new(thrift.CompactProtocol), text[:length], header)
	}
}

// checkPage holds a header against the bytes that are left in its column chunk.
func checkPage(file io.ReaderAt, codec format.CompressionCodec, h *format.PageHeader, at, left int64) error {
	values, levels := int32(0), int32(0)
	switch {
	case h.DataPageHeader.Valid:
		values = h.DataPageHeader.V.NumValues
	case h.DictionaryPageHeader.Valid:
		values = h.DictionaryPageHeader.V.NumValues
	case h.DataPageHeaderV2.Valid:
		v := &h.DataPageHeaderV2.V
		values, levels = v.NumValues, v.RepetitionLevelsByteLength+v.DefinitionLevelsByteLength
	}
	switch {
	case h.CompressedPageSize < 0 || int64(h.CompressedPageSize) > left:
		return fmt.Errorf("its header claims %d bytes, its column has %d more: the file is damaged", h.CompressedPageSize, left)
	case h.UncompressedPageSize < 0 || h.UncompressedPageSize > maxPage:
		return fmt.Errorf("its header claims %d bytes decompressed; at most %d are read: write smaller pages", h.UncompressedPageSize, maxPage)
	case values < 0 || values > maxPageValues:
		return fmt.Errorf("its header claims %d values; at most %d are read: write smaller pages", values, maxPageValues)
	case levels < 0 || levels > h.CompressedPageSize:
		return fmt.Errorf("its header claims %d bytes of levels in %d: the file is damaged", levels, h.CompressedPageSize)
	}
	if codec != format.Snappy || h.CompressedPageSize == levels {
		return nil
	}
	// Snappy says again how much it becomes.
	text := make([]byte, min(binary.MaxVarintLen64, h.CompressedPageSize-levels))
	if _, err := file.ReadAt(text, at+int64(levels)); err != nil {
		return err
	}
	if n, _ := binary.Uvarint(text); n > maxPage {
		return fmt.Errorf("it claims %d bytes decompressed; at most %d are read: write smaller pages", n, maxPage)
	}
	return nil
}
