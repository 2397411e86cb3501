package envtest

import (
	"fmt"
	"testing"
)

// recorder notes how a test would end.
type recorder struct {
	testing.TB
	said string
}

func (*recorder) Helper() {}

func (r *recorder) Fatalf(format string, args ...any) {
	r.said += "failed: " + fmt.Sprintf(format, args...)
}

func (r *recorder) Skipf(format string, args ...any) {
	r.said += "; skipped: " + fmt.Sprintf(format, args...)
}

func TestWhatIsMissingFailsInCI(t *testing.T) {
	for ci, want := range map[string]string{
		"":     "; skipped: no disk",
		"true": "failed: CI is set, so nothing may be missing: no disk; skipped: no disk", // a Fatalf that returns
	} {
		t.Setenv("CI", ci)
		r := &recorder{TB: t}
		if Missing(r, "no %s", "disk"); r.said != want {
			t.Errorf("CI=%s: %q, want %q", ci, r.said, want)
		}
	}
}
