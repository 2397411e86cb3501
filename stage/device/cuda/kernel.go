//go:build cuda && cgo && linux && amd64

package cuda

import (
	"fmt"
	"math"
	"unsafe"

	"github.com/avgpipe/avgpipe/stage/device"
)

// call is the launch of a kernel: its name, then its arguments in their order, then where it runs.
type call struct {
	device   *Device
	kernel   string
	n        int
	slots    [48]uint64
	pointers [48]unsafe.Pointer // to the slots
}

func (c *call) prepare(d *Device) {
	c.device = d
	for i := range c.slots {
		c.pointers[i] = unsafe.Pointer(&c.slots[i])
	}
}

// launch begins the call of a kernel.
func (d *Device) launch(kernel string) *call {
	d.call.kernel, d.call.n = kernel, 0
	return &d.call
}

// bits is an argument of up to 8 bytes.
func (c *call) bits(v uint64) *call {
	c.slots[c.n] = v
	c.n++
	return c
}

// mem is the address of an operand; 0 of one that is absent.
func (c *call) mem(m device.Mem) *call { return c.bits(uint64(uintptr(m.Pointer()))) }

// typed is an operand of either type: its address, and whether it is BF16.
func (c *call) typed(m device.Mem) *call { return c.mem(m).flag(m.Type() == device.BF16) }

func (c *call) float(v float32) *call { return c.bits(word(v)) }

// word is the argument of a float.
func word(v float32) uint64 { return uint64(math.Float32bits(v)) }

func (c *call) int(v int) *call { return c.bits(uint64(v)) }

func (c *call) flag(v bool) *call { return c.bits(truth(v)) }

// truth is the argument of a bool.
func truth(v bool) uint64 {
	if v {
		return 1
	}
	return 0
}

// now are numbers that may change from run to run, and where a graph finds them.
func (c *call) now(numbers ...uint64) *call {
	for _, v := range numbers {
		c.bits(v)
	}
	return c.bits(c.device.graphs.take(numbers))
}

// refusing are the arguments of a kernel that may refuse an id.
func (c *call) refusing(operation int) *call {
	return c.bits(uint64(uintptr(unsafe.Pointer(c.device.fault)))).int(operation)
}

// The threads of most blocks, and the blocks of most grids. The number of blocks decides in which order squares are added up, so it depends on
// the number of elements alone.
const (
	warp         = 32
	pack         = 4 // elements that a thread loads at once: kernels/pack.cuh
	blockThreads = 256
	mostBlocks   = 1024 // BLOCKS of kernels/optimizer.cu
)

// each runs the kernel over n elements.
func (c *call) each(n int) { c.on(min(blocks(n, blockThreads), mostBlocks), 1, blockThreads) }

// eachPack runs it over n elements, 4 or more to a thread.
func (c *call) eachPack(n int) { c.each(blocks(n, pack)) }

// blocks runs it on n blocks.
func (c *call) blocks(n int) { c.on(n, 1, blockThreads) }

// squares is where the blocks of a kernel meet that adds squares up.
func (c *call) squares() *call { return c.bits(uint64(c.device.squares)) }

// squaresBytes is the size of struct Squares of kernels/optimizer.cu.
const squaresBytes = 8*mostBlocks + 8

// rows runs it with a block for each row, of as many threads as the rows have use for.
func (c *call) rows(n, width int) { c.on(n, 1, min(blocks(width, warp)*warp, blockThreads)) }

// packRows is rows whose threads take packs.
func (c *call) packRows(n, width int) { c.on(n, 1, min(blocks(width, pack*warp)*warp, 1024)) }

// on runs it on a grid of (x,y) blocks.
func (c *call) on(x, y, threads int) {
	d := c.device
	if x == 0 || y == 0 || d.graphs.gathering {
		return
	}
	if err := d.kernels[c.kernel].Launch(x, y, 1, threads, 1, 1, dynamicShared[c.kernel], d.stream, c.pointers[:c.n]); err != nil {
		d.check(fmt.Sprintf("launch %s on %d by %d blocks of %d threads", c.kernel, x, y, threads), err)
	}
}

// dynamicShared is the bytes of shared memory that kernels ask for when they are launched, as kernels/attention_f32.cu has them: more than the 48 KiB
// that a kernel may declare, and no more than the 99 KiB that processors of compute capability 8.0 or above have at least.
var dynamicShared = map[string]int{
	"attention_floats_64": 69632, "attention_queries_floats_64": 61440, "attention_keys_floats_64": 61440,
	"attention_floats_128": 76800, "attention_queries_floats_128": 89600, "attention_keys_floats_128": 89600,
}

// blocks is how many blocks of a size hold n.
func blocks(n, size int) int { return (n + size - 1) / size }
