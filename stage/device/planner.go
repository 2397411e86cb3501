package device

// Planner is implemented by devices whose operations take memory of the device beside their operands.
type Planner interface {
	// Workspace is how many bytes operations take, run one after the other.
	Workspace(ops []Op) int
	// Prepare makes that memory, so that Do of these operations allocates nothing.
	Prepare(ops []Op) error
}

// PlannersOf are the planners that a device is, or that it is a wrapper around: one for each of its queues. None: operations take nothing of it.
func PlannersOf(d Device) (found []Planner) {
	all := []Device{d}
	if q := QueuesOf(d); q != nil {
		all = nil
		for _, one := range q.all {
			all = append(all, one)
		}
	}
	for _, one := range all {
		if p, ok := innermost(one).(Planner); ok {
			found = append(found, p)
		}
	}
	return found
}
