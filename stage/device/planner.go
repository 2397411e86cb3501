package device

// Planner is implemented by devices whose operations take memory of the device beside their operands.
type Planner interface {
	// Workspace is how many bytes operations take, run one after the other.
	Workspace(ops []Op) int
	// Prepare makes that memory, so that Do of these operations allocates nothing.
	Prepare(ops []Op) error
}

// PlannerOf is the planner that a device is, or that it is a wrapper around.
func PlannerOf(d Device) (Planner, bool) {
	p, ok := innermost(d).(Planner)
	return p, ok
}
