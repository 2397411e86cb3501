package gpu

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// ErrNoFault is the error of a Clear where there is nothing to clear.
var ErrNoFault = errors.New("no errors to clear")

// Faults are what XIDs said of processors, by UUID. They outlive the daemon that heard of them: whoever runs it keeps them.
type Faults map[string]Fault

// Fault is that of a processor. It lasts until the processor was reset, or a person clears it.
type Fault struct {
	XIDs  []XID `json:"xids"`  // those that say something about the processor, in the order of codes
	Asked bool  `json:"asked"` // the driver has asked for a reset since: once it does no more, there was one
}

// same reports whether two say the same. How often an error came is not worth a write each.
func (f Fault) same(other Fault) bool {
	return f.Asked == other.Asked && slices.EqualFunc(f.XIDs, other.XIDs, func(a, b XID) bool { return a.Code == b.Code })
}

// fault is what is kept of a tracker.
func (t *tracker) fault() Fault {
	hurt := slices.DeleteFunc(t.xids(), XID.Unhurt)
	return Fault{hurt, t.asked && len(hurt) > 0}
}

// clear forgets what XIDs said.
func (t *tracker) clear() {
	maps.DeleteFunc(t.seen, func(_ uint64, x XID) bool { return !x.Unhurt() })
	t.asked = false
}

// recovered follows what the driver asks for: what it asked for after an error, and does no more, was done.
func (t *tracker) recovered(r Readings) {
	switch r.Recovery {
	case RecoverReset, RecoverReboot, RecoverBusReset, RecoverDrainAndReset:
		t.asked = true
	case RecoverNone:
		if t.asked {
			t.clear()
		}
	case RecoverDrainPeers, RecoverIMEX, RecoverUnknown, "":
	}
}

// keep tells of the faults where they have changed. Those of processors that are not there stay as they are.
func (m *Monitor) keep() {
	now := maps.Clone(m.gone)
	for _, w := range m.watched {
		if f := w.fault(); len(f.XIDs) > 0 {
			now[w.status.UUID] = f
		}
	}
	if !maps.EqualFunc(m.kept, now, Fault.same) {
		m.kept = now
		m.config.Events.Faults(maps.Clone(now))
	}
}

// Clear forgets what XIDs said of a processor, which a UUID or the index of one that is watched names: a person says that it is well again. What its
// readings say stays.
func (m *Monitor) Clear(ctx context.Context, word string) error {
	answer := make(chan error, 1)
	select {
	case m.clears <- func() { answer <- m.clear(word) }:
		return <-answer
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func (m *Monitor) clear(word string) error {
	before := m.kept
	var all, meant []GPU
	for _, w := range m.watched {
		all = append(all, w.status.GPU)
		if means(word, w.status.GPU) {
			w.clear()
			meant = append(meant, w.status.GPU)
		}
	}
	delete(m.gone, word)
	m.assess()
	switch kept := slices.Sorted(maps.Keys(m.kept)); {
	case !maps.EqualFunc(before, m.kept, Fault.same):
		return nil
	case len(meant) == 0:
		return fmt.Errorf("%w: there is no GPU %s; jobs may use: %s; errors are kept of: %s", ErrNoFault, word, list(all), cmp.Or(strings.Join(kept, ", "), "none"))
	default:
		return fmt.Errorf("%w: nothing is kept of GPU %s; errors are kept of: %s", ErrNoFault, list(meant), cmp.Or(strings.Join(kept, ", "), "none"))
	}
}
