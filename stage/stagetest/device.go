package stagetest

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"unsafe"

	"github.com/avgpipe/avgpipe/stage/device"
	"github.com/avgpipe/avgpipe/stage/device/ref"
	"github.com/avgpipe/avgpipe/stage/flat"
	"github.com/avgpipe/avgpipe/stage/flat/flattest"
)

// Device tests the device that open returns against its contract and, operation by operation, against package ref. A new
// device runs all of it with
//
//	stagetest.Device(t, func() device.Device { return mine.New() })
//
// Every operation runs on many shapes, on operands at aligned and odd offsets, between guard elements that must survive.
// The log prints the tolerance and the largest difference found for each. Names of cases run those alone: a second form of a device tests
// what it computes in another way.
func Device(t *testing.T, open func() device.Device, only ...string) {
	for _, test := range contract {
		if len(only) > 0 && !slices.Contains(only, test.name) {
			continue
		}
		t.Run(test.name, func(t *testing.T) {
			dev := open()
			t.Cleanup(func() {
				for range 2 {
					if err := dev.Close(); err != nil {
						t.Errorf("close: %v", err)
					}
				}
			})
			dev = &asked{dev, t}
			c := &comparison{T: t, dev: dev, oracle: ref.New(), rng: rand.New(rand.NewPCG(11, 12)), worst: map[string]*difference{}}
			test.run(c)
			c.report()
			if err := dev.Synchronize(); err != nil {
				t.Errorf("synchronize: %v", err)
			}
		})
	}
	if len(only) > 0 {
		return
	}
	t.Run("flat vectors", func(t *testing.T) {
		dev := open()
		t.Cleanup(func() { _ = dev.Close() })
		flattest.Run(t, func(n int) flat.Vector {
			mem, err := dev.Alloc(device.F32, n)
			if err != nil {
				t.Fatal(err)
			}
			return device.NewVector(dev, mem)
		})
		mem, err := dev.Alloc(device.F32, 8)
		if err != nil {
			t.Fatal(err)
		}
		v := device.NewVector(dev, mem)
		v.Slice(4, 8).Scale(2)
		if got := device.Writes(v); got != 1 {
			t.Errorf("a vector one of whose slices was written once counts %d writes", got)
		}
	})
}

// contract is what every device is held to.
var contract = []struct {
	name string
	run  func(c *comparison)
}{
	{"memory", memory},
	{"events", events},
	{"broken invariants panic", invariants},
	{"element-wise", elementwise},
	{"products", products},
	{"sums of a million rows", longSums},
	{"layer norm", layerNorm},
	{"variances of nearly equal elements", tinySpread},
	{"GELU", gelu},
	{"products of BF16", typedProducts},
	{"BF16 elements", conversions},
	{"rows of BF16", typedRows},
	{"attention of BF16", typedAttention},
	{"embedding", embedding},
	{"attention", attention},
	{"attention is causal", causality},
	{"attention in a window is local", locality},
	{"dropout", dropout},
	{"root-mean-square norm", rmsNorm},
	{"rotary positions", rotation},
	{"gates and exact GELU", gates},
	{"rows of a table", addRows},
	{"transformers' broken invariants panic, and nothing allocates", transformerRules},
	{"cross-entropy", crossEntropy},
	{"cross-entropy shows what is not finite", poison},
	{"optimizers", optimizers},
	{"optimizers flush tiny state", flushes},
	{"LSTM", lstm},
	{"additive attention", additive},
	{"additive attention without keys", inattention},
	{"weight norm", weightNorm},
	{"columns", columns},
	{"dropped rows", droppedRows},
	{"smoothed cross-entropy", smoothed},
	{"averaged SGD", averaged},
	{"broken invariants of recurrent operations panic", recurrentInvariants},
	{"nothing recurrent allocates", recurrentAllocations},
	{"convolutions", convolution},
	{"a convolution sees its window", convolutionSees},
	{"pooling", pooling},
	{"group norm", groupNorm},
	{"group norm fuses", groupNormFuses},
	{"ReLU and transposition", rectifier},
	{"what is not finite stays in images", visionPoison},
	{"broken invariants of vision panic", visionInvariants},
	{"nothing for images allocates", visionAllocations},
	{"elements do not depend on their place", places},
	{"nothing allocates", allocations},
}

// asked is a device that has what it is told to do, or says so.
type asked struct {
	device.Device
	t *testing.T
}

// Do implements device.Device.
func (a *asked) Do(op device.Op) {
	if !a.Has(op) {
		a.t.Errorf("the device says that it lacks the operation %T; it is told to run it", op)
	}
	a.Device.Do(op)
}

