package logging

import (
	"bytes"
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
)

func TestLinesHaveOneForm(t *testing.T) {
	var out bytes.Buffer
	log := New(&out, zapcore.WarnLevel).Named("raft")
	log.Info("unheard")
	log.Error("lost", zap.String("job", "7"), zap.Duration("took", 1500*time.Millisecond), zap.Error(errors.New("gone")))
	if n := strings.Count(out.String(), "\n"); n != 1 {
		t.Fatalf("%d lines: %s", n, out.String())
	}
	var line map[string]string
	if err := json.Unmarshal(out.Bytes(), &line); err != nil {
		t.Fatal(err)
	}
	if at, err := time.Parse("2006-01-02T15:04:05.000Z", line["time"]); err != nil || time.Since(at) > time.Hour {
		t.Errorf("time is %q, %v", line["time"], err)
	}
	delete(line, "time")
	if len(line) != 6 || line["level"] != "error" || line["msg"] != "lost" || line["logger"] != "raft" || line["took"] != "1.5s" || line["error"] != "gone" {
		t.Errorf("the line is %v", line)
	}
	if e, ok := Parse(bytes.TrimSpace(out.Bytes())); !ok || e.Level != zapcore.ErrorLevel || e.Time.IsZero() {
		t.Errorf("parsed %+v, %v", e, ok)
	}
}

func TestParse(t *testing.T) {
	for _, text := range []string{"", "panic: x", "{}", `{"level":"info","msg":"no time"}`, `{"level":"info","ts":1.5,"msg":"of no release"}`, `{"time":"noon","level":"info","msg":"x"}`, `["time"]`, `{"time":1,"level":2,"msg":3}`} {
		if e, ok := Parse([]byte(text)); ok {
			t.Errorf("%q was taken for %+v", text, e)
		}
	}
}

func TestForeignOutputIsAnError(t *testing.T) {
	at := time.UnixMilli(1500)
	one := Foreign([]byte("out of paper\n"), at)
	if want := `{"time":"1970-01-01T00:00:01.500Z","level":"error","msg":"out of paper"}`; string(one.Text) != want {
		t.Errorf("%s", one.Text)
	}
	many := Foreign([]byte("panic: x\n\ngoroutine 1:\n\xff\n"), at)
	e, ok := Parse(many.Text)
	if !ok || e.Level != zapcore.ErrorLevel || !bytes.Contains(many.Text, []byte(`"msg":"panic: x"`)) || !bytes.Contains(many.Text, []byte("goroutine 1")) {
		t.Errorf("%s, %v", many.Text, ok)
	}
}
