package agenttest

import (
	"os"
	"testing"

	"go.uber.org/goleak"
)

// Main is TestMain of a package whose agents start this binary again as the fake worker or the fake tuning. No test may leave a goroutine.
func Main(m *testing.M) {
	if len(os.Args) == 4 && os.Args[2] == "--assignment" {
		os.Exit(Worker(os.Args[3]))
	}
	if len(os.Args) == 4 && os.Args[2] == "--request" {
		os.Exit(Tune(os.Args[3]))
	}
	goleak.VerifyTestMain(m)
}
