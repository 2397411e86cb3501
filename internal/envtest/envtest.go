// Package envtest says what tests do without what they need. A developer's machine may lack it, and the test is skipped there. CI
// lacks nothing: with the environment variable CI set, as .ci/run has it, the test fails instead. internal/lint sees to it that no test
// is skipped in another way.
package envtest

import (
	"os"
	"testing"
)

// Missing skips a test whose machine lacks something, and fails it in CI. The words say what is missing.
func Missing(t testing.TB, format string, args ...any) {
	t.Helper()
	if os.Getenv("CI") != "" {
		t.Fatalf("CI is set, so nothing may be missing: "+format, args...)
	}
	t.Skipf(format, args...)
}

// Root skips a test that needs root, elsewhere.
func Root(t testing.TB) {
	t.Helper()
	if os.Geteuid() != 0 {
		Missing(t, "it needs root")
	}
}

// Impossible skips a test, or a part of one, of what this machine cannot have, whatever is installed: a processor's instructions, say.
// Each use has its reason in a table of internal/lint.
func Impossible(t testing.TB, format string, args ...any) {
	t.Helper()
	t.Skipf(format, args...)
}
