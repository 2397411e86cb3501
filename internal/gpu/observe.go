package gpu

import (
	"slices"
	"time"
)

// take makes a sample what is known. It reports whether the driver answered.
func (m *Monitor) take(s sampled) bool {
	for _, f := range s.failures {
		m.say(f)
	}
	if s.err != nil {
		m.say(Failure{"sample the processors", s.err})
		return false
	}
	for _, w := range m.watched {
		i := slices.IndexFunc(s.found, func(one Sample) bool { return one.UUID == w.status.UUID })
		if i < 0 {
			w.status.Readings = Readings{Lost: Unlisted}
			continue
		}
		w.status.Readings = s.found[i].Readings
		w.recovered(w.status.Readings)
		if s.found[i].Peers != nil { // they do not change, and a source may tell them once
			w.status.Peers = m.chosen(s.found[i].Peers)
		}
	}
	m.assess()
	return true
}

// chosen are the peers among the processors that are watched.
func (m *Monitor) chosen(all []Peer) []Peer {
	return slices.DeleteFunc(slices.Clone(all), func(p Peer) bool {
		return !slices.ContainsFunc(m.watched, func(w *watched) bool { return w.status.UUID == p.UUID })
	})
}

// note takes an error of a processor down. It is one of all the instances.
func (m *Monitor) note(x XID) {
	x.At = time.Now()
	for _, w := range m.watched {
		if x.GPU == w.status.UUID || x.GPU == w.status.Parent && x.GPU != "" {
			w.note(x)
			m.config.Events.XID(w.status.GPU, w.seen[x.Code])
		}
	}
	m.assess()
}

// silent takes note that the driver does not answer.
func (m *Monitor) silent() {
	m.assess(Reason{"driver_silent", Degraded, "the driver does not answer; what it said last is old"})
}

// assess judges each processor anew, tells what has changed and publishes it. The reasons are those beside its own.
func (m *Monitor) assess(reasons ...Reason) {
	for _, w := range m.watched {
		before := w.status.Health
		own := w.assess(time.Now(), w.status.Readings)
		w.status.Health, w.status.XIDs = healthOf(append(own.Reasons, reasons...)), w.xids()
		if !sameReasons(before, w.status.Health) {
			m.config.Events.Health(w.status.GPU, before)
		}
	}
	m.publish()
	m.keep()
}

// sameReasons reports whether two healths have the same causes. Their texts may differ: they hold numbers and times.
func sameReasons(a, b Health) bool {
	return slices.EqualFunc(a.Reasons, b.Reasons, func(x, y Reason) bool { return x.Code == y.Code })
}

func (m *Monitor) publish() {
	all := make([]GPUStatus, len(m.watched))
	for i, w := range m.watched {
		all[i] = w.status
		if all[i].Peers == nil {
			all[i].Peers = []Peer{}
		}
	}
	m.published.Store(&all)
}

// say tells of a failure that was not told before.
func (m *Monitor) say(f Failure) {
	key := f.Call + ": " + f.Err.Error()
	if !m.said[key] {
		m.said[key] = true
		m.config.Events.Failure(f)
	}
}
