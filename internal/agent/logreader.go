package agent

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"go.uber.org/zap/zapcore"

	"github.com/avgpipe/avgpipe/internal/api"
	"github.com/avgpipe/avgpipe/internal/logging"
)

// Bounds of reading a log.
const (
	maxLogLine     = 1 << 20 // bytes of an entry; what is longer is cut into several
	logReadBytes   = 64 << 10
	maxLogSegments = 100
)

// LogReader reads a job's log across its rotated files, PATH.1 being the newest of them: one entry after the other, with the place
// after it, from which another reader can go on.
type LogReader struct {
	path    string
	request api.LogRequest
	level   zapcore.Level

	file    *os.File // nil: none is there yet
	offset  int64    // of what is in rest's end
	rest    []byte   // read and not yet looked at
	foreign []byte   // lines that are not of the form, until something else follows
	last    time.Time
}

// OpenLog opens a log at the place that the request says, or at its beginning.
func OpenLog(path string, request api.LogRequest) (*LogReader, error) {
	r := &LogReader{path: path, request: request, level: logging.Level(request.Level)}
	if request.Level == "" {
		r.level = zapcore.DebugLevel
	}
	files, err := logFiles(path)
	if err != nil {
		return nil, err
	}
	defer func() {
		for _, f := range files {
			if f != r.file {
				_ = f.Close() // only looked at
			}
		}
	}()
	if len(files) > 0 {
		r.file = files[0] // the oldest: a place in a file that is gone lies before it
	}
	if request.After == "" {
		return r, nil
	}
	inode, offset, err := parseCursor(request.After)
	if err != nil {
		return nil, err
	}
	for _, f := range files {
		if size, id := sizeOf(f); id == inode && size >= offset {
			r.file, r.offset = f, offset
			_, err := f.Seek(offset, io.SeekStart)
			return r, err
		}
	}
	return r, nil
}

// logFiles opens the files of a log, the oldest first.
func logFiles(path string) ([]*os.File, error) {
	var files []*os.File
	for i := range maxLogSegments {
		name := path
		if i > 0 {
			name += "." + strconv.Itoa(i)
		}
		f, err := os.Open(name)
		switch {
		case err == nil:
			files = append([]*os.File{f}, files...)
		case !errors.Is(err, fs.ErrNotExist):
			for _, f := range files {
				_ = f.Close() // only read
			}
			return nil, err
		case i > 0:
			return files, nil
		}
	}
	return files, nil
}

func sizeOf(f *os.File) (size int64, inode uint64) {
	info, err := f.Stat()
	if err != nil {
		return 0, 0
	}
	if s, ok := info.Sys().(*syscall.Stat_t); ok {
		inode = s.Ino
	}
	return info.Size(), inode
}

// A cursor names a file by its inode, which a rotation keeps, and a place in it.
func parseCursor(text string) (inode uint64, offset int64, err error) {
	a, b, ok := strings.Cut(text, "-")
	inode, err1 := strconv.ParseUint(a, 16, 64)
	at, err2 := strconv.ParseInt(b, 16, 64)
	if !ok || err1 != nil || err2 != nil || at < 0 {
		return 0, 0, api.Errorf(400, "after=%q is not the cursor of a log entry", text)
	}
	return inode, at, nil
}

// Close closes the file that is being read.
func (r *LogReader) Close() error {
	if r.file == nil {
		return nil
	}
	return r.file.Close()
}

// Next returns the next entry that was asked for, a JSON object with a cursor, or io.EOF while there is none. ended says that nothing
// more will be written, so that half a line at the end is an entry.
func (r *LogReader) Next(ended bool) ([]byte, error) {
	for {
		e, at, err := r.entry(ended)
		if err != nil {
			return nil, err
		}
		if e.Level < r.level || e.Time.Before(r.request.Since) {
			continue
		}
		text := bytes.TrimRight(e.Text, " \t\r")
		return fmt.Appendf(bytes.Clone(text[:len(text)-1]), `,"cursor":"%s"}`, at), nil
	}
}

// entry returns the next entry and the place after it. io.EOF says that there is no whole one yet; with ended, what is there is
// taken for whole.
func (r *LogReader) entry(ended bool) (logging.Entry, string, error) {
	for {
		line, rest, whole := bytes.Cut(r.rest, []byte("\n"))
		if !whole && len(r.rest) < maxLogLine {
			more, err := r.fill()
			if err != nil {
				return logging.Entry{}, "", err
			}
			if more {
				continue
			}
			if ended && len(r.rest) > 0 {
				line, rest = r.rest, nil
			} else if len(r.foreign) > 0 {
				return r.takeForeign()
			} else {
				return logging.Entry{}, "", io.EOF
			}
		}
		e, ok := logging.Parse(line)
		switch {
		case ok && len(r.foreign) > 0:
			return r.takeForeign() // the line comes next
		case ok:
			r.rest, r.last = rest, e.Time
			return e, r.cursor(), nil
		case len(bytes.TrimSpace(line)) > 0:
			r.foreign = append(append(r.foreign, line...), '\n')
		}
		r.rest = rest
		if len(r.foreign) >= maxLogLine {
			return r.takeForeign()
		}
	}
}

func (r *LogReader) takeForeign() (logging.Entry, string, error) {
	e := logging.Foreign(r.foreign, r.last)
	r.foreign = nil
	return e, r.cursor(), nil
}

// cursor is the place after what was taken.
func (r *LogReader) cursor() string {
	_, inode := sizeOf(r.file)
	return fmt.Sprintf("%x-%x", inode, r.offset-int64(len(r.rest)))
}

// fill reads on, in the next file when this one has been rotated. It reports false when there is nothing more now.
func (r *LogReader) fill() (bool, error) {
	if r.file == nil {
		files, err := logFiles(r.path)
		if err != nil || len(files) == 0 {
			return false, err
		}
		for _, f := range files[1:] {
			_ = f.Close() // they are opened in their turn
		}
		r.file = files[0]
	}
	more, err := r.read()
	if more || err != nil {
		return more, err
	}
	next, err := r.following()
	if next == nil || err != nil {
		return false, err
	}
	if more, err := r.read(); more || err != nil { // what was written between the last look and the rotation
		_ = next.Close() // looked for again
		return more, err
	}
	if len(r.rest) > 0 { // a line that a crash cut, or whose rest is in no file
		r.foreign, r.rest = append(append(r.foreign, r.rest...), '\n'), nil
	}
	err = r.file.Close()
	r.file, r.offset = next, 0
	return true, err
}

func (r *LogReader) read() (bool, error) {
	buffer := make([]byte, logReadBytes)
	n, err := r.file.Read(buffer)
	r.rest, r.offset = append(r.rest, buffer[:n]...), r.offset+int64(n)
	if err != nil && !errors.Is(err, io.EOF) {
		return false, fmt.Errorf("read the log: %w", err)
	}
	if size, _ := sizeOf(r.file); n == 0 && size < r.offset { // it was copied and emptied
		r.offset, r.rest = 0, nil
		_, err := r.file.Seek(0, io.SeekStart)
		return size > 0, err
	}
	return n > 0, nil
}

// following opens the file that came after this one; nil when this is the newest.
func (r *LogReader) following() (*os.File, error) {
	files, err := logFiles(r.path)
	if err != nil {
		return nil, err
	}
	var next *os.File
	_, own := sizeOf(r.file)
	for _, f := range slices.Backward(files) {
		if _, inode := sizeOf(f); inode == own {
			break
		}
		next = f
	}
	for _, f := range files {
		if f != next {
			_ = f.Close() // only looked at
		}
	}
	return next, nil
}
