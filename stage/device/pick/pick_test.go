package pick

import (
	"strings"
	"testing"
)

func TestOpenNamesTheDeviceAndTheReason(t *testing.T) {
	for _, kind := range append(Kinds(), "") {
		if kind != "gpu" { // which has a test of its own
			namesDeviceAndReason(t, kind, Config{Threads: 1})
		}
	}
}

func namesDeviceAndReason(t *testing.T, kind string, c Config) {
	t.Helper()
	dev, reason, err := Open(kind, c)
	if err != nil {
		t.Fatalf("%q: %v", kind, err)
	}
	if !strings.Contains(reason, dev.Name()) || len(reason) < len(dev.Name())+10 {
		t.Errorf("%q: reason %q does not name %q and say why", kind, reason, dev.Name())
	}
	if err := dev.Close(); err != nil {
		t.Error(err)
	}
}

func TestOpenRefusesWhatItDoesNotKnow(t *testing.T) {
	if _, _, err := Open("tpu", Config{}); err == nil || !strings.Contains(err.Error(), "auto, cpu, ref") {
		t.Errorf("error is %v, want the kinds that exist", err)
	}
	if _, _, err := Open("cpu", Config{Threads: -1}); err == nil || !strings.Contains(err.Error(), "-1 threads") {
		t.Errorf("error is %v, want the bad number of threads", err)
	}
}
