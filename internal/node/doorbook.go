package node

import (
	"fmt"
	"net"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/avgpipe/avgpipe/internal/audit"
	"github.com/avgpipe/avgpipe/internal/pki"
)

// Refusals of one host for one reason are a line a minute: a node that is refused tries again and again, and must not fill the record of all others.
const (
	knockEvery = time.Minute
	mostKnocks = 1024 // that are remembered; beyond it all are forgotten
)

// doorbook writes down who was refused before anything was asked, and which questions to the agent were. The zero value with a book is ready to use, concurrently.
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
	d.note(audit.Record{From: from.String(), Operation: "connect", Error: err.Error()})
}

// question writes down that a question of a node to the agent was refused.
func (d *doorbook) question(r *http.Request, node string, status int, err error) {
	record := audit.Record{From: r.RemoteAddr, User: node, Operation: "agent", Object: r.URL.Path, Status: status, Error: err.Error()}
	if node != "" {
		record.Role = pki.RoleNode
	}
	d.note(record)
}

// link writes down that a worker refused a connection to its port of links.
func (d *doorbook) link(job, from, reason string) {
	d.note(audit.Record{From: from, Operation: "link", Object: "/v1/jobs/" + job, Error: reason})
}

// note writes a record, or counts it.
func (d *doorbook) note(r audit.Record) {
	host, _, err := net.SplitHostPort(r.From)
	if err != nil {
		host = r.From
	}
	more, due := d.knock(strings.Join([]string{host, r.Object, r.Error}, "\x00"), time.Now())
	if !due {
		return
	}
	if more > 0 {
		r.Error = fmt.Sprintf("%s; %d times more since the last line", r.Error, more)
	}
	d.write(r)
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
