// Package tokenfile writes and maps files of token ids, so that a corpus is tokenized once and need not fit in memory.
// docs/formats.md specifies the format.
package tokenfile

import (
	"bufio"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"hash"
	"hash/crc32"
	"io"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/avgpipe/avgpipe/internal/access"
	"github.com/avgpipe/avgpipe/internal/checkpoint"
)

const (
	magic      = "AVGTOKEN"
	version    = 1
	headerSize = 128
)

// Header says what a file holds, in the order of the file.
type Header struct {
	Width      uint32 // bytes of a token: 1, 2 or 4
	Tokens     uint64 // in the file
	Documents  uint64 // of which the tokens are, an end token after each
	Vocabulary uint32 // ids are below it
	End        uint32 // the end token
	Digest     [sha256.Size]byte
	Tokenizer  [sha256.Size]byte // of the tokenizer.json; zero when tokens are bytes
}

// prefix is the file before its tokens, but for the checksum at its end.
type prefix struct {
	Magic   [len(magic)]byte
	Version uint32
	Header
	Reserved [20]byte
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

func (h Header) encode() ([]byte, error) {
	b, err := binary.Append(nil, binary.LittleEndian, prefix{Magic: [len(magic)]byte([]byte(magic)), Version: version, Header: h})
	return binary.LittleEndian.AppendUint32(b, crc32.Checksum(b, castagnoli)), err
}

// decode reads the header of a file of so many bytes.
func decode(b []byte, size int64) (Header, error) {
	if size < headerSize || len(b) < headerSize || string(b[:len(magic)]) != magic {
		return Header{}, fmt.Errorf("not a token file: it does not start with %s; `avgpipectl tokenize` writes them", magic)
	}
	var p prefix
	n, err := binary.Decode(b, binary.LittleEndian, &p)
	switch h := p.Header; {
	case err != nil:
		return Header{}, err
	case p.Version != version:
		return Header{}, fmt.Errorf("a token file of version %d; this program reads version %d", p.Version, version)
	case binary.LittleEndian.Uint32(b[n:]) != crc32.Checksum(b[:n], castagnoli):
		return Header{}, errors.New("its header is damaged: the checksum does not fit")
	case h.Width != 1 && h.Width != 2 && h.Width != 4:
		return Header{}, fmt.Errorf("its tokens have %d bytes; they have 1, 2 or 4", h.Width)
	case h.Vocabulary > math.MaxInt32 || uint64(h.Vocabulary) > 1<<(8*h.Width) || h.End >= h.Vocabulary:
		return Header{}, fmt.Errorf("a vocabulary of %d with the end token %d does not fit tokens of %d bytes", h.Vocabulary, h.End, h.Width)
	}
	h := p.Header
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
	path   string

	mu       sync.Mutex
	verified stamp // of the file when its tokens had the digest
}

// Open maps a file. It reads the header only; Verify reads the rest. The error names the path.
func Open(opener *access.Opener, path string) (*File, error) {
	file, err := opener.Open(path, 0)
	if err != nil {
		return nil, err
	}
	f := &File{file: file, path: path}
	if err := f.open(); err != nil {
		return nil, errors.Join(fmt.Errorf("%s: %w", path, err), file.Close())
	}
	return f, nil
}

func (f *File) open() error {
	info, err := f.file.Stat()
	if err != nil {
		return err
	}
	head := make([]byte, headerSize)
	n, err := f.file.ReadAt(head, 0)
	if err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	if f.Header, err = decode(head[:n], info.Size()); err != nil {
		return err
	}
	if info.Size() > math.MaxInt {
		return fmt.Errorf("%d bytes cannot be mapped on this system", info.Size())
	}
	if f.mapped, err = unix.Mmap(int(f.file.Fd()), 0, int(info.Size()), unix.PROT_READ, unix.MAP_SHARED); err != nil {
		return fmt.Errorf("map %d bytes: %w", info.Size(), err)
	}
	f.Tokens = f.mapped[headerSize:]
	return nil
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

// stamp changes when a file is written. The time of modification can be set back, that of change cannot.
type stamp struct {
	size              int64
	modified, changed unix.Timespec
}

// stamp asks for it. It allocates nothing.
func (f *File) stamp() (stamp, error) {
	var s unix.Stat_t
	if err := unix.Fstat(int(f.file.Fd()), &s); err != nil {
		return stamp{}, fmt.Errorf("%s: stat: %w", f.path, err)
	}
	return stamp{s.Size, s.Mtim, s.Ctim}, nil
}

// Verify reads the whole file and holds its tokens against the digest in the header. Call it once, before the tokens are read.
func (f *File) Verify(ctx context.Context) error {
	before, err := f.stamp()
	if err != nil {
		return err
	}
	found, err := f.digest(ctx.Err)
	if err != nil {
		return err
	}
	if found != f.Digest {
		return fmt.Errorf("%s: its tokens have the digest %.12x, its header says %.12x: it was damaged, or overwritten in part; "+
			"write it again with `avgpipectl tokenize`", f.path, found, f.Digest)
	}
	f.verified = before
	return f.Unchanged()
}

// Unchanged reports a file that was overwritten in place since Verify, as far as its size and time of change tell; when these differ,
// its digest decides. It may be called concurrently, and allocates nothing as long as nothing has changed.
func (f *File) Unchanged() error {
	now, err := f.stamp()
	if err != nil {
		return err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	switch {
	case now == f.verified:
		return nil
	case now.size != f.verified.size:
		return fmt.Errorf("%s was overwritten while it was read: it had %d bytes and has %d; restore it", f.path, f.verified.size, now.size)
	}
	found, err := f.digest(func() error { return nil })
	if err == nil && found != f.Digest {
		err = fmt.Errorf("%s was overwritten while it was read: its tokens have the digest %.12x, they had %.12x; restore it", f.path, found, f.Digest)
	}
	if err == nil {
		f.verified = now // touched, or written with what was there
	}
	return err
}

// digest is that of the tokens as the file has them now. It ends early when stop fails.
func (f *File) digest(stop func() error) (sum [sha256.Size]byte, err error) {
	const block = 1 << 20
	tokens, digest := io.NewSectionReader(f.file, headerSize, int64(len(f.Tokens))), sha256.New()
	for left := tokens.Size(); left > 0; left -= block {
		if err := stop(); err != nil {
			return sum, err
		}
		if _, err := io.CopyN(digest, tokens, min(left, block)); err != nil {
			return sum, fmt.Errorf("%s: read: %w", f.path, err)
		}
	}
	return [sha256.Size]byte(digest.Sum(nil)), nil
}

// Writer writes a file under a temporary name, which Close replaces.
type Writer struct {
	file   *checkpoint.AtomicFile
	path   string
	header Header
	digest hash.Hash
	out    *bufio.Writer // to both
}

// Create starts a file. The header's Tokens, Documents and Digest come from what is written.
func Create(path string, h Header) (*Writer, error) {
	file, err := checkpoint.Create(filepath.Dir(path), 0o644, 0)
	if at, ok := errors.AsType[*fs.PathError](err); ok { // of a temporary file
		return nil, fmt.Errorf("create a file in %s: %w", filepath.Dir(path), at.Err)
	}
	if err != nil {
		return nil, err
	}
	if _, err := file.Write(make([]byte, headerSize)); err != nil {
		return nil, errors.Join(err, file.Abort())
	}
	h.Tokens, h.Documents = 0, 0
	digest := sha256.New()
	return &Writer{file: file, path: path, header: h, digest: digest, out: bufio.NewWriterSize(io.MultiWriter(file, digest), 1<<16)}, nil
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
	_, err := w.out.Write(raw[:w.header.Width])
	return err
}

// Close writes the header, makes the file durable and gives it its name; it returns what the file holds.
func (w *Writer) Close() (Header, error) {
	err := w.out.Flush()
	w.digest.Sum(w.header.Digest[:0])
	head, encoded := w.header.encode()
	if err = errors.Join(err, encoded); err == nil {
		_, err = w.file.WriteAt(head, 0)
	}
	if err != nil {
		return Header{}, errors.Join(fmt.Errorf("write %s: %w", w.path, err), w.file.Abort())
	}
	return w.header, w.file.Commit(filepath.Base(w.path))
}

// Abort gives up and leaves nothing behind.
func (w *Writer) Abort() error { return w.file.Abort() }
