package wire_test

import (
	"fmt"
	"testing"

	"github.com/avgpipe/avgpipe/internal/wire"
)

// BenchmarkLink sends frames over the loopback, both ends in this process: in a row, and each after the answer to the one before.
// `taskset -c 0 go test ./internal/wire -bench Link -cpu 1` has them share a core, which two hosts do not.
func BenchmarkLink(b *testing.B) {
	config := wire.MutualTLS(b)
	kinds := []struct {
		name string
		wire.Config
	}{{"tcp", wire.Config{}}, {"tls", wire.Config{TLS: always(config)}}}
	for _, t := range besides(b) {
		kinds = append(kinds, struct {
			name string
			wire.Config
		}{t.Name(), wire.Config{TLS: always(config), Paths: &wire.Paths{Transport: t, Always: true}}})
	}
	for _, over := range kinds {
		for _, size := range []int{1 << 10, 16 << 10, 256 << 10, 4 << 20} {
			b.Run(fmt.Sprintf("%s/%dKiB", over.name, size>>10), func(b *testing.B) { stream(b, over.Config, size) })
		}
		for _, size := range []int{1 << 10, 1 << 20} {
			b.Run(fmt.Sprintf("%s/answered/%dKiB", over.name, size>>10), func(b *testing.B) { answered(b, over.Config, size) })
		}
	}
}

// stream sends frames in a row.
func stream(b *testing.B, c wire.Config, size int) {
	lower, upper := connect(b, wire.Spec{Generation: 1, Depth: 4, MaxBytes: size}, c)
	b.SetBytes(int64(size))
	sent := make(chan error, 1)
	b.ResetTimer()
	go func() {
		for range b.N {
			if err := lower.Send(b.Context(), lower.NewFrame(benchmarked(0, 1), size)); err != nil {
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
}

// answered sends a frame when the one before was answered.
func answered(b *testing.B, c wire.Config, size int) {
	lower, upper := connect(b, wire.Spec{Generation: 1, Depth: 4, MaxBytes: size}, c)
	b.ResetTimer()
	go func() {
		for range b.N {
			f, err := upper.Receive(b.Context())
			if err != nil {
				return // the other side says so
			}
			f.Release()
			if upper.Send(b.Context(), upper.NewFrame(benchmarked(1, 0), 8)) != nil {
				return
			}
		}
	}()
	for range b.N {
		if err := lower.Send(b.Context(), lower.NewFrame(benchmarked(0, 1), size)); err != nil {
			b.Fatal(err)
		}
		f, err := lower.Receive(b.Context())
		if err != nil {
			b.Fatal(err)
		}
		f.Release()
	}
}

func benchmarked(from, to int) wire.Header {
	return wire.Header{Kind: wire.Activation, Generation: 1, Pipeline: 1, From: from, To: to}
}
