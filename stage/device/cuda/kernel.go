//go:build cuda && cgo && linux && amd64

package cuda

import (
	"fmt"
	"math"
	"regexp"
	"unsafe"

	"gorgonia.org/cu"

	"github.com/avgpipe/avgpipe/stage/device"
)

// load gives the driver the kernels, which it compiles for the processor, and finds them.
func (d *Device) load() (err error) {
	if d.module, err = cu.LoadData(ptx); err != nil {
		return fmt.Errorf("load the kernels: %w", err)
	}
	for _, entry := range entries.FindAllStringSubmatch(ptx, -1) {
		if d.kernels[entry[1]], err = d.module.Function(entry[1]); err != nil {
			return fmt.Errorf("find the kernel %s: %w", entry[1], err)
		}
	}
	return nil
}

var entries = regexp.MustCompile(`\.entry (\w+)\(`)

// call is the launch of a kernel: its name, then its arguments in their order, then where it runs.
type call struct {
	device   *Device
	kernel   string
	n        int
	slots    [32]uint64
	pointers [32]unsafe.Pointer // to the slots
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

func (c *call) float(v float32) *call { return c.bits(uint64(math.Float32bits(v))) }

func (c *call) int(v int) *call { return c.bits(uint64(v)) }

func (c *call) flag(v bool) *call {
	if v {
		return c.bits(1)
	}
	return c.bits(0)
}

// refusing are the arguments of a kernel that may refuse an id.
func (c *call) refusing(operation int) *call {
	return c.bits(uint64(uintptr(unsafe.Pointer(c.device.fault)))).int(operation)
}

// The threads of most blocks, and the blocks of most grids. The number of blocks decides in which order squares are added up, so it depends on
// the number of elements alone.
const (
	warp         = 32
	blockThreads = 256
	mostBlocks   = 1024 // BLOCKS of kernels/optimizer.cu
)

// each runs the kernel over n elements.
func (c *call) each(n int) { c.on(min(blocks(n, blockThreads), mostBlocks), 1, blockThreads) }

// blocks runs it on n blocks.
func (c *call) blocks(n int) { c.on(n, 1, blockThreads) }

// rows runs it with a block for each row, of as many threads as the rows have use for.
func (c *call) rows(n, width int) { c.on(n, 1, min(blocks(width, warp)*warp, blockThreads)) }

// columns runs it with a block for 32 columns.
func (c *call) columns(n int) { c.on(blocks(n, 32), 1, 1024) }

// on runs it on a grid of (x,y) blocks.
func (c *call) on(x, y, threads int) {
	if x == 0 || y == 0 {
		return
	}
	d := c.device
	if err := d.kernels[c.kernel].Launch(x, y, 1, threads, 1, 1, 0, d.stream, c.pointers[:c.n]); err != nil {
		d.check(fmt.Sprintf("launch %s on %d by %d blocks of %d threads", c.kernel, x, y, threads), err)
	}
}

// blocks is how many blocks of a size hold n.
func blocks(n, size int) int { return (n + size - 1) / size }
