package device

// Pass is a list of operations that runs again and again. From run to run its operands may move, and numbers change that Args gives.
type Pass struct {
	Ops []Op
	// Changing are those of Ops, in their order, whose numbers may change.
	Changing []Op
	// Places are the memory that the operands lie in. Each operand lies where it did in any run with the same.
	Places []Mem
	Fresh  bool // Args.Fresh, which changes what Ops do
}

// Replayer is implemented by devices that run a pass which they have seen at less cost than its operations one by one.
type Replayer interface {
	// Replay runs the operations of a pass as Do does one after the other. It keeps p, and never looks at Ops and Places later.
	Replay(p *Pass)
}

// ReplayerOf is the replayer that a device is, or that it is a wrapper around.
func ReplayerOf(d Device) (Replayer, bool) {
	r, ok := innermost(d).(Replayer)
	return r, ok
}
