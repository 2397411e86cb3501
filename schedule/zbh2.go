package schedule

// zeroBubbleH2 runs twice as many forwards ahead as zb-h1 and leaves twice as many weight halves for the end (Qi et al. 2024, ZB-H2,
// section 2.2): no device waits between its first op and its last where forwards and both halves take the same time and M >= 2K-1. It
// has up to 2K-1 micro-batches in flight.
//
// Free links, halves as long as a forward:
//
//	time     0              5              10             15             20
//	stage 0  F0 F1 F2 F3 F4 I0 W0 F5 I1 W1 I2 W2 I3 W3 I4 W4 I5 W5 ......  busy  90%, 5 in flight
//	stage 1  ...F0 F1 F2 I0 F3 I1 F4 I2 W0 F5 I3 W1 I4 W2 I5 W3 W4 W5 ...  busy  90%, 5 in flight
//	stage 2  ......F0 I0 F1 I1 F2 I2 F3 I3 F4 I4 W0 F5 I5 W1 W2 W3 W4 W5   busy  90%, 5 in flight
//	batch time 20, bubble 10.0%
func zeroBubbleH2(r Request) (Plan, string) {
	reason := "forwards and weight halves fill all bubbles where halves and forwards take the same time, at almost twice the memory of zb-h1"
	return splitAhead(r, 2), reason + tooFew(r, 2*r.Devices-1, "zb-h1")
}
