package coordinator

import (
	"maps"
	"slices"
	"strings"
	"testing"
	"time"
)

// TestOldestEndedJobsGoFirst: by number, age and bytes, with the configuration key in the reason; never the last one for its size.
func TestOldestEndedJobsGoFirst(t *testing.T) {
	now := time.Date(2026, 1, 10, 0, 0, 0, 0, time.UTC)
	var jobs []keptJob // job 1 ended 5 days ago, job 5 one day ago
	for i, id := range []string{"1", "2", "3", "4", "5"} {
		jobs = append(jobs, keptJob{id: id, ended: now.AddDate(0, 0, i-5), bytes: 100})
	}
	slices.Reverse(jobs)
	for _, c := range []struct {
		name string
		r    Retention
		disk int64
		gone string
		why  string
	}{
		{"no bound", Retention{}, 1000, "", ""},
		{"within all", Retention{Jobs: 5, Age: 200 * time.Hour, Bytes: 500}, 1000, "", ""},
		{"number", Retention{Jobs: 3}, 1000, "1 2", "keep_ended_jobs is 3"},
		{"age", Retention{Age: 75 * time.Hour}, 1000, "1 2", "keep_ended_age is 75h"},
		{"bytes", Retention{Bytes: 250}, 1000, "1 2 3", "keep_ended_bytes allows 250"},
		{"share", Retention{Share: 0.25}, 1000, "1 2 3", "keep_ended_bytes allows 250"},
		{"the smaller of two", Retention{Bytes: 450, Share: 0.25}, 1000, "1 2 3", "allows 250"},
		{"bytes of one", Retention{Bytes: 10}, 1000, "1 2 3 4", "keep_ended_bytes"},
		{"several", Retention{Jobs: 4, Bytes: 300}, 1000, "1 2", "keep_ended"},
	} {
		t.Run(c.name, func(t *testing.T) {
			for i := range jobs {
				jobs[i].old = c.r.Age > 0 && now.Sub(jobs[i].ended) > c.r.Age
			}
			gone := c.r.surplus(jobs, c.disk)
			if got := strings.Join(slices.Sorted(maps.Keys(gone)), " "); got != c.gone {
				t.Errorf("%q go, want %q: %v", got, c.gone, gone)
			}
			for _, why := range gone {
				if !strings.Contains(why, c.why) {
					t.Errorf("reason %q, want %q", why, c.why)
				}
			}
		})
	}
}
