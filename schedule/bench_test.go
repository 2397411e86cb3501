package schedule

import (
	"fmt"
	"testing"
)

// BenchmarkSimulate times a plan per op. The largest is what a tuner may ask of the simulator at most.
func BenchmarkSimulate(b *testing.B) {
	for _, size := range []struct{ stages, microBatches int }{{4, 32}, {64, 256}, {1024, 4096}} {
		for _, name := range Names() {
			b.Run(fmt.Sprintf("%s/stages=%d/micro-batches=%d", name, size.stages, size.microBatches), func(b *testing.B) {
				plan, _, err := Generate(name, Request{Devices: size.stages, MicroBatches: size.microBatches})
				if err != nil {
					b.Fatal(err)
				}
				costs := Uniform(size.stages, 1, 2, 0.5)
				b.ReportAllocs()
				for b.Loop() {
					if _, err := Simulate(plan, costs); err != nil {
						b.Fatal(err)
					}
				}
				b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/float64(plan.Ops()), "ns/op-of-plan")
			})
		}
	}
}
