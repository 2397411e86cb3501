//go:build ucx && cgo && linux

package wire_test

import (
	"testing"

	"github.com/avgpipe/avgpipe/internal/wire"
	"github.com/avgpipe/avgpipe/internal/wire/ucx"
)

// besides are the transports that this build can benchmark.
func besides(b *testing.B) []wire.Transport {
	b.Helper()
	u, err := ucx.New("lo")
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		if err := u.Close(); err != nil {
			b.Error(err)
		}
	})
	return []wire.Transport{u}
}
