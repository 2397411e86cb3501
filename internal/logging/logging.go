// Package logging is the one form of every log line of the daemon, its workers and the libraries in them: a JSON object with
// time (RFC 3339, UTC, milliseconds), level (debug, info, warn, error), msg, and then fields.
//
//	{"time":"2026-01-02T03:04:05.678Z","level":"info","msg":"round committed","job":"7","round":1200}
package logging

import (
	"bytes"
	"encoding/json"
	"io"
	"strings"
	"time"
	"unicode/utf8"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
)

// timeLayout has all of its digits always, so that lines sort by their text.
const timeLayout = "2006-01-02T15:04:05.000Z"

// Encoder writes lines of the form.
func Encoder() zapcore.Encoder {
	c := zap.NewProductionEncoderConfig()
	c.TimeKey = "time"
	c.EncodeTime = func(t time.Time, out zapcore.PrimitiveArrayEncoder) { out.AppendString(t.UTC().Format(timeLayout)) }
	c.EncodeDuration = zapcore.StringDurationEncoder
	return zapcore.NewJSONEncoder(c)
}

// New returns a logger that writes such lines from a level on.
func New(w io.Writer, level zapcore.LevelEnabler) *zap.Logger {
	return zap.New(zapcore.NewCore(Encoder(), zapcore.Lock(zapcore.AddSync(w)), level))
}

// Level is the level of a name; info of any other.
func Level(name string) zapcore.Level {
	var l zapcore.Level
	if l.UnmarshalText([]byte(name)) != nil {
		return zapcore.InfoLevel
	}
	return l
}

// Entry is a line of a log and what is asked about it.
type Entry struct {
	Time  time.Time
	Level zapcore.Level
	Text  []byte // one JSON object, without the end of the line
}

// Parse reads a line of the form. It reports false of what is no such line.
func Parse(line []byte) (Entry, bool) {
	var has struct {
		Time  time.Time `json:"time"`
		Level *string   `json:"level"`
		Msg   *string   `json:"msg"`
	}
	if json.Unmarshal(line, &has) != nil || has.Msg == nil || has.Level == nil || has.Time.IsZero() {
		return Entry{}, false
	}
	return Entry{Time: has.Time.UTC(), Level: Level(*has.Level), Text: line}, true
}

// Foreign makes an entry of output that is no line of the form, such as what the Go runtime prints of a panic: its first line is the
// message, and all of it the field output when there is more.
func Foreign(text []byte, at time.Time) Entry {
	text = bytes.TrimRight(text, "\r\n")
	if !utf8.Valid(text) {
		text = bytes.ToValidUTF8(text, []byte("\uFFFD"))
	}
	first, _, more := strings.Cut(string(text), "\n")
	line := struct {
		Time   string `json:"time"`
		Level  string `json:"level"`
		Msg    string `json:"msg"`
		Output string `json:"output,omitempty"`
	}{at.UTC().Format(timeLayout), zapcore.ErrorLevel.String(), first, ""}
	if more {
		line.Output = string(text)
	}
	encoded, _ := json.Marshal(line) // strings can be encoded
	return Entry{Time: at, Level: zapcore.ErrorLevel, Text: encoded}
}
