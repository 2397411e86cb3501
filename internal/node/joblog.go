package node

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/avgpipe/avgpipe/internal/agent"
	"github.com/avgpipe/avgpipe/internal/api"
	"github.com/avgpipe/avgpipe/internal/cluster"
	"github.com/avgpipe/avgpipe/internal/server"
	"github.com/avgpipe/avgpipe/internal/worker/control"
)

// askLogAgain is how long a node is left alone of which the log could not be read.
const askLogAgain = 10 * time.Second

// Log implements server.Backend. Every node has a log of a job of its own: what its worker said, and what was decided while it led. They are read as one.
func (n *node) Log(ctx context.Context, ref string, r api.LogRequest) (server.LogReader, error) {
	j, err := n.find(ref)
	if err != nil {
		return nil, err
	}
	members := n.raft.State().Nodes()
	if len(members) < 2 {
		return n.ownLog(ctx, j, r)
	}
	places, err := parsePlaces(r.After, n.id)
	if err != nil {
		return nil, err
	}
	l := &jointLog{holders: func() []string { return append(n.holders(j), n.id) }}
	var opening sync.WaitGroup
	for _, m := range members {
		p := &logPart{node: m.Name, place: places.Get(m.Name), open: func(after string) (agent.LogReader, error) {
			from := r
			from.After = after
			return n.logOn(ctx, m.Name, j, from)
		}}
		l.parts = append(l.parts, p)
		opening.Go(p.start)
	}
	opening.Wait()
	for _, p := range l.parts {
		if p.node == n.id && p.fault != nil {
			return nil, errors.Join(p.fault, l.Close())
		}
	}
	return l, nil
}

// ownLog is the log of a job on this node.
func (n *node) ownLog(ctx context.Context, j *cluster.Job, r api.LogRequest) (agent.LogReader, error) {
	reader, err := patiently(ctx, &n.readers, j.ID, func() (*agent.LogFile, error) {
		return agent.OpenLog(control.LogPath(agent.JobDir(n.config.StateDir, j.ID)), r)
	})
	if err != nil {
		return nil, fmt.Errorf("log of job %s: %w", j.ID, err)
	}
	return &patientLog{LogFile: reader, readers: &n.readers, job: j.ID}, nil
}

// logOn is the log of a job on a node.
func (n *node) logOn(ctx context.Context, name string, j *cluster.Job, r api.LogRequest) (agent.LogReader, error) {
	if name == n.id {
		return n.ownLog(ctx, j, r)
	}
	if seen, _ := n.seen.get(name); seen.down {
		return nil, fmt.Errorf("node %s is down", name)
	}
	there, err := n.peer(name)
	if err != nil {
		return nil, err
	}
	return there.OpenLog(ctx, j.ID, r)
}

// parsePlaces reads the cursor of an entry of a joint log: the places in the logs of nodes, by name. One that names no node is of a log that this node had
// when it was alone.
func parsePlaces(cursor, self string) (url.Values, error) {
	if cursor != "" && !strings.Contains(cursor, "=") {
		return url.Values{self: {cursor}}, nil
	}
	places, err := url.ParseQuery(cursor)
	if err != nil {
		return nil, api.Errorf(http.StatusBadRequest, "after=%q is not the cursor of a log entry", cursor)
	}
	return places, nil
}

// jointLog reads the logs of a job on several nodes as one, in the order of time. Lines that come late, as over a slow way, come after those that were read.
type jointLog struct {
	parts   []*logPart
	holders func() []string // the nodes that write to theirs
	missing []string        // nodes whose part was just found not to be readable, for a line that says so
	faults  []error
}

// logPart is the log on one node.
type logPart struct {
	node  string
	open  func(after string) (agent.LogReader, error)
	log   agent.LogReader // nil: it is not open
	place string          // after the last entry that was passed on; "": the beginning
	fault error           // why it could not be opened or read on
	told  bool            // that is known to the reader
	again time.Time       // when it is tried again, after a fault

	seen bool   // it was looked at
	read bool   // it was found to be at its end since the last look at all
	head []byte // the next entry, without its cursor; nil: none was read
	time time.Time
	next string // the place after it
}

// start opens the log.
func (p *logPart) start() {
	p.log, p.fault = p.open(p.place)
	if p.fault != nil {
		p.log, p.again = nil, time.Now().Add(askLogAgain)
	}
}

// look reads the next entry, if there is one.
func (p *logPart) look(ended bool) {
	p.seen, p.read = true, true
	if p.fault != nil && time.Now().After(p.again) {
		p.start()
	}
	if p.fault != nil {
		return
	}
	entry, err := p.log.Next(ended)
	switch {
	case errors.Is(err, io.EOF):
		p.told = false
		return
	case err != nil:
		p.fault, p.again = err, time.Now().Add(askLogAgain)
		_ = p.log.Close() // only read
		return
	}
	var of struct {
		Time   time.Time
		Cursor string
	}
	if json.Unmarshal(entry, &of) != nil { // the agent has encoded it
		of.Time, of.Cursor = p.time, p.place
	}
	p.head, p.time, p.next, p.read = bytes.TrimSuffix(entry, fmt.Appendf(nil, `,"cursor":%q}`, of.Cursor)), of.Time, of.Cursor, false
}

// Next implements server.LogReader.
func (l *jointLog) Next(ended bool) ([]byte, error) {
	writes := l.holders()
	var first *logPart
	for _, p := range l.parts {
		idle := p.seen && p.place == "" && !ended && !slices.Contains(writes, p.node) // nothing is there, and nothing is written there
		if p.head == nil && !p.read && !idle {
			p.look(ended)
		}
		if p.fault != nil && !p.told {
			p.told = true
			l.missing, l.faults = append(l.missing, p.node), append(l.faults, p.fault)
		}
		if p.head != nil && (first == nil || p.time.Before(first.time)) {
			first = p
		}
	}
	if first != nil {
		head := first.head
		first.head, first.place = nil, first.next
		return l.entry(head, first.node)
	}
	if len(l.missing) > 0 {
		return l.incomplete()
	}
	for _, p := range l.parts {
		p.read = false
	}
	return nil, io.EOF
}

// entry is an entry with its node and the cursor after it.
func (l *jointLog) entry(head []byte, node string) ([]byte, error) {
	places := url.Values{}
	for _, p := range l.parts {
		if p.place != "" {
			places.Set(p.node, p.place)
		}
	}
	tail, err := json.Marshal(struct {
		Node   string `json:"node,omitempty"`
		Cursor string `json:"cursor"`
	}{node, places.Encode()})
	if err != nil {
		return nil, err
	}
	return slices.Concat(head, []byte(","), tail[1:]), nil
}

// incomplete is a line which says that the log lacks what some nodes have of it.
func (l *jointLog) incomplete() ([]byte, error) {
	line, err := json.Marshal(struct {
		Time   time.Time `json:"time"`
		Level  string    `json:"level"`
		Logger string    `json:"logger"`
		Msg    string    `json:"msg"`
		Error  string    `json:"error"`
	}{
		time.Now().UTC().Truncate(time.Millisecond), "warn", "avgpiped",
		"what these nodes have of the log is missing here: " + strings.Join(l.missing, ", "), errors.Join(l.faults...).Error(),
	})
	l.missing, l.faults = nil, nil
	if err != nil {
		return nil, err
	}
	return l.entry(line[:len(line)-1], "")
}

// Close implements server.LogReader.
func (l *jointLog) Close() (err error) {
	for _, p := range l.parts {
		if p.log != nil && p.fault == nil {
			err = errors.Join(err, p.log.Close())
		}
	}
	return err
}
