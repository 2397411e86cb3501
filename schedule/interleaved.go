package schedule

import "fmt"

// interleaved gives each device several stages, chunks, that lie a whole round of devices apart, and runs 1f1b over them
// (Megatron-LM: Narayanan et al. 2021, section 2.2). Filling the pipeline takes a chunk's time per device and no longer a device's
// whole share, so the bubble shrinks by the number of chunks v, to (K-1)/(vM+K-1); in exchange, v times the messages and
// up to (K-1)/v more micro-batches in flight.
//
// Device i runs 2(K-1-i) + (v-1)K forwards, then a forward and a backward in turn. They go through the chunks in rounds of K
// micro-batches: K through the first chunk, the same K through the second, ..., the next K through the first; backwards
// through the chunks from the last to the first. The paper wants M to be a multiple of K. Here M micro-batches make M/K rounds
// (rounded down), as even as can be, and K in the warm-up is the size of the first, which is none smaller than another's: so a
// micro-batch is back for its next chunk when its turn comes, whatever M is.
//
// Free links, backwards of two forwards:
//
//	time      0                   5                   10                  15                  20                  25                  30                  35                  40
//	device 0  0F0 0F1 0F2 3F0 3F1 3F2 0F3 0F4 ........3B0---- 0F5 3B1---- 3F3 3B2---- 3F4 0B0---- 3F5 0B1---- ....0B2---- ....3B3---- ....3B4---- ....3B5---- 0B3---- 0B4---- 0B5----   busy  86%, 8 in flight
//	device 1  ....1F0 1F1 1F2 4F0 4F1 4F2 ....4B0---- 1F3 4B1---- 1F4 4B2---- 1F5 1B0---- 4F3 1B1---- 4F4 1B2---- 4F5 4B3---- ....4B4---- ....4B5---- 1B3---- 1B4---- 1B5---- ........  busy  86%, 6 in flight
//	device 2  ........2F0 2F1 2F2 5F0 5B0---- 5F1 5B1---- 5F2 5B2---- 2F3 2B0---- 2F4 2B1---- 2F5 2B2---- 5F3 5B3---- 5F4 5B4---- 5F5 5B5---- 2B3---- 2B4---- 2B5---- ................  busy  86%, 4 in flight
//	batch time 42, bubble 14.3%
func interleaved(r Request) (Plan, string) {
	order, first := interleavedOrder(r), firstRound(r)
	warmups := make([]int, r.Devices)
	for d := range warmups {
		warmups[d] = min(len(order), 2*(r.Devices-1-d)+(r.Chunks-1)*first+1)
	}
	plan := forwardsAhead(warmups, len(order))
	for d, ops := range plan {
		for i, op := range ops {
			o := order[op.Micro]
			if op.Kind == Backward {
				o.chunk = r.Chunks - 1 - o.chunk
			}
			ops[i].Stage, ops[i].Micro = o.chunk*r.Devices+d, o.micro
		}
	}
	reason := fmt.Sprintf("%d chunks a device, warm-up %s forwards of a chunk: filling the pipeline takes 1/%d of 1f1b's time",
		r.Chunks, joinInts(Warmup(plan)), r.Chunks)
	below := r.MicroBatches - r.MicroBatches%r.Devices
	switch {
	case below == 0:
		reason += tooFew(r, r.Devices, "")
	case below < r.MicroBatches:
		reason += fmt.Sprintf("; rounds of up to %d micro-batches, which keep more in flight than rounds of %d would: %d or %d micro-batches divide by the stages",
			first, r.Devices, below, below+r.Devices)
	}
	return plan, reason
}

// firstRound is the number of micro-batches in the first round.
func firstRound(r Request) int {
	rounds := max(1, r.MicroBatches/r.Devices)
	return (r.MicroBatches + rounds - 1) / rounds
}

// chunkWork is one micro-batch on one of a device's stages, counted from the input side.
type chunkWork struct{ chunk, micro int }

// interleavedOrder is the order in which a device's forwards go through its chunks. Its backwards go through them in the same
// way, with the last chunk for the first.
func interleavedOrder(r Request) []chunkWork {
	rounds := max(1, r.MicroBatches/r.Devices)
	order := make([]chunkWork, 0, r.Chunks*r.MicroBatches)
	start := 0
	for round := range rounds {
		end := start + r.MicroBatches/rounds
		if round < r.MicroBatches%rounds {
			end++
		}
		for chunk := range r.Chunks {
			for micro := start; micro < end; micro++ {
				order = append(order, chunkWork{chunk, micro})
			}
		}
		start = end
	}
	return order
}
