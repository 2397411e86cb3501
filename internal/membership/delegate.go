package membership

import (
	"bytes"
	"fmt"
	"time"

	"github.com/hashicorp/memberlist"
	"go.uber.org/zap"
)

// NodeMeta implements memberlist.Delegate.
func (l *List) NodeMeta(int) []byte {
	l.mu.Lock()
	defer l.mu.Unlock()
	return meta{l.leaving, l.config.Commands, l.config.Version}.encode()
}

// NotifyMsg implements memberlist.Delegate. Nodes send each other nothing by gossip.
func (l *List) NotifyMsg([]byte) {}

// GetBroadcasts implements memberlist.Delegate.
func (l *List) GetBroadcasts(int, int) [][]byte { return nil }

// LocalState implements memberlist.Delegate.
func (l *List) LocalState(bool) []byte { return nil }

// MergeRemoteState implements memberlist.Delegate.
func (l *List) MergeRemoteState([]byte, bool) {}

// AckPayload implements memberlist.PingDelegate.
func (l *List) AckPayload() []byte { return nil }

// NotifyPingComplete implements memberlist.PingDelegate.
func (l *List) NotifyPingComplete(other *memberlist.Node, rtt time.Duration, _ []byte) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if r := l.known[other.Name]; r != nil {
		r.RTT, r.Answered = rtt, time.Now()
	}
}

// NotifyAlive implements memberlist.AliveDelegate: it refuses who is no member, as one that was removed and has the key still.
func (l *List) NotifyAlive(n *memberlist.Node) error {
	name := n.Name
	if name == l.config.Name || l.config.Peers()[name] != "" {
		return nil
	}
	return fmt.Errorf("node %s is no member", name)
}

// events implements memberlist.EventDelegate for a List.
type events List

// NotifyJoin implements memberlist.EventDelegate.
func (e *events) NotifyJoin(n *memberlist.Node) { (*List)(e).change(n, Alive) }

// NotifyUpdate implements memberlist.EventDelegate.
func (e *events) NotifyUpdate(n *memberlist.Node) { (*List)(e).change(n, Alive) }

// NotifyLeave implements memberlist.EventDelegate. The library does not say whether the node has left or died.
func (e *events) NotifyLeave(n *memberlist.Node) { (*List)(e).change(n, Dead) }

// logWriter passes the library's log on, line by line, at debug level: what matters of it are Events.
type logWriter struct{ log *zap.Logger }

func (w logWriter) Write(line []byte) (int, error) {
	w.log.Debug(string(bytes.TrimSpace(line)))
	return len(line), nil
}
