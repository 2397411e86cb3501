package node_test

import (
	"flag"
	"testing"

	"go.uber.org/goleak"

	"github.com/avgpipe/avgpipe/internal/node/nodetest"
)

func TestMain(m *testing.M) {
	nodetest.Main(func() int {
		// They mostly wait, for elections and bounds, and not for a core. One of the command line comes later, and holds.
		if err := flag.Set("test.parallel", "4"); err != nil {
			println(err.Error())
			return 1
		}
		code := m.Run()
		// The library of gossip does not wait for a probe that nobody answers; it ends by itself after some seconds.
		if err := goleak.Find(goleak.IgnoreAnyFunction("github.com/hashicorp/memberlist.(*Memberlist).probeNode")); code == 0 && err != nil {
			println(err.Error())
			return 1
		}
		return code
	})
}
