package foreign_test

import (
	"errors"
	"fmt"
	"os"
	"testing"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"
)

// TestMain fails when tests leave a goroutine or a process behind.
func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m, goleak.Cleanup(func(code int) {
		if child, err := unix.Wait4(-1, nil, unix.WNOHANG, nil); !errors.Is(err, unix.ECHILD) {
			fmt.Fprintf(os.Stderr, "a process is left behind, or was not waited for: %d %v\n", child, err)
			code = 1
		}
		os.Exit(code)
	}))
}
