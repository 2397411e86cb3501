//go:build !(ucx && cgo && linux)

package wire_test

import (
	"testing"

	"github.com/avgpipe/avgpipe/internal/wire"
)

// besides are the transports that this build can benchmark.
func besides(*testing.B) []wire.Transport { return nil }
