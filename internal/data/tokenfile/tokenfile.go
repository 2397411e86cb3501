// Package tokenfile writes and maps files of token ids, so that a corpus is tokenized once and need not fit in memory.
// docs/formats.md specifies the format.
package tokenfile

import (
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"math"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/avgpipe/avgpipe/internal/access"
)

const (
	magic      = "AVGTOKEN"
	version    = 1
	headerSize = 128
)

// Header says what a file holds.
type Header struct {
	Width      int    // bytes of a token: 1, 2 or 4
	Tokens     uint64 // in the file
	Documents  uint64 // of which the tokens are, an end token after each
	Vocabulary uint32 // ids are below it
	End        uint32 // the end token
	Digest     [32]byte
	Tokenizer  [32]byte // SHA-256 of the tokenizer.json; zero when tokens are bytes
}

// castagnoli is the polynomial of the header's checksum.
var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// encode writes the header as it stands in the file.
func (h Header) encode() []byte {
	b := make([]byte, 0, headerSize)
	b = append(b, magic...)
	b = binary.LittleEndian.AppendUint32(b, version)
	b = binary.LittleEndian.AppendUint32(b, uint32(h.Width)) //nolint:gosec // 1, 2 or 4.
	b = binary.LittleEndian.AppendUint64(b, h.Tokens)
	b = binary.LittleEndian.AppendUint64(b, h.Documents)
	b = binary.LittleEndian.AppendUint32(b, h.Vocabulary)
	b = binary.LittleEndian.AppendUint32(b, h.End)
	b = append(b, h.Digest[:]...)
	b = append(b, h.Tokenizer[:]...)
	b = append(b, make([]byte, headerSize-4-len(b))...)
	return binary.LittleEndian.AppendUint32(b, crc32.Checksum(b, castagnoli))
}

// decode reads a header of a file of so many bytes.
func decode(b []byte, size int64) (Header, error) {
	if size < headerSize || len(b) < headerSize || string(b[:8]) != magic {
		return Header{}, fmt.Errorf("not a token file: it does not start with %s; `avgpipectl tokenize` writes them", magic)
	}
	b = b[:headerSize]
	if v := binary.LittleEndian.Uint32(b[8:]); v != version {
		return Header{}, fmt.Errorf("a token file of version %d; this program reads version %d", v, version)
	}
	if sum := binary.LittleEndian.Uint32(b[headerSize-4:]); sum != crc32.Checksum(b[:headerSize-4], castagnoli) {
		return Header{}, errors.New("its header is damaged: the checksum does not fit")
	}
	h := Header{
		Width: int(binary.LittleEndian.Uint32(b[12:])), Tokens: binary.LittleEndian.Uint64(b[16:]), Documents: binary.LittleEndian.Uint64(b[24:]),
		Vocabulary: binary.LittleEndian.Uint32(b[32:]), End: binary.LittleEndian.Uint32(b[36:]),
		Digest: [32]byte(b[40:72]), Tokenizer: [32]byte(b[72:104]),
	}
	switch {
	case h.Width != 1 && h.Width != 2 && h.Width != 4:
		return Header{}, fmt.Errorf("its tokens have %d bytes; they have 1, 2 or 4", h.Width)
	case h.Vocabulary > math.MaxInt32 || uint64(h.Vocabulary) > 1<<(8*h.Width) || h.End >= h.Vocabulary:
		return Header{}, fmt.Errorf("a vocabulary of %d with the end token %d does not fit tokens of %d bytes", h.Vocabulary, h.End, h.Width)
	}
	if payload := uint64(size) - headerSize; payload%uint64(h.Width) != 0 || payload/uint64(h.Width) != h.Tokens { //nolint:gosec // Not negative: the header is there.
		return Header{}, fmt.Errorf("it has %d bytes; its header says %d tokens of %d bytes after %d", size, h.Tokens, h.Width, headerSize)
	}
	return h, nil
}

// File is a mapped file.
type File struct {
	Header
	// Tokens are the ids, little-endian, Width bytes each. They live until Close, and are pages of the file: reading them
	// faults when it was truncated meanwhile; see runtime/debug.SetPanicOnFault.
	Tokens []byte
	mapped []byte
	file   *os.File // stays open, to see whether it changes
	fd     int      // its descriptor
	path   string
	record record
}

