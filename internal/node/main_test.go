package node_test

import (
	"testing"

	"go.uber.org/goleak"

	"github.com/avgpipe/avgpipe/internal/node/nodetest"
)

func TestMain(m *testing.M) {
	nodetest.Main(func() int {
		code := m.Run()
		// The library of gossip does not wait for a probe that nobody answers; it ends by itself after some seconds.
		if err := goleak.Find(goleak.IgnoreAnyFunction("github.com/hashicorp/memberlist.(*Memberlist).probeNode")); code == 0 && err != nil {
			println(err.Error())
			return 1
		}
		return code
	})
}
