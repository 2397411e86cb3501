package device

import (
	"fmt"
	"reflect"
)

// Table says what runs each kind of operation on a device of type D.
type Table[D any] map[reflect.Type]func(D, Op)

// Row is one kind of operation of a table.
type Row[D any] struct {
	kind reflect.Type
	run  func(D, Op)
}

// On is the row of a kind.
func On[D any, O Op](run func(D, O)) Row[D] {
	return Row[D]{reflect.TypeFor[O](), func(d D, op Op) { run(d, op.(O)) }} //nolint:errcheck,forcetypeassert // kind says so
}

// NewTable makes a table of its rows.
func NewTable[D any](rows ...Row[D]) Table[D] {
	t := make(Table[D], len(rows))
	for _, r := range rows {
		t[r.kind] = r.run
	}
	return t
}

// Has reports whether the table has the kind of op.
func (t Table[D]) Has(op Op) bool { return t[reflect.TypeOf(op)] != nil }

// Do is Device.Do of devices whose memory is the host's: it checks op and runs it.
func (t Table[D]) Do(d D, op Op) {
	Check(op)
	CheckIDs(op)
	run := t[reflect.TypeOf(op)]
	if run == nil {
		panic(fmt.Sprintf("device: no operation %T", op))
	}
	run(d, op)
}
