package node_test

import (
	"testing"

	"go.uber.org/goleak"

	"github.com/avgpipe/avgpipe/internal/node/nodetest"
)

func TestMain(m *testing.M) {
	nodetest.Main(func() int {
		code := m.Run()
		if err := goleak.Find(); code == 0 && err != nil {
			println(err.Error())
			return 1
		}
		return code
	})
}
