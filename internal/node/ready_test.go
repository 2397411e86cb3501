package node

import (
	"strings"
	"testing"
	"time"
)

// A daemon is ready once the coordinator has looked at the jobs, and for as long as it goes on doing so.
func TestTickErrorSaysWhenTheCoordinatorLooked(t *testing.T) {
	now := time.Now()
	started := now.Add(-300 * time.Millisecond)
	for _, c := range []struct {
		tick time.Time
		want string // "" for ready
	}{
		{time.Time{}, "it has not looked at the jobs yet, 300ms after the daemon's start"},
		{now.Add(-tickBound), ""},
		{now.Add(-tickBound - time.Second), "it last looked at the jobs 6s ago"},
	} {
		err := tickError(c.tick, started, now)
		if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.HasPrefix(err.Error(), c.want)) {
			t.Errorf("last tick %v: %v, want %q", c.tick, err, c.want)
		}
	}
}
