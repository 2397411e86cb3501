package schedule

// DeviceMemory is what a device holds, in bytes, for all pipelines together.
type DeviceMemory struct {
	Static   int64 // weights, gradients and optimizer state of each pipeline, and the center
	Peak     int64 // at the fullest moment of the simulation
	Reserved int64 // at the fullest moment that any timing has: the sum of each pipeline's peak
	Capacity int64 // 0: no limit

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

// What making, proving and simulating a plan takes, in bytes, garbage included: measured, rounded up.
const (
	opBytes      = 72  // of each op
	eventBytes   = 400 // more, if it is recorded
	processBytes = 600 // of each stage of each pipeline
	endBytes     = 8   // of each batch of each pipeline
)

// Bytes is about the most memory that it takes to make the named schedule's plan and to simulate it, as Try does; 0 for an unknown name.
func Bytes(name string, r Request, load Load) int64 {
	chunks, err := Chunks(name, r.Chunks)
	if err != nil { // Try takes the default
		chunks, _ = Chunks(name, 0)
	}
	load = load.withDefaults()
	stages, runs := float64(r.Devices)*float64(chunks), float64(load.Pipelines)*float64(load.Batches)
	ops := 3 * stages * float64(r.MicroBatches) // of a batch: a forward, two halves or a backward and an update
	made := ops
	if s, err := find(name); err == nil && s.steps == insideBatch {
		made *= float64(r.across())
	}
	bytes := opBytes*made + processBytes*stages*float64(load.Pipelines) + endBytes*runs
	if load.Record {
		bytes += eventBytes * ops * runs
	}
	return int64(min(bytes, 1<<62))
}

// memory counts what devices hold.
type memory struct {
	plan     Plan
	weights  []int64 // per stage: of one version
	versions [][]versionChange
	devices  []DeviceMemory
	now      []int64   // per device: beside Static
	since    []float64 // per device: when that last changed
	record   bool
}

func newMemory(e *engine, costs Costs) memory {
	m := memory{
		plan: e.plan, weights: make([]int64, len(e.placement)), devices: make([]DeviceMemory, len(e.plan)),
		now: make([]int64, len(e.plan)), since: make([]float64, len(e.plan)), record: e.load.Record,
	}
	pipelines := int64(e.load.Pipelines)
	for s, d := range e.placement {
		m.weights[s] = at(costs.WeightBytes, s)
		m.devices[d].Static += pipelines*(m.weights[s]+at(costs.GradientBytes, s)+at(costs.StateBytes, s)) + at(costs.CenterBytes, s)
	}
	if e.plan.Updates() > 0 && costs.WeightBytes != nil {
		for _, row := range e.plan {
			m.versions = append(m.versions, versionChanges(row))
		}
	}
	for d := range m.devices {
		device := &m.devices[d]
		peak := int64(0)
		if costs.ActivationBytes != nil || costs.HalfBytes != nil || m.versions != nil {
			peak = m.rowPeak(e, d)
		}
		device.Peak, device.Capacity, device.Reserved = device.Static, at(costs.CapacityBytes, d), device.Static+pipelines*peak
	}
	return m
}

// rowPeak is the most that one pipeline holds on device d at once, beside the static part.
func (m *memory) rowPeak(e *engine, d int) (peak int64) {
	now := int64(0)
	for i, op := range m.plan[d] {
		w := e.work(op.Stage, op.Kind)
		now += m.atBegin(d, i, w)
		peak = max(peak, now)
		now += m.atEnd(d, i, w)
		peak = max(peak, now)
	}
	return peak
}

// atBegin is what the op at a position of a device's row takes when it begins.
func (m *memory) atBegin(d, i int, w *work) int64 {
	if m.versions != nil && m.versions[d][i].copies {
		return w.begin + m.weights[m.plan[d][i].Stage]
	}
	return w.begin
}

// atEnd is what it takes, or gives back, when it ends.
func (m *memory) atEnd(d, i int, w *work) int64 {
	if m.versions == nil {
		return w.end
	}
	return w.end - int64(m.versions[d][i].frees)*m.weights[m.plan[d][i].Stage]
}

// change books what comes and goes at a time. What is held only within one instant is no peak.
func (m *memory) change(d int, bytes int64, time float64) {
	if bytes == 0 {
		return
	}
	if time > m.since[d] {
		m.account(d)
		m.since[d] = time
	}
	m.now[d] += bytes
}

// account counts what device d has held up to now, since its last change.
func (m *memory) account(d int) {
	device := &m.devices[d]
	bytes := device.Static + m.now[d]
	device.Peak = max(device.Peak, bytes)
	if m.record {
		device.Over = append(device.Over, MemoryPoint{m.since[d], bytes})
	}
}

func (m *memory) result() []DeviceMemory {
	for d := range m.devices {
		m.account(d)
	}
	return m.devices
}
