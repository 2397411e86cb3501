package schedule

import "slices"

// simDevice is a device: one op at a time or, if shared, several side by side.
type simDevice struct {
	waiting []int // processes whose op is ready, in no order
	running int
	busy    float64 // time in which something ran
	since   float64 // when the first of those that run began
	shared  *sharing
}

func newDevices(plan Plan, costs Costs, load Load) []simDevice {
	devices := make([]simDevice, len(plan))
	for d := range devices {
		// A pipeline runs one op at a time on a device, so one alone shares it with nobody.
		if costs.Utilisation != nil && load.Pipelines > 1 {
			devices[d].shared = &sharing{use: costs.Utilisation[d]}
		}
	}
	return devices
}

// choose starts what the devices can run, when no other event of the instant is left.
func (e *engine) choose(now float64) {
	for _, d := range e.touched {
		device := &e.devices[d]
		alone := device.shared == nil || device.shared.use == 1
		for !alone || device.running == 0 {
			l := e.takeFirst(device)
			if l < 0 {
				break
			}
			e.start(l, now)
		}
		if device.shared != nil && device.running > 0 {
			e.queue.push(device.shared.plan(d+len(e.processes), now))
		}
	}
	e.touched = e.touched[:0]
}

// takeFirst removes the process that has waited longest of those whose pipeline runs nothing here, of equals the first; -1 is none.
func (e *engine) takeFirst(d *simDevice) int {
	first := -1
	for i, l := range d.waiting {
		v := &e.processes[l]
		if e.row(v).runs {
			continue
		}
		if first >= 0 {
			best := d.waiting[first]
			if ready := e.processes[best].ready; v.ready > ready || v.ready == ready && l > best {
				continue
			}
		}
		first = i
	}
	if first < 0 {
		return -1
	}
	l := d.waiting[first]
	last := len(d.waiting) - 1
	d.waiting[first] = d.waiting[last]
	d.waiting = d.waiting[:last]
	return l
}

// sharing divides a device among the ops that run on it. Each wants the share use of it; when together they want more than
// all of it, each is slowed down alike.
type sharing struct {
	use     float64
	running []shared
	at      float64 // up to when left is counted
	version int32   // of the running set; an end that was planned for an older one is void
}

// shared is a running op.
type shared struct {
	process int
	left    float64 // time that it needs when not slowed down
}

func (s *sharing) rate() float64 { return min(1, 1/(s.use*float64(len(s.running)))) }

// pass lets the running ops work up to a time.
func (s *sharing) pass(now float64) {
	if now > s.at && len(s.running) > 0 {
		done := (now - s.at) * s.rate()
		for i := range s.running {
			s.running[i].left -= done
		}
	}
	s.at = now
}

func (s *sharing) join(process int, time, now float64) {
	s.pass(now)
	s.running = append(s.running, shared{process, time})
}

// least is the time that the op that ends next still needs.
func (s *sharing) least() float64 {
	least := s.running[0].left
	for _, op := range s.running {
		least = min(least, op.left)
	}
	return max(0, least)
}

// plan is when the next op ends if nothing joins before.
func (s *sharing) plan(index int, now float64) event {
	s.pass(now)
	s.version++
	return event{time: now + s.least()/s.rate(), index: int32(index), version: s.version}
}

// endShared ends what device d has completed.
func (e *engine) endShared(d int, planned event) {
	s := e.devices[d].shared
	if planned.version != s.version {
		return
	}
	// What rounding leaves of an op that ends with the first is not time that it takes.
	const rounding = 1e-12
	least := s.least()
	s.pass(planned.time)
	var ended []int
	kept := s.running[:0]
	for _, op := range s.running {
		if op.left <= rounding*(least+planned.time) {
			ended = append(ended, op.process)
		} else {
			kept = append(kept, op)
		}
	}
	s.running = kept
	slices.Sort(ended)
	e.touched = append(e.touched, d)
	for _, l := range ended {
		e.end(l, planned.time)
	}
}
