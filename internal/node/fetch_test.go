package node

import (
	"errors"
	"strings"
	"testing"

	"github.com/avgpipe/avgpipe/internal/objectstore"
	"github.com/avgpipe/avgpipe/internal/remotedata"
)

// TestWhatDoesNotComeSaysWhatToDo: only what passes by itself is waited for, and what is submitted anew has to be another job where the first one was wrong.
func TestWhatDoesNotComeSaysWhatToDo(t *testing.T) {
	for kind, c := range map[objectstore.Kind]struct {
		want, never string
		gone        bool
	}{
		objectstore.Unavailable: {"it is tried again", "submit", false},
		objectstore.NoObject:    {"this does not pass by itself", "submit", false},
		objectstore.Changed:     {"it is not what it was when the job was submitted; restore it, or submit the job anew", "#sha256", true},
		objectstore.Differs:     {"the content has another digest: write #sha256=1, else restore it, and submit the job anew", "when the job was submitted", true},
	} {
		s := sightOf(remotedata.Progress{Left: 1, Err: &objectstore.Error{Kind: kind, Op: "get", URL: "https://host/x", Err: errors.New("write #sha256=1")}})
		if kind != objectstore.Differs {
			s.Data = strings.ReplaceAll(s.Data, "write #sha256=1", "")
		}
		if !strings.Contains(s.Data, c.want) || strings.Contains(s.Data, c.never) || (s.Gone != "") != c.gone {
			t.Errorf("%s: %+v", kind, s)
		}
	}
}
