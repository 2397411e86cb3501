//go:build !(ucx && cgo && linux)

package ucx

import (
	"errors"

	"github.com/avgpipe/avgpipe/internal/wire"
)

// Built reports whether this program has UCX.
const Built = false

// Transport is absent.
type Transport struct{ wire.Transport }

// New says that this program has none.
func New(string) (*Transport, error) {
	return nil, errors.New("this program was built without UCX: build it with the tag ucx, as `make ucx` does")
}

// Close does nothing.
func (*Transport) Close() error { return nil }
