package device

import (
	"fmt"
	"math"
	"reflect"
	"strings"
	"unsafe"
)

// Check panics unless the operands of op fit: shapes that disagree are a broken invariant of the caller. It looks at no element.
func Check(op Op) { op.check(checks{op}) }

// NameOf is the name of an operation: "MatMul".
func NameOf(op Op) string { return reflect.TypeOf(op).Elem().Name() }

// Describe is the name of an operation, its operands that are not absent, and its numbers that are not 0: "Axpy: Y 12 f32, A=2, X 12 f32".
func Describe(op Op) string {
	return NameOf(op) + ": " + strings.Join(describe(nil, reflect.ValueOf(op).Elem()), ", ")
}

func describe(words []string, v reflect.Value) []string {
	for f, x := range v.Fields() {
		if all, ok := reflect.TypeAssert[[]Mem](x); ok {
			words = append(words, fmt.Sprintf("%d %s", len(all), f.Name))
		} else if m, ok := reflect.TypeAssert[Mem](x); ok {
			if !m.Absent() {
				words = append(words, fmt.Sprintf("%s %d %v", f.Name, m.n, m.typ))
			}
		} else if x.Kind() == reflect.Struct {
			words = describe(words, x)
		} else if !x.IsZero() {
			words = append(words, fmt.Sprintf("%s=%v", f.Name, x))
		}
	}
	return words
}

// checks checks the fields of an operation, which are given by their addresses, so that messages can name them.
type checks struct{ op Op }

func (c checks) fail(format string, a ...any) {
	panic(fmt.Sprintf("device: %s: %s", NameOf(c.op), fmt.Sprintf(format, a...)))
}

// name is what the operation calls an operand, in lower case.
func (c checks) name(operand *Mem) string { return strings.ToLower(c.field(unsafe.Pointer(operand))) }

func (c checks) field(at unsafe.Pointer) string {
	v := reflect.ValueOf(c.op)
	return fieldAt(v.Type().Elem(), uintptr(at)-v.Pointer())
}

// fieldAt is the name of the field of a struct, or of a struct within, that begins at an offset.
func fieldAt(t reflect.Type, offset uintptr) string {
	for f := range t.Fields() {
		switch inner := offset - f.Offset; {
		case inner >= f.Type.Size():
		case f.Type.Kind() == reflect.Struct && f.Type != reflect.TypeFor[Mem]():
			return fieldAt(f.Type, inner)
		default:
			return f.Name
		}
	}
	return "an operand"
}

// need panics unless each operand holds exactly n elements of type t.
func (c checks) need(t Type, n int, operands ...*Mem) { c.hold(t, n, n, "", operands) }

// atLeast is need for operands that may be longer than what the operation touches.
func (c checks) atLeast(t Type, n int, operands ...*Mem) {
	c.hold(t, n, math.MaxInt, "at least ", operands)
}

func (c checks) hold(t Type, least, most int, bound string, operands []*Mem) {
	for _, m := range operands {
		if m.base == nil {
			c.fail("%s is absent, expected %s%d %v", c.name(m), bound, least, t)
		}
		if m.n < least || m.n > most || m.typ != t {
			c.fail("%s has %d %v, expected %s%d %v", c.name(m), m.n, m.typ, bound, least, t)
		}
	}
}

// optional is need for operands that may be absent.
func (c checks) optional(t Type, n int, operands ...*Mem) {
	for _, m := range operands {
		if !m.Absent() {
			c.need(t, n, m)
		}
	}
}

// floating is need for operands each of which may be F32 or BF16.
func (c checks) floating(n int, operands ...*Mem) {
	for _, m := range operands {
		c.need(c.floatingType(m), n, m)
	}
}

// same is need for operands that are all of the type, F32 or BF16, and of the length of the first.
func (c checks) same(operands ...*Mem) {
	c.need(c.floatingType(operands[0]), operands[0].n, operands...)
}

// floatingType is the type of an operand that may be F32 or BF16.
func (c checks) floatingType(m *Mem) Type {
	if m.typ != F32 && m.typ != BF16 {
		c.fail("%s is %v, expected f32 or bf16", c.name(m), m.typ)
	}
	return m.typ
}

func (c checks) positive(numbers ...*int) {
	for _, n := range numbers {
		if *n < 1 {
			c.fail("%s is %d, expected at least 1", c.field(unsafe.Pointer(n)), *n)
		}
	}
}

// CheckIDs panics where an id or a target of op lies outside of its table: it would read or write beyond it. Devices whose memory is the
// host's call it before they run an operation.
func CheckIDs(op Op) {
	c := checks{op}
	switch o := op.(type) {
	case *Embed:
		c.ids(&o.IDs, 0, o.Tokens.n/o.Width())
	case *EmbedBackward:
		c.ids(&o.IDs, 0, o.DTokens.n/o.Width())
	case *CrossEntropy:
		_, vocabulary := o.Size()
		c.ids(&o.Targets, -1, vocabulary)
	case *Dropout:
		if !o.IDs.Absent() {
			c.ids(&o.IDs, 0, math.MaxInt32)
		}
	}
}

func (c checks) ids(operand *Mem, low, count int) {
	for i, id := range operand.I32() {
		if int(id) < low || int(id) >= count {
			c.fail("%s[%d] is %d, expected %d to %d", c.name(operand), i, id, low, count-1)
		}
	}
}