// Open maps a file. It reads the header only; Verify reads the rest. The error names the path.
func Open(opener *access.Opener, path string) (*File, error) {
	file, err := opener.Open(path, 0)
	if err != nil {
		return nil, err
	}
	f, err := open(file)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("%s: %w", path, err), file.Close())
	}
	f.file, f.fd, f.path = file, int(file.Fd()), path
	return f, nil
}

func open(file *os.File) (*File, error) {
	info, err := file.Stat()
	if err != nil {
		return nil, err
	}
	head := make([]byte, headerSize)
	n, err := file.ReadAt(head, 0)
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, err
	}
	h, err := decode(head[:n], info.Size())
	if err != nil {
		return nil, err
	}
	if info.Size() > math.MaxInt {
		return nil, fmt.Errorf("%d bytes cannot be mapped on this system", info.Size())
	}
	mapped, err := unix.Mmap(int(file.Fd()), 0, int(info.Size()), unix.PROT_READ, unix.MAP_SHARED)
	if err != nil {
		return nil, fmt.Errorf("map %d bytes: %w", info.Size(), err)
	}
	return &File{Header: h, Tokens: mapped[headerSize:], mapped: mapped}, nil
}

// Close unmaps the file. Its tokens must not be read afterwards.
func (f *File) Close() error {
	if f.mapped == nil {
		return nil
	}
	mapped := f.mapped
	f.mapped, f.Tokens = nil, nil
	return errors.Join(unix.Munmap(mapped), f.file.Close())
}

// Writer writes a file under a temporary name, which Close replaces.
type Writer struct {
	file   *os.File
	path   string
	header Header
	digest interface {
		io.Writer
		Sum(b []byte) []byte
	}
	buffer []byte
}

// Create starts a file. The header's Tokens, Documents and Digest come from what is written.
func Create(path string, h Header) (*Writer, error) {
	file, err := os.CreateTemp(filepath.Dir(path), ".tmp-*")
	if err != nil {
		return nil, err
	}
	h.Tokens, h.Documents = 0, 0
	w := &Writer{file: file, path: path, header: h, digest: sha256.New()}
	w.buffer = make([]byte, headerSize, 1<<16)
	return w, nil
}

// Add appends the tokens of a part of a document, then, if it is the last part, the end token.
func (w *Writer) Add(ids []int32, last bool) error {
	for _, id := range ids {
		if err := w.put(uint32(id)); err != nil { //nolint:gosec // Negative ids are above any vocabulary.
			return err
		}
	}
	if !last {
		return nil
	}
	w.header.Documents++
	return w.put(w.header.End)
}

func (w *Writer) put(id uint32) error {
	if id >= w.header.Vocabulary {
		return fmt.Errorf("token %d is beyond the vocabulary of %d", id, w.header.Vocabulary)
	}
	w.header.Tokens++
	var raw [4]byte
	binary.LittleEndian.PutUint32(raw[:], id)
	w.buffer = append(w.buffer, raw[:w.header.Width]...)
	if len(w.buffer) > cap(w.buffer)-len(raw) {
		return w.flush()
	}
	return nil
}

// flush writes what is buffered. The room for the header counts in no digest.
func (w *Writer) flush() error {
	from := 0
	if at, err := w.file.Seek(0, io.SeekCurrent); err != nil {
		return err
	} else if at == 0 {
		from = headerSize
	}
	_, _ = w.digest.Write(w.buffer[from:]) // a hash takes everything
	_, err := w.file.Write(w.buffer)
	w.buffer = w.buffer[:0]
	return err
}

// Close writes the header, makes the file durable and gives it its name; it returns what the file holds.
func (w *Writer) Close() (Header, error) {
	err := w.flush()
	copy(w.header.Digest[:], w.digest.Sum(nil))
	if err == nil {
		_, err = w.file.WriteAt(w.header.encode(), 0)
	}
	if err == nil {
		err = w.file.Chmod(0o644)
	}
	err = errors.Join(err, w.file.Sync(), w.file.Close())
	if err == nil {
		err = os.Rename(w.file.Name(), w.path)
	}
	if err != nil {
		return Header{}, errors.Join(fmt.Errorf("write %s: %w", w.path, err), os.Remove(w.file.Name()))
	}
	return w.header, nil
}

// Abort gives up and leaves nothing behind.
func (w *Writer) Abort() error { return errors.Join(w.file.Close(), os.Remove(w.file.Name())) }
