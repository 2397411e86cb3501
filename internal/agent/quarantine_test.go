package agent

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/zap"

	"github.com/avgpipe/avgpipe/internal/worker/control"
)

// TestQuarantineIsKeptForAWhile: what is old goes once it was for an hour, in which a clock may have been set; what is new, and what is not named by a time, stays.
func TestQuarantineIsKeptForAWhile(t *testing.T) { synctest.Test(t, keepsQuarantine) }

func keepsQuarantine(t *testing.T) {
	state := t.TempDir()
	// It was not opened: nothing sweeps beside the test.
	l := &Local{config: Config{StateDir: state, Log: zap.NewNop(), Limits: func() Limits { return Limits{QuarantineFor: time.Hour} }}}
	for name, stays := range map[string]bool{
		time.Now().Add(-2 * time.Hour).UTC().Format(quarantineTime): false, time.Now().Add(3 * time.Hour).UTC().Format(quarantineTime): true, "mine": true,
	} {
		dir := filepath.Join(control.QuarantineDir(JobDir(state, "1")), name)
		if err := errors.Join(os.MkdirAll(dir, 0o750), os.WriteFile(filepath.Join(dir, "x.shard"), []byte("x"), 0o600)); err != nil {
			t.Fatal(err)
		}
		l.sweepQuarantine()
		if _, err := os.Stat(dir); err != nil {
			t.Errorf("%s at the first look: %v", name, err)
		}
		time.Sleep(time.Hour)
		l.sweepQuarantine()
		if _, err := os.Stat(dir); (err == nil) != stays {
			t.Errorf("%s: %v, stays should be %v", name, err, stays)
		}
	}
}
