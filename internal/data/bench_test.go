package data

import (
	"path/filepath"
	"testing"

	"github.com/avgpipe/avgpipe/internal/access"
)

// BenchmarkOpenStandardLibrary lists, reads and hashes the Go standard library's source, some 7,700 files.
func BenchmarkOpenStandardLibrary(b *testing.B) {
	c := Config{
		Files:    []string{filepath.Join(goroot(b), "src/**/*.go")},
		Sequence: 128,
		Access:   &access.Opener{User: &access.User{UID: 1000, GIDs: []uint32{1000}}},
	}
	for b.Loop() {
		s, err := Open(b.Context(), c)
		if err != nil {
			b.Fatal(err)
		}
		b.SetBytes(s.Identity.Bytes)
	}
}

// BenchmarkFill fills a batch of 16 samples of 128 tokens.
func BenchmarkFill(b *testing.B) {
	s := memory(1<<19, 128)
	c := Cursor{Pipelines: 2, Batch: 16}
	inputs, targets := make([]int32, 16*128), make([]int32, 16*128)
	for b.Loop() {
		if err := s.Fill(c, 0, 16, Batch{Tokens: inputs, Targets: targets}); err != nil {
			b.Fatal(err)
		}
		c.Step++
	}
}
