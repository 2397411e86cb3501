package flat_test

import (
	"testing"

	"github.com/avgpipe/avgpipe/stage/flat"
	"github.com/avgpipe/avgpipe/stage/flat/flattest"
)

func TestHostConforms(t *testing.T) {
	flattest.Run(t, func(n int) flat.Vector { return flat.NewHost(n) })
}
