package node_test

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/avgpipe/avgpipe/internal/api"
	"github.com/avgpipe/avgpipe/internal/node/nodetest"
)

// logLine is an entry of a log.
type logLine struct {
	Time              time.Time
	Msg, Node, Cursor string
}

// logOf reads a job's log.
func logOf(t *testing.T, h *host, id string, r api.LogRequest) (all []logLine) {
	t.Helper()
	nodetest.Eventually(t, h.name+" gives the log", func() bool { // a node may have to find out which one leads
		all = nil
		return h.Client.Logs(t.Context(), id, r, func(entry []byte) error {
			var l logLine
			err := json.Unmarshal(entry, &l)
			all = append(all, l)
			return err
		}) == nil
	})
	return all
}

// TestTheLogOfAJobIsThatOfAllNodes: what each decided while it led, and what the workers said on each. What cannot be read is said.
func TestTheLogOfAJobIsThatOfAllNodes(t *testing.T) {
	t.Parallel()
	all := form(t, 3)
	lead, others := leader(t, all)
	nodetest.Eventually(t, "node "+lead.name+" is drained", func() bool {
		_, err := lead.Client.Drain(t.Context(), lead.name, api.DrainRequest{})
		return err == nil
	})
	id := others[0].Submit(t, "placement: spread\n"+nodetest.Job(t, others[0].Dir, "long", 1e6))
	others[0].Until(t, id, "commits", committed)
	lead.Stop(t)
	next, rest := leader(t, others)
	rest[0].Cancel(t, id)
	rest[0].Until(t, id, "ends", ended)
	said := func(lines []logLine, node, text string) bool {
		return slices.ContainsFunc(lines, func(l logLine) bool { return l.Node == node && strings.HasPrefix(l.Msg, text) })
	}
	nodetest.Eventually(t, "what is missing is said", func() bool {
		lines := logOf(t, rest[0], id, api.LogRequest{})
		return said(lines, "", "what these nodes have of the log is missing here: "+lead.name) && said(lines, next.name, "job cancelled") &&
			!said(lines, lead.name, "submitted")
	})
	lead.start(t, lead.Dir)
	var lines []logLine
	nodetest.Eventually(t, "the log is whole again", func() bool {
		lines = logOf(t, rest[0], id, api.LogRequest{})
		return said(lines, lead.name, "submitted") && said(lines, lead.name, "round committed") && said(lines, next.name, "job cancelled") &&
			!said(lines, "", "what these nodes")
	})
	if !slices.IsSortedFunc(lines, func(a, b logLine) int { return a.Time.Compare(b.Time) }) {
		t.Errorf("lines are not in the order of time: %v", lines)
	}
	for what, part := range map[string]func(all []logLine) (r api.LogRequest, want []logLine){
		"what follows a line": func(all []logLine) (api.LogRequest, []logLine) {
			return api.LogRequest{After: all[len(all)/2].Cursor}, all[len(all)/2+1:]
		},
		"the last two": func(all []logLine) (api.LogRequest, []logLine) { return api.LogRequest{Tail: 2}, all[len(all)-2:] },
		"what is followed": func(all []logLine) (api.LogRequest, []logLine) {
			return api.LogRequest{Follow: true, After: all[0].Cursor}, all[1:]
		},
	} {
		nodetest.Eventually(t, what+" is the same", func() bool { // a busy node may not answer at first, which is said, or still have something to say
			all := logOf(t, rest[0], id, api.LogRequest{})
			if len(all) < len(lines) {
				return false
			}
			r, want := part(all)
			return slices.Equal(logOf(t, rest[0], id, r), want)
		})
	}
	if err := rest[0].Client.Logs(t.Context(), id, api.LogRequest{After: "n1=%"}, func([]byte) error { return nil }); err == nil || !strings.Contains(err.Error(), "is not the cursor") {
		t.Errorf("no cursor: %v", err)
	}
}
