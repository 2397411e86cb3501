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

// What is handed on of each stream: a burst, and so much each second. A line costs what whoever keeps it adds to it.
const (
	burst     = 1 << 20
	perSecond = 64 << 10
	perLine   = 160
	every     = time.Second
	mostSeen  = 64 << 10 // bytes of stacks
)

// allowance bounds what is handed on of a stream.
type allowance struct {
	free         int // bytes
	lines, bytes int // that were left out since the last refill
}

// take reports whether a line is handed on.
func (a *allowance) take(length int) bool {
	if cost := length + perLine; cost <= a.free {
		a.free -= cost
		return true
	}
	a.lines++
	a.bytes += length
	return false
}

// refill returns what was left out since the last one.
func (a *allowance) refill(more int) (lines, bytes int) {
	lines, bytes = a.lines, a.bytes
	*a = allowance{free: min(a.free+more, burst)}
	return lines, bytes
}

// log hands on the lines that a process writes, and keeps the last of its standard error.
type log struct {
	reads, writes []*os.File // of each of logNames
	readers       sync.WaitGroup
	refills       sync.WaitGroup
	read          chan struct{} // closed when all that was written is read

	mu     sync.Mutex
	last   string
	of     [len(logNames)]allowance
	begun  chan struct{} // nil until stacks are wanted; closed when the first of them has come
	stacks []string
}

var logNames = [...]string{"stdout", "stderr"}

const stderr = 1

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
func (l *log) follow(c *Config) {
	l.read = make(chan struct{})
	for i := range l.of {
		l.of[i].refill(burst)
		l.readers.Go(func() { l.lines(i, c) })
	}
	l.refills.Go(func() { l.refill(c) })
}

// lines reads a stream to its end, whether or not its lines are handed on: so the process never waits for its own output.
func (l *log) lines(i int, c *Config) {
	in := bufio.NewReaderSize(l.reads[i], longestLine)
	for {
		text, _, err := in.ReadLine() // a longer one comes in parts
		if err != nil {
			return
		}
		if l.take(i, text) && c.Log != nil {
			c.Log(logNames[i], strings.ToValidUTF8(string(text), "\uFFFD"))
		}
	}
}

// take notes a line, and reports whether it is handed on.
func (l *log) take(i int, text []byte) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if head := strings.ToValidUTF8(string(text[:min(len(text), longestSaid)]), ""); i == stderr && strings.TrimSpace(head) != "" {
		l.last = head
	}
	taken := l.of[i].take(len(text))
	if i == stderr && taken && l.begun != nil && len(l.stacks)*longestSaid < mostSeen {
		l.seeStack(string(text))
	}
	return taken
}

// refill hands on, each second, how much was left out.
func (l *log) refill(c *Config) {
	ticker := time.NewTicker(every)
	defer ticker.Stop()
	for last := false; !last; {
		select {
		case <-ticker.C:
		case <-l.read:
			last = true
		}
		for i, name := range logNames {
			l.mu.Lock()
			lines, bytes := l.of[i].refill(perSecond)
			l.mu.Unlock()
			if lines > 0 && c.LeftOut != nil {
				c.LeftOut(name, lines, bytes)
			}
		}
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
	if l.read != nil {
		close(l.read)
	}
	l.refills.Wait()
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
