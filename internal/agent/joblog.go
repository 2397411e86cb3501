package agent

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"regexp"
	"strings"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"golang.org/x/sys/unix"

	"github.com/avgpipe/avgpipe/internal/access"
	"github.com/avgpipe/avgpipe/internal/logging"
	"github.com/avgpipe/avgpipe/internal/worker/control"
)

// Log implements Agent. The lines are of JSON, like the worker's own.
func (l *Local) Log(job string, level zapcore.Level, message string, fields ...zap.Field) {
	entry := zapcore.Entry{Level: level, Time: time.Now(), LoggerName: "avgpiped", Message: message}
	select {
	case l.lines <- func() error { return appendLine(l.dir(job), entry, fields) }:
	default:
		l.config.Log.Warn("a line of a job's log is lost: the disk is slow", zap.String("job", job), zap.String("line", message))
	}
}

// writeLogs writes lines until Close, and then those that are left.
func (l *Local) writeLogs() {
	for {
		select {
		case write := <-l.lines:
			if err := write(); err != nil {
				l.config.Log.Warn("write to the job's log", zap.Error(err))
			}
		case <-l.ctx.Done():
			if len(l.lines) == 0 {
				return
			}
		}
	}
}

// appendLine adds a line to the log in a directory. It is one write to a file that is open for appending, so that lines of daemon and
// worker do not mix.
func appendLine(dir string, entry zapcore.Entry, fields []zap.Field) error {
	text, err := logging.Encoder().EncodeEntry(entry, fields)
	if err != nil {
		return fmt.Errorf("encode a line of the job's log: %w", err)
	}
	defer text.Free()
	f, err := openLog(dir)
	if err != nil {
		return err
	}
	defer f.Close() //nolint:errcheck // every line is its own write, whose error is returned
	if _, err := f.Write(text.Bytes()); err != nil {
		return fmt.Errorf("write to the job's log: %w", err)
	}
	return nil
}

// openLog opens a job's log for appending. A pipe in its place is an error, and is not waited for.
func openLog(dir string) (*os.File, error) {
	f, err := os.OpenFile(control.LogPath(dir), os.O_CREATE|os.O_APPEND|os.O_WRONLY|unix.O_NONBLOCK, 0o640)
	if err == nil {
		if info, statErr := f.Stat(); statErr != nil || !info.Mode().IsRegular() {
			err = errors.Join(fmt.Errorf("%s is not a file", f.Name()), statErr, f.Close())
		}
	}
	if err != nil {
		return nil, fmt.Errorf("open the job's log: %w", err)
	}
	return f, nil
}

// How much of the end of a job's log a reason quotes.
const (
	tailBytes = 1 << 20 // that are looked at: the dump of a crash is long, and says why at its start
	tailLines = 3
	tailWidth = 600 // bytes of a line
)

// rotateLog rotates a job's log that is too long. No worker of the job may run: one that does rotates the log by itself.
func rotateLog(dir string, limit int64, files int) error {
	if limit <= 0 || logSize(dir) < limit {
		return nil
	}
	return control.RotateLog(dir, files)
}

// logSize is the length of a job's log; 0 when it cannot be told.
func logSize(dir string) int64 {
	info, err := os.Stat(control.LogPath(dir))
	if err != nil {
		return 0
	}
	return info.Size()
}

// logTail returns the last lines after a place of a job's log that speak of trouble, on one line: warnings, errors, and what is no JSON,
// such as a panic. "" when there are none, or none that can be read.
func logTail(dir string, from int64) string {
	f, err := (*access.Opener)(nil).Open(control.LogPath(dir), 0)
	if err != nil {
		return ""
	}
	defer f.Close() //nolint:errcheck // only read
	info, err := f.Stat()
	if err != nil {
		return ""
	}
	if info.Size() < from {
		from = 0 // it was rotated since
	}
	text := make([]byte, min(info.Size()-from, tailBytes))
	if _, err := f.ReadAt(text, info.Size()-int64(len(text))); err != nil {
		return ""
	}
	return troubleIn(text)
}

// crash starts the dump that the Go runtime writes of a crashed program; its first line says why.
var crash = regexp.MustCompile(`^(panic: |fatal error: |SIG[A-Z]+: )`)

// troubleIn returns the lines of a log that say what went wrong last.
func troubleIn(log []byte) string {
	var words []string
	for line := range bytes.SplitSeq(bytes.TrimSpace(log), []byte("\n")) {
		w := troubleOf(line)
		if crash.MatchString(w) {
			return w
		}
		if w != "" {
			words = append(words, w)
		}
	}
	return strings.Join(words[max(0, len(words)-tailLines):], " | ")
}

// troubleOf returns what a line of a log says of trouble; "" for nothing.
func troubleOf(line []byte) string {
	var entry struct{ Level, Msg, Error string }
	text := string(line)
	if json.Unmarshal(line, &entry) == nil && entry.Msg != "" {
		if entry.Level == "info" || entry.Level == "debug" {
			return "" // no trouble; what the daemon writes is of this level
		}
		text = entry.Msg
		if entry.Error != "" {
			text += ": " + entry.Error
		}
	}
	text = strings.TrimSpace(strings.ToValidUTF8(text, ""))
	return text[:min(len(text), tailWidth)]
}
