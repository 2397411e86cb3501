package device

// Work says what the operations up to the next Record or Synchronize are for.
type Work struct {
	Kind WorkKind
	// Stage is the stage that works, 0-based.
	Stage int
	// Again says that a backward first recomputes its forward.
	Again bool
}

// WorkKind is a pass of a stage.
type WorkKind uint8

// The kinds of work.
const (
	ForwardWork WorkKind = iota
	BackwardWork
	BackwardInputWork  // the first half of a split backward
	BackwardWeightWork // the second
	UpdateWork         // the optimizer's step
)

// Emulator is implemented by devices that spend time instead of computing. A stage tells them which pass comes next, so that
// they can spend the configured time of that pass. It leaves out the initial weights, since no values are kept.
type Emulator interface {
	// Begin is called before the first operation of a pass, which ends with Record or Synchronize. Work between passes (averaging,
	// norms) is not announced.
	Begin(w Work)
}

// EmulatorOf is the emulator that a device is, or that it is a wrapper around.
func EmulatorOf(d Device) (Emulator, bool) {
	e, ok := innermost(d).(Emulator)
	return e, ok
}

// innermost is a device without the wrappers around it.
func innermost(d Device) Device {
	for {
		w, ok := d.(interface{ Unwrap() Device })
		if !ok {
			return d
		}
		d = w.Unwrap()
	}
}
