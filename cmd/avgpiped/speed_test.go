package main

import (
	"bytes"
	"encoding/json"
	"testing"

	"github.com/avgpipe/avgpipe/internal/node"
)

// TestTheSpeedOfACoreIsMeasured and printed as the daemon reads it.
func TestTheSpeedOfACoreIsMeasured(t *testing.T) {
	var out, messages bytes.Buffer
	if code := run(t.Context(), []string{"speed"}, &out, &messages); code != exitDone {
		t.Fatalf("exit code %d: %s", code, messages.String())
	}
	var s node.Speed
	if err := json.Unmarshal(out.Bytes(), &s); err != nil || s.GFLOPs <= 0 || s.Device == "" {
		t.Errorf("%s (%v)", out.String(), err)
	}
}
