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

	"github.com/avgpipe/avgpipe/internal/access"
	"github.com/avgpipe/avgpipe/internal/api"
	"github.com/avgpipe/avgpipe/internal/logging"
)

// Bounds of reading a log.
const (
	maxLogLine     = 1 << 20 // bytes of an entry; what is longer is cut into several
	logReadBytes   = 64 << 10
	maxLogSegments = 100
)

// LogFile reads a job's log across its rotated files, PATH.1 being the newest of them: one entry after the other, with the place
// after it, from which another reader can go on.
type LogFile struct {
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
func OpenLog(path string, request api.LogRequest) (*LogFile, error) {
	r := &LogFile{path: path, request: request, level: logging.Level(request.Level)}
	if request.Level == "" {
		r.level = zapcore.DebugLevel
	}
	var inode uint64
	var offset int64
	var err error
	if request.After != "" {
		if inode, offset, err = parseCursor(request.After); err != nil {
			return nil, err
		}
	}
	r.file, err = r.open(func(files []logFile) int { // a place in a file that is gone lies before the oldest
		return max(0, slices.IndexFunc(files, func(f logFile) bool { return f.inode == inode && f.size >= offset }))
	})
	if err != nil || r.file == nil {
		return r, err
	}
	if own := logFileOf(r.file.Stat()); own.inode == inode && own.size >= offset {
		r.offset, err = r.file.Seek(offset, io.SeekStart)
	}
	return r, err
}

// logFile is one of the files of a log.
type logFile struct {
	name  string
	inode uint64
	size  int64
}

func logFileOf(info fs.FileInfo, err error) (f logFile) {
	if err == nil {
		f.size = info.Size()
		if s, ok := info.Sys().(*syscall.Stat_t); ok {
			f.inode = s.Ino
		}
	}
	return f
}

// open opens one of the log's files, which choose picks by number, the oldest being 0; nil where there is none of that number.
func (r *LogFile) open(choose func([]logFile) int) (*os.File, error) {
	for {
		var files []logFile
		for i := range maxLogSegments {
			name := r.path
			if i > 0 {
				name += "." + strconv.Itoa(i)
			}
			info, err := os.Stat(name)
			if err == nil {
				f := logFileOf(info, nil)
				f.name = name
				files = slices.Insert(files, 0, f)
			} else if !errors.Is(err, fs.ErrNotExist) {
				return nil, err
			} else if i > 0 {
				break
			}
		}
		at := choose(files)
		if at >= len(files) {
			return nil, nil
		}
		f, err := (*access.Opener)(nil).Open(files[at].name, 0)
		if err == nil && logFileOf(f.Stat()).inode == files[at].inode {
			return f, nil
		}
		if err == nil {
			_ = f.Close() // the log was rotated meanwhile
		} else if !errors.Is(err, fs.ErrNotExist) {
			return nil, err
		}
	}
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
func (r *LogFile) Close() error {
	if r.file == nil {
		return nil
	}
	return r.file.Close()
}

// Next returns the next entry that was asked for, a JSON object with a cursor, or io.EOF while there is none. ended says that nothing
// more will be written, so that half a line at the end is an entry.
func (r *LogFile) Next(ended bool) ([]byte, error) {
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
func (r *LogFile) entry(ended bool) (logging.Entry, string, error) {
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

func (r *LogFile) takeForeign() (logging.Entry, string, error) {
	e := logging.Foreign(r.foreign, r.last)
	r.foreign = nil
	return e, r.cursor(), nil
}

// Place implements LogReader.
func (r *LogFile) Place() string {
	if r.file == nil {
		return r.request.After
	}
	return r.cursor()
}

// cursor is the place after what was taken.
func (r *LogFile) cursor() string {
	return fmt.Sprintf("%x-%x", logFileOf(r.file.Stat()).inode, r.offset-int64(len(r.rest)))
}

// fill reads on, in the next file when this one has been rotated. It reports false when there is nothing more now.
func (r *LogFile) fill() (more bool, err error) {
	if r.file == nil {
		r.file, err = r.open(func([]logFile) int { return 0 })
		if err != nil || r.file == nil {
			return false, err
		}
	}
	if more, err = r.read(); more || err != nil {
		return more, err
	}
	own := logFileOf(r.file.Stat())
	next, err := r.open(func(files []logFile) int {
		return 1 + slices.IndexFunc(files, func(f logFile) bool { return f.inode == own.inode })
	})
	if next == nil || err != nil {
		return false, err
	}
	if more, err = r.read(); more || err != nil { // what was written between the last look and the rotation
		return more, errors.Join(err, next.Close()) // looked for again
	}
	if len(r.rest) > 0 { // a line that a crash cut, or whose rest is in no file
		r.foreign, r.rest = append(append(r.foreign, r.rest...), '\n'), nil
	}
	err = r.file.Close()
	r.file, r.offset = next, 0
	return true, err
}

func (r *LogFile) read() (bool, error) {
	buffer := make([]byte, logReadBytes)
	n, err := r.file.Read(buffer)
	r.rest, r.offset = append(r.rest, buffer[:n]...), r.offset+int64(n)
	if err != nil && !errors.Is(err, io.EOF) {
		return false, fmt.Errorf("read the log: %w", err)
	}
	if size := logFileOf(r.file.Stat()).size; n == 0 && size < r.offset { // it was copied and emptied
		r.offset, r.rest = 0, nil
		_, err := r.file.Seek(0, io.SeekStart)
		return size > 0, err
	}
	return n > 0, nil
}
