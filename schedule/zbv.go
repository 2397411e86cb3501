package schedule

// zeroBubbleV gives each device two stages, laid out in a V: device d has the d-th from the input side and the d-th from the output
// side, so the last of a micro-batch's forwards and the first of its backwards run on device 0 (Qi et al. 2024, in
// the arXiv version, ZB-V; Qi et al. 2024b derive it again).
// The last stage down and the first stage up share a device, so no message crosses there. No device waits between its first op and its last where forwards and both halves
// take the same time and M >= 2K-1. Each has at most 2K micro-batches of its half-sized stages in flight: as much as 1f1b.
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
//	time      0                   5                   10                  15                  20                  25                  30                  35
//	device 0  0F0 0F1 0F2 0F3 0F4 5F0 5I0 5W0 5F1 5I1 5W1 5F2 5I2 5W2 0F5 0I0 0W0 5F3 5I3 5W3 0I1 0W1 5F4 5I4 5W4 0I2 0W2 5F5 5I5 5W5 0I3 0W3 0I4 0W4 0I5 0W5 ........  busy  95%, 6 in flight
//	device 1  ....1F0 1F1 1F2 4F0 1F3 4F1 4I0 4W0 4F2 4I1 4W1 1F4 1I0 1W0 4F3 4I2 4W2 1F5 1I1 1W1 4F4 4I3 4W3 1I2 1W2 4F5 4I4 4W4 1I3 4I5 1I4 1W3 1I5 1W4 4W5 1W5 ....  busy  95%, 6 in flight
//	device 2  ........2F0 3F0 2F1 3F1 2F2 3F2 3I0 3W0 2F3 2I0 2W0 3F3 3I1 3W1 2F4 2I1 2W1 3F4 3I2 3W2 2F5 2I2 2W2 3F5 3I3 3W3 2I3 3I4 2I4 3I5 2I5 2W3 3W4 3W5 2W4 2W5   busy  95%, 6 in flight
//	batch time 38, bubble 5.3%
func zeroBubbleV(r Request) (Plan, string) {
	plan := make(Plan, r.Devices)
	for d := range plan {
		v := vOrder{request: r, device: d, virtual: max(r.MicroBatches, 2*r.Devices-1), ops: make([]Op, 0, 6*r.MicroBatches)}
		v.fill()
		v.steady()
		v.drain()
		plan[d] = v.ops
	}
	reason := "two stages a device in a V, weight halves in the bubbles: the memory of 1f1b, and no bubble where halves and forwards take the same time"
	return plan, reason + tooFew(r, 2*r.Devices-1, "")
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
		stage = 2*v.request.Devices - 1 - v.device
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
	below := v.request.Devices - v.device
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
	for range v.request.Devices - v.device {
		v.add(0, BackwardInput, BackwardWeight)
	}
	for _, chunk := range []int{1, 0} {
		for v.count[chunk][BackwardWeight] < v.virtual {
			v.add(chunk, BackwardWeight)
		}
	}
}
