package api

import (
	"net/url"
	"strconv"
	"time"
)

// LogRequest selects entries of a job's log. Each is a JSON object with time, level, msg, fields, and its cursor last.
type LogRequest struct {
	Follow bool      // go on until the job has ended
	Tail   int       // at most so many, the last ones; 0: all
	Since  time.Time // from then on; zero: all
	Level  string    // the least severe: debug, info, warn or error; empty: all
	After  string    // only what follows the entry with this cursor; empty: all
}

// query is the request as the parameters of a URL.
func (r LogRequest) query() url.Values {
	q := url.Values{}
	set := func(name, value string, there bool) {
		if there {
			q.Set(name, value)
		}
	}
	set("follow", "1", r.Follow)
	set("tail", strconv.Itoa(r.Tail), r.Tail > 0)
	set("since", r.Since.UTC().Format(time.RFC3339Nano), !r.Since.IsZero())
	set("level", r.Level, r.Level != "")
	set("after", r.After, r.After != "")
	return q
}
