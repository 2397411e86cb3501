package node

import (
	"fmt"
	"net"
	"sync"
	"time"

	"github.com/avgpipe/avgpipe/internal/audit"
)

// Refusals of one host for one reason are a line a minute: a node that is refused tries again and again, and must not fill the record of all others.
const (
	knockEvery = time.Minute
	mostKnocks = 1024 // that are remembered; beyond it all are forgotten
)

// doorbook writes down who was refused before anything was asked. The zero value with a book is ready to use, concurrently.
type doorbook struct {
	write func(audit.Record)

	mu   sync.Mutex
	seen map[string]*knock // by host and reason
}

// knock is when somebody was written down last, and how often he was not since.
type knock struct {
	at   time.Time
	more int
}

// refused writes down that a connection was refused.
func (d *doorbook) refused(from net.Addr, err error) {
	host, _, splitErr := net.SplitHostPort(from.String())
	if splitErr != nil {
		host = from.String()
	}
	text := err.Error()
	if more, due := d.knock(host+" "+text, time.Now()); due {
		if more > 0 {
			text = fmt.Sprintf("%s; %d times more since the last line", text, more)
		}
		d.write(audit.Record{From: from.String(), Operation: "connect", Error: text})
	}
}

// knock counts a refusal. It reports whether a line is due, and how many had none since the last.
func (d *doorbook) knock(key string, now time.Time) (more int, due bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	k := d.seen[key]
	if k != nil && now.Sub(k.at) < knockEvery {
		k.more++
		return 0, false
	}
	if k != nil {
		more = k.more
	}
	if d.seen == nil || len(d.seen) >= mostKnocks {
		d.seen = map[string]*knock{}
	}
	d.seen[key] = &knock{at: now}
	return more, true
}
