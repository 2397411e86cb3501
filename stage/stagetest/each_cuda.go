//go:build cuda && cgo && linux && amd64

package stagetest

import (
	"testing"

	"github.com/avgpipe/avgpipe/stage/device/cuda"
	"github.com/avgpipe/avgpipe/stage/device/cuda/cudatest"
	"github.com/avgpipe/avgpipe/stage/device/pick"
)

// devices says where tests find each kind of device: a graphics processor in a driver that has none.
func devices(t *testing.T) pick.Config {
	library := cudatest.Library(t)
	return pick.Config{Graphics: cuda.Config{Library: library.Path(), Libraries: []string{library.Directory()}}}
}
