package wire_test

import (
	"fmt"
	"testing"

	"github.com/avgpipe/avgpipe/internal/wire"
)

// BenchmarkLink sends frames over the loopback, both ends in this process: `taskset -c 0 go test ./internal/wire -bench Link -cpu 1` has them share
// a core, which two hosts do not.
func BenchmarkLink(b *testing.B) {
	config := wire.MutualTLS(b)
	for _, over := range []struct {
		name string
		wire.Config
	}{{"tcp", wire.Config{}}, {"tls", wire.Config{TLS: always(config)}}} {
		for _, size := range []int{1 << 10, 16 << 10, 256 << 10, 4 << 20} {
			b.Run(fmt.Sprintf("%s/%dKiB", over.name, size>>10), func(b *testing.B) {
				s := wire.Spec{Generation: 1, Depth: 4, MaxBytes: size}
				lower, upper := connect(b, s, over.Config)
				b.SetBytes(int64(size))
				h := wire.Header{Kind: wire.Activation, Generation: 1, Pipeline: 1, From: 0, To: 1}
				sent := make(chan error, 1)
				b.ResetTimer()
				go func() {
					for range b.N {
						if err := lower.Send(b.Context(), lower.NewFrame(h, size)); err != nil {
							sent <- err
							return
						}
					}
					sent <- nil
				}()
				for range b.N {
					f, err := upper.Receive(b.Context())
					if err != nil {
						b.Fatal(err)
					}
					f.Release()
				}
				if err := <-sent; err != nil {
					b.Fatal(err)
				}
			})
		}
	}
}
