package foreign

import (
	"bufio"
	"errors"
	"os"
	"os/exec"
	"strings"
	"sync"
	"time"
)

const (
	longestLine = 64 << 10 // where a line that does not end is cut
	longestSaid = 400      // bytes of a line that an error says
	// drainTimeout bounds what is read of a process that has ended: another one, which left its group, may hold its streams open.
	drainTimeout = time.Second
)

// log hands on the lines that a process writes, and keeps the last of its standard error.
type log struct {
	reads, writes []*os.File // of each of logNames
	readers       sync.WaitGroup
	mu            sync.Mutex
	last          string
}

var logNames = [...]string{"stdout", "stderr"}

// attach makes the streams of a process that is to be started.
func (l *log) attach(c *exec.Cmd) error {
	for range logNames {
		r, w, err := os.Pipe()
		if err != nil {
			return err
		}
		l.reads, l.writes = append(l.reads, r), append(l.writes, w)
	}
	c.Stdout, c.Stderr = l.writes[0], l.writes[1]
	return nil
}

// started closes the process's ends of the streams, of which it has its own by now.
func (l *log) started() {
	for _, w := range l.writes {
		_ = w.Close()
	}
}

// follow hands lines on until end.
func (l *log) follow(to func(stream, line string)) {
	for i, r := range l.reads {
		l.readers.Go(func() { l.read(r, logNames[i], to) })
	}
}

func (l *log) read(r *os.File, name string, to func(stream, line string)) {
	lines := bufio.NewReaderSize(r, longestLine)
	for {
		text, _, err := lines.ReadLine() // a longer one comes in parts
		if err != nil {
			return
		}
		line := strings.ToValidUTF8(string(text), "\uFFFD")
		if name == "stderr" && strings.TrimSpace(line) != "" {
			l.mu.Lock()
			l.last = strings.ToValidUTF8(line[:min(len(line), longestSaid)], "")
			l.mu.Unlock()
		}
		to(name, line)
	}
}

// end waits until what was written is handed on.
func (l *log) end() {
	for _, r := range l.reads {
		if err := r.SetReadDeadline(time.Now().Add(drainTimeout)); err != nil && !errors.Is(err, os.ErrClosed) {
			_ = r.Close()
		}
	}
	l.readers.Wait()
	for _, r := range l.reads {
		_ = r.Close()
	}
}

// said is the last line of the standard error.
func (l *log) said() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.last
}
