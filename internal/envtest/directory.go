package envtest

import (
	"os"
	"testing"
)

// ShortDir makes a directory whose path leaves room for the names of sockets: t.TempDir's, with the test's name in it, may not. It goes with the test.
func ShortDir(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "avgpipe-") //nolint:usetesting // see above
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	return dir
}