// Emulator tests a device that spends time instead of computing against the part of the contract that is not about values: operands
// that do not fit panic, and no operation allocates.
func Emulator(t *testing.T, open func() device.Device) {
	for _, test := range []struct {
		name string
		run  func(c *comparison)
	}{
		{"broken invariants panic", invariants},
		{"nothing allocates", allocations},
		{"transformers' broken invariants panic, and nothing allocates", transformerRules},
		{"broken invariants of recurrent operations panic", recurrentInvariants},
		{"nothing recurrent allocates", recurrentAllocations},
		{"broken invariants of vision panic", visionInvariants},
		{"nothing for images allocates", visionAllocations},
	} {
		t.Run(test.name, func(t *testing.T) {
			dev := open()
			test.run(&comparison{T: t, dev: dev})
			if err := errors.Join(dev.Synchronize(), dev.Close()); err != nil {
				t.Error(err)
			}
		})
	}
}

// comparison runs operations on a device and on the oracle.
type comparison struct {
	*testing.T
	dev    device.Device
	oracle device.Device
	rng    *rand.Rand
	order  []string // of first use, for the report
	worst  map[string]*difference
	calls  int
}

// difference is the largest one seen for one operation.
type difference struct {
	tolerance, largest float64
	where              string
}

func (c *comparison) report() {
	for _, op := range c.order {
		d := c.worst[op]
		c.Logf("%-28s tolerance %-8.2g largest difference %-8.2g %s", op, d.tolerance, d.largest, d.where)
	}
}

// tensor is the host's content of one operand.
type tensor struct {
	name   string
	floats []float32
	ints   []int32
	result bool // written by the operation and compared; anything else must stay as it was
	bf16   bool // floats, which are then rounded to it, lie on the device as BF16
}

// brain is x with BF16 elements.
func (x tensor) brain() tensor {
	rounded := make([]float32, len(x.floats))
	for i, v := range x.floats {
		rounded[i] = flat.WidenBF16(flat.RoundBF16(v))
	}
	x.floats, x.bf16 = rounded, true
	return x
}

// bf16Bytes rounds to BF16, in native order.
func bf16Bytes(s []float32) []byte {
	out := make([]uint16, len(s))
	for i, v := range s {
		out[i] = flat.RoundBF16(v)
	}
	return unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(out))), 2*len(out))
}

// guard is how many elements lie untouched on either side of an operand. Operands start at a multiple of the widest
// vector or just beyond one, in turn.
const guard = 16

// place uploads x between guards on dev, shifted by shift elements. An operand without content is absent.
func (c *comparison) place(dev device.Device, x tensor, shift int) (whole, mem device.Mem) {
	c.Helper()
	n, typ, bytes := len(x.floats), device.F32, device.FloatBytes(x.floats)
	switch {
	case x.ints != nil:
		n, typ, bytes = len(x.ints), device.I32, device.IntBytes(x.ints)
	case x.bf16:
		typ, bytes = device.BF16, bf16Bytes(x.floats)
	}
	if n == 0 {
		return device.Mem{}, device.Mem{}
	}
	whole = c.alloc(dev, typ, n+2*guard+shift)
	guards := make([]byte, whole.Bytes())
	for i := range guards {
		guards[i] = guardBytes[i%len(guardBytes)]
	}
	dev.Upload(whole, guards)
	mem = whole.Slice(guard+shift, n)
	dev.Upload(mem, bytes)
	return whole, mem
}

// guardBytes repeat as 0x7fc57fc5: a NaN, as float32 and as BF16, so that reading a guard shows too.
var guardBytes = [2]byte{0xc5, 0x7f}

const guardBits, guardBF16 = 0x7fc57fc5, 0x7fc50000

// bits downloads the elements of m, as they are or, of BF16, widened.
func (c *comparison) bits(dev device.Device, m device.Mem) []int32 {
	if m.Type() != device.BF16 {
		bits := make([]int32, m.Len())
		c.read(dev, device.IntBytes(bits), m)
		return bits
	}
	raw, bits := make([]byte, m.Bytes()), make([]int32, m.Len())
	c.read(dev, raw, m)
	for i := range bits {
		bits[i] = int32(uint32(binary.NativeEndian.Uint16(raw[2*i:])) << 16)
	}
	return bits
}

func (c *comparison) read(dev device.Device, dst []byte, src device.Mem) {
	c.Helper()
	if err := device.Read(dev, dst, src); err != nil {
		c.Fatalf("read %d elements: %v", src.Len(), err)
	}
}

func (c *comparison) alloc(dev device.Device, typ device.Type, n int) device.Mem {
	c.Helper()
	mem, err := dev.Alloc(typ, n)
	if err != nil {
		c.Fatal(err)
	}
	return mem
}

