package schedule

// zeroBubbleV gives each device two stages, laid out in a V: device d has the d-th from the input side and the d-th from the output
// side, so the last of a micro-batch's forwards and the first of its backwards run on device 0 (Qi et al. 2024b, ZB-V, section 5).
// The turn at the end of the V costs no message. No device waits between its first op and its last where forwards and both halves
// take the same time and M >= 2K-1. Each pins at most 2K micro-batches of its half-sized stages: as much as 1f1b.
//
// Written for the stages 0 (down) and 1 (up) of device d, until all forwards are done:
//
//	2(K-d)-1 times F0;  d times F1 F0;  K-d times F1 I1 W1;  then F0 I0 W0 F1 I1 W1
//	d times I0 I1;  K-d times I0 W0;  the last weight halves
//
// The fill takes 2K-1 micro-batches; of fewer, the others are left out.
//
// Free links, halves as long as a forward:
//
//	time     0              5              10             15             20             25             30             35
//	stage 0  F0 F1 F2 F3 F4 F0 I0 W0 F1 I1 W1 F2 I2 W2 F5 I0 W0 F3 I3 W3 I1 W1 F4 I4 W4 I2 W2 F5 I5 W5 I3 W3 I4 W4 I5 W5 ......  busy  95%, pins 6
//	stage 1  ...F0 F1 F2 F0 F3 F1 I0 W0 F2 I1 W1 F4 I0 W0 F3 I2 W2 F5 I1 W1 F4 I3 W3 I2 W2 F5 I4 W4 I3 I5 I4 W3 I5 W4 W5 W5 ...  busy  95%, pins 6
//	stage 2  ......F0 F0 F1 F1 F2 F2 I0 W0 F3 I0 W0 F3 I1 W1 F4 I1 W1 F4 I2 W2 F5 I2 W2 F5 I3 W3 I3 I4 I4 I5 I5 W3 W4 W5 W4 W5   busy  95%, pins 6
//	batch time 38, bubble 5.3%
func zeroBubbleV(r Request) (Plan, string) {
	plan := make(Plan, r.Stages)
	for d := range plan {
		v := vOrder{request: r, device: d, virtual: max(r.MicroBatches, 2*r.Stages-1)}
		v.fill()
		v.steady()
		v.drain()
		plan[d] = v.ops
	}
	reason := "two stages a device in a V, weight halves in the bubbles: the memory of 1f1b, and no bubble where halves and forwards take the same time"
	return plan, reason + tooFew(r, 2*r.Stages-1, "")
}

// vOrder writes the list of one device.
type vOrder struct {
	request Request
	device  int
	virtual int // micro-batches, of which those that the batch does not have are left out
	count   [2][len(kindLetters)]int
	ops     []Op
}

// add appends the next micro-batch of each kind of a chunk.
func (v *vOrder) add(chunk int, kinds ...Kind) {
	stage := v.device
	if chunk == 1 {
		stage = 2*v.request.Stages - 1 - v.device
	}
	for _, kind := range kinds {
		micro := v.count[chunk][kind]
		v.count[chunk][kind]++
		if micro < v.request.MicroBatches {
			v.ops = append(v.ops, Op{Kind: kind, Stage: stage, Micro: micro})
		}
	}
}

func (v *vOrder) fill() {
	below := v.request.Stages - v.device
	for range 2*below - 1 {
		v.add(0, Forward)
	}
	for range v.device {
		v.add(1, Forward)
		v.add(0, Forward)
	}
	for range below {
		v.add(1, Forward, BackwardInput, BackwardWeight)
	}
}

func (v *vOrder) steady() {
	for v.count[1][Forward] < v.virtual {
		if v.count[0][Forward] < v.virtual {
			v.add(0, Forward)
		}
		v.add(0, BackwardInput, BackwardWeight)
		v.add(1, Forward, BackwardInput, BackwardWeight)
	}
}

func (v *vOrder) drain() {
	for range v.device {
		v.add(0, BackwardInput)
		v.add(1, BackwardInput)
	}
	for range v.request.Stages - v.device {
		v.add(0, BackwardInput, BackwardWeight)
	}
	for _, chunk := range []int{1, 0} {
		for v.count[chunk][BackwardWeight] < v.virtual {
			v.add(chunk, BackwardWeight)
		}
	}
}
