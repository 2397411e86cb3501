package node

import (
	"strings"
	"testing"
	"time"
)

// A daemon is ready once the coordinator has looked at the jobs, and for as long as it goes on doing so.
func TestTickErrorSaysWhenTheCoordinatorLooked(t *testing.T) {
	now := time.Now()
	for _, c := range []struct {
		tick time.Time
		want string // "" for ready
	}{
		{time.Time{}, "it has not looked at the jobs yet, 300ms after its start"},
		{now.Add(-tickBound), ""},
		{now.Add(-tickBound - time.Second), "it last looked at the jobs 6s ago"},
	} {
		err := tickError(c.tick, 300*time.Millisecond, now)
		if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.HasPrefix(err.Error(), c.want)) {
			t.Errorf("last tick %v: %v, want %q", c.tick, err, c.want)
		}
	}
}

func TestContactErrorSaysWhatIsKnownOfTheLeader(t *testing.T) {
	for _, c := range []struct {
		leader string
		age    time.Duration
		want   string // "" for ready
	}{
		{"n1", contactBound, ""},
		{"n1", contactBound + time.Second, "node n1 leads, and was last heard of 6s ago"},
	} {
		err := contactError(c.leader, c.age)
		if c.want == "" && err != nil || c.want != "" && (err == nil || err.Error() != c.want) {
			t.Errorf("%+v: %v", c, err)
		}
	}
}
