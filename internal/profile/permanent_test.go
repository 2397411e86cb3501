package profile

import (
	"strings"
	"testing"
	"time"

	"github.com/avgpipe/avgpipe/internal/worker/control"
	"github.com/avgpipe/avgpipe/job"
)

func TestOnlyErrorsAboutTheJobArePermanent(t *testing.T) {
	for name, c := range map[string]struct {
		change    func(*job.Job)
		limit     time.Duration
		permanent bool
		says      string
	}{
		"more stages than layers": {change: func(j *job.Job) { j.Stages = 9 }, permanent: true, says: "stages"},
		"no memory for it":        {change: emulate(5e4), permanent: true, says: "memory"},
		"a model that is none":    {change: func(j *job.Job) { j.Model.Config["n_head"] = 3 }, permanent: true, says: "n_head"},
		"time that ran out":       {limit: time.Nanosecond, says: "deadline"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := Tune(t.Context(), Config{Request: request(t, c.change), Limit: c.limit})
			if err == nil || Permanent(err) != c.permanent || !strings.Contains(err.Error(), c.says) {
				t.Errorf("permanent is %v, want %v, of error: %v", Permanent(err), c.permanent, err)
			}
		})
	}
	_, err := Tune(t.Context(), Config{Request: control.TuneRequest{Version: control.Version}})
	if err == nil || Permanent(err) {
		t.Errorf("a request without cores: permanent, or no error: %v", err)
	}
}