// run executes call on dev with fresh operands and returns their bits afterwards, guards checked and taken off.
func (c *comparison) run(dev device.Device, shift int, where string, operands []tensor, call func(device.Device, []device.Mem)) [][]int32 {
	c.Helper()
	wholes, mems := make([]device.Mem, len(operands)), make([]device.Mem, len(operands))
	for i, x := range operands {
		wholes[i], mems[i] = c.place(dev, x, shift)
	}
	call(dev, mems)
	if err := dev.Synchronize(); err != nil {
		c.Fatalf("%s: synchronize: %v", where, err)
	}
	results := make([][]int32, len(operands))
	for i, whole := range wholes {
		if whole.Absent() {
			continue
		}
		bits, n, unwritten := c.bits(dev, whole), mems[i].Len(), int32(guardBits)
		if whole.Type() == device.BF16 {
			unwritten = guardBF16
		}
		dev.Free(whole)
		for at, b := range bits {
			if (at < guard+shift || at >= guard+shift+n) && b != unwritten {
				c.Fatalf("%s: wrote %d elements outside of operand %s", where, at-guard-shift, operands[i].name)
			}
		}
		results[i] = bits[guard+shift : guard+shift+n]
	}
	return results
}

// compare runs call on the device twice and on the oracle once: operands that are no results must stay as they were, both
// runs must agree to the bit, and results must lie within tolerance of the oracle's, relative to their largest magnitude.
func (c *comparison) compare(op, where string, tolerance float64, operands []tensor, call func(device.Device, []device.Mem)) {
	c.Helper()
	where = op + " " + where
	c.calls++
	shift := c.calls % 2 * 3
	want := c.run(c.oracle, 0, where, operands, call)
	got := c.run(c.dev, shift, where, operands, call)
	again := c.run(c.dev, shift, where, operands, call)
	for i, x := range operands {
		for j, b := range got[i] {
			if again[i][j] != b {
				c.Fatalf("%s: %s[%d] differs from one run to the next", where, x.name, j)
			}
		}
		switch {
		case x.result:
			c.record(op, where+": "+x.name, tolerance, got[i], want[i])
		case x.floats != nil && !equalBits(got[i], floatBits(x.floats)), x.ints != nil && !equalBits(got[i], x.ints):
			c.Fatalf("%s: operand %s was changed", where, x.name)
		}
	}
}

// record keeps the largest difference of op and fails when it exceeds tolerance.
func (c *comparison) record(op, where string, tolerance float64, got, want []int32) {
	c.Helper()
	var scale float64
	for _, w := range want {
		if v := math.Abs(value(w)); !math.IsInf(v, 0) {
			scale = max(scale, v)
		}
	}
	d := c.worst[op]
	if d == nil {
		d = &difference{tolerance: tolerance}
		c.worst[op] = d
		c.order = append(c.order, op)
	}
	d.tolerance = max(d.tolerance, tolerance)
	for i, w := range want {
		g := got[i]
		if g == w {
			continue
		}
		relative := math.Abs(value(g)-value(w)) / max(scale, math.SmallestNonzeroFloat32)
		if relative > d.largest {
			d.largest, d.where = relative, where
		}
		if !(relative <= tolerance) {
			c.Fatalf("%s[%d] is %v, want %v: difference %.3g of the largest magnitude %.3g, tolerance %.3g",
				where, i, value(g), value(w), relative, scale, tolerance)
		}
	}
}

func value(bits int32) float64 { return float64(math.Float32frombits(uint32(bits))) }

func floatBits(s []float32) []int32 {
	out := make([]int32, len(s))
	for i, v := range s {
		out[i] = int32(math.Float32bits(v))
	}
	return out
}

func equalBits(a, b []int32) bool {
	for i := range a {
		if a[i] != b[i] {
			return false
		}
	}
	return len(a) == len(b)
}

// normal draws n elements of a normal distribution about mean.
func (c *comparison) normal(n int, mean, deviation float64) []float32 {
	out := make([]float32, n)
	for i := range out {
		out[i] = float32(mean + deviation*c.rng.NormFloat64())
	}
	return out
}

// in is an operand of n normal elements; out is one that the operation writes or adds to.
func (c *comparison) in(name string, n int) tensor {
	return tensor{name: name, floats: c.normal(n, 0, 1)}
}

func (c *comparison) out(name string, n int) tensor {
	return tensor{name: name, floats: c.normal(n, 0, 1), result: true}
}

// ids is an operand of n integers below limit.
func (c *comparison) ids(name string, n, limit int) tensor {
	x := tensor{name: name, ints: make([]int32, n)}
	for i := range x.ints {
		x.ints[i] = int32(c.rng.IntN(limit))
	}
	return x
}

func shape(format string, args ...any) string { return fmt.Sprintf(format, args...) }
