package schedule

// DeviceMemory is what a device holds, in bytes, for all pipelines together.
type DeviceMemory struct {
	Static   int64 // weights, gradients and optimizer state of each pipeline, and the center
	Peak     int64 // at the fullest moment of the simulation
	Reserved int64 // at the fullest moment that any timing has: what a device sets aside that has each pipeline's peak in store
	Capacity int64 // 0: no limit

	// What beside Static is held at the peak: by micro-batches between forward and backward, by those between the two halves
	// of their backward, and as older versions of weights.
	Activations, Halves, Versions int64

	Over []MemoryPoint // every change, if recorded
}

// MemoryPoint says that a device holds so much from a time on.
type MemoryPoint struct {
	Time  float64
	Bytes int64
}

// Short is by how many bytes the most that a device may need exceeds what it has, 0 if it fits.
func (m DeviceMemory) Short() int64 {
	if m.Capacity == 0 {
		return 0
	}
	return max(0, m.Reserved-m.Capacity)
}

// held is what is held beside the static part.
type held struct{ activations, halves, versions int64 }

func (h held) sum() int64 { return h.activations + h.halves + h.versions }

func (h held) plus(o held) held {
	return held{h.activations + o.activations, h.halves + o.halves, h.versions + o.versions}
}

// memory counts what devices hold. It is empty where costs name no bytes that change.
type memory struct {
	plan        Plan
	activations []int64 // per stage: held by a micro-batch
	halves      []int64 // per stage: held by one whose input half is done
	weights     []int64 // per stage: of one version
	versions    [][]versionChange
	devices     []DeviceMemory
	now         []held    // per device
	since       []float64 // per device: when that last changed
	moves       bool      // something is held that comes and goes
	record      bool
}

// versionChange is what an op does to the versions of its stage's weights.
type versionChange struct {
	copies bool // an update that must leave the version before it in place
	frees  int8 // versions that nothing needs after the op
}

func newMemory(plan Plan, placement []int, costs Costs, load Load) memory {
	m := memory{
		plan: plan, activations: make([]int64, len(placement)), halves: make([]int64, len(placement)), weights: make([]int64, len(placement)),
		devices: make([]DeviceMemory, len(plan)), now: make([]held, len(plan)), since: make([]float64, len(plan)), record: load.Record,
	}
	for s, d := range placement {
		m.activations[s], m.weights[s] = at(costs.ActivationBytes, s), at(costs.WeightBytes, s)
		m.halves[s] = m.activations[s]
		if costs.HalfBytes != nil {
			m.halves[s] = costs.HalfBytes[s]
		}
		m.moves = m.moves || m.activations[s] > 0 || m.halves[s] > 0 || m.weights[s] > 0
		each := m.weights[s] + at(costs.GradientBytes, s) + at(costs.StateBytes, s)
		m.devices[d].Static += int64(load.Pipelines)*each + at(costs.CenterBytes, s)
	}
	if plan.Updates() > 0 {
		m.versions = make([][]versionChange, len(plan))
		for d, row := range plan {
			m.versions[d] = versionChanges(row)
		}
	}
	for d := range m.devices {
		m.devices[d].Peak, m.devices[d].Capacity = m.devices[d].Static, at(costs.CapacityBytes, d)
		m.devices[d].Reserved = m.devices[d].Static + int64(load.Pipelines)*m.rowPeak(d)
	}
	return m
}

// rowPeak is the most that one pipeline holds on device d at once.
func (m *memory) rowPeak(d int) int64 {
	if !m.moves {
		return 0
	}
	var now held
	peak := int64(0)
	for i := range m.plan[d] {
		now = now.plus(m.atStart(d, i))
		peak = max(peak, now.sum())
		now = now.plus(m.atEnd(d, i))
		peak = max(peak, now.sum())
	}
	return peak
}

// versionChanges finds, for a device's row, where versions of weights appear and when nothing needs them any more: neither a
// forward that reads them, nor the backward of the same micro-batch, nor the update that makes the next version.
func versionChanges(row []Op) []versionChange {
	type key struct{ stage, number int }
	reads := make(map[key]int) // of (stage, micro-batch): the version
	last := make(map[key]int)  // of (stage, version): position of the last op that needs it
	for i, op := range row {
		switch op.Kind {
		case Forward:
			reads[key{op.Stage, op.Micro}] = op.Version
			last[key{op.Stage, op.Version}] = i
		case Backward, BackwardInput, BackwardWeight:
			last[key{op.Stage, reads[key{op.Stage, op.Micro}]}] = i
		case Update:
		}
	}
	changes := make([]versionChange, len(row))
	updates := make(map[int]int) // of a stage, so far
	for i, op := range row {
		if op.Kind != Update {
			continue
		}
		if until, used := last[key{op.Stage, updates[op.Stage]}]; used && until > i {
			changes[i].copies = true
			changes[until].frees++
		}
		updates[op.Stage]++
	}
	return changes
}

// atStart is what the op at a position of a device's row takes when it begins.
func (m *memory) atStart(d, i int) (change held) {
	op := &m.plan[d][i]
	switch op.Kind {
	case Forward:
		change.activations = m.activations[op.Stage]
	case Update:
		if m.versions[d][i].copies {
			change.versions = m.weights[op.Stage]
		}
	case Backward, BackwardInput, BackwardWeight:
	}
	return change
}

// atEnd is what it takes, or gives back, when it ends.
func (m *memory) atEnd(d, i int) (change held) {
	op := &m.plan[d][i]
	switch op.Kind {
	case Backward:
		change.activations = -m.activations[op.Stage]
	case BackwardInput:
		change.activations, change.halves = -m.activations[op.Stage], m.halves[op.Stage]
	case BackwardWeight:
		change.halves = -m.halves[op.Stage]
	case Forward, Update:
	}
	if m.versions != nil {
		change.versions -= int64(m.versions[d][i].frees) * m.weights[op.Stage]
	}
	return change
}

func (m *memory) begin(d, i int, time float64) {
	if m.moves && i < len(m.plan[d]) {
		m.change(d, m.atStart(d, i), time)
	}
}

func (m *memory) end(d, i int, time float64) {
	if m.moves && i < len(m.plan[d]) {
		m.change(d, m.atEnd(d, i), time)
	}
}

// change books what comes and goes at a time. What is held only within one instant is no peak.
func (m *memory) change(d int, change held, time float64) {
	if change == (held{}) {
		return
	}
	if time > m.since[d] {
		m.account(d)
		m.since[d] = time
	}
	m.now[d] = m.now[d].plus(change)
}

// settle counts what device d has held up to now, since its last change.
func (m *memory) account(d int) {
	now, device := m.now[d], &m.devices[d]
	bytes := device.Static + now.sum()
	if bytes > device.Peak {
		device.Peak = bytes
		device.Activations, device.Halves, device.Versions = now.activations, now.halves, now.versions
	}
	if m.record && m.moves {
		device.Over = append(device.Over, MemoryPoint{m.since[d], bytes})
	}
}

func (m *memory) result() []DeviceMemory {
	for d := range m.devices {
		m.account(d)
	}
	return m.devices
}
