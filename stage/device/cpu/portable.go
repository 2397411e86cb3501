//go:build !(onednn && cgo && linux && amd64)

package cpu

import (
	"errors"

	"gonum.org/v1/gonum/blas"
	"gonum.org/v1/gonum/blas/gonum"

	"github.com/avgpipe/avgpipe/stage/device"
	"github.com/avgpipe/avgpipe/stage/device/ref"
)

// OneDNN reports why this build has no oneDNN, or nil when it has.
func OneDNN() error {
	return errors.New("built without oneDNN: install libdnnl-dev and build with -tags onednn (Linux, amd64, cgo)")
}

// Device computes products with gonum and everything else as package ref does. It uses one thread.
type Device struct {
	*ref.Device
	cores []int
}

var (
	_ device.Device   = (*Device)(nil)
	_ device.Threaded = (*Device)(nil)
)

// Open returns a device. Config.Threads has no effect in this form.
func Open(c Config) (*Device, error) {
	if err := c.Validate(); err != nil {
		return nil, err
	}
	return &Device{Device: ref.New(), cores: c.withDefaults().Cores}, nil
}

// Name implements device.Device.
func (d *Device) Name() string {
	return "cpu (gonum products, plain Go, bf16 widened to f32, " + threads(1) + ")"
}

// Attach implements device.Threaded.
func (d *Device) Attach() error { return pin(d.cores) }

// Rows and columns of C that one gonum call computes. gonum starts goroutines, and allocates, from four blocks of 64 by 64
// on; below that it runs in the caller.
const (
	rowTile    = 64
	columnTile = 128
)

// Do implements device.Device.
func (d *Device) Do(op device.Op) {
	o, ok := op.(*device.MatMul)
	if !ok || o.C.Type() == device.BF16 || o.A.Type() == device.BF16 || o.B.Type() == device.BF16 {
		d.Device.Do(op)
		return
	}
	device.Check(o)
	matMul(o)
}

func matMul(m *device.MatMul) {
	cs, as, bs := m.C.F32(), m.A.F32(), m.B.F32()
	beta := float32(0)
	if m.Accumulate {
		beta = 1
	}
	if !m.Bias.Absent() {
		beta = 1
		for i := range m.M {
			copy(cs[i*m.N:(i+1)*m.N], m.Bias.F32())
		}
	}
	transA, lda := transpose(m.TransA, m.M, m.K)
	transB, ldb := transpose(m.TransB, m.K, m.N)
	for i := 0; i < m.M; i += rowTile {
		rows, from := min(rowTile, m.M-i), i*lda
		if m.TransA {
			from = i
		}
		for j := 0; j < m.N; j += columnTile {
			at := j
			if m.TransB {
				at = j * ldb
			}
			gonum.Implementation{}.Sgemm(transA, transB, rows, min(columnTile, m.N-j), m.K,
				1, as[from:], lda, bs[at:], ldb, beta, cs[i*m.N+j:], m.N)
		}
	}
}

// transpose is how BLAS names an operand whose op is (rows, columns), and the length of its stored rows.
func transpose(stored bool, rows, columns int) (blas.Transpose, int) {
	if stored {
		return blas.Trans, rows
	}
	return blas.NoTrans, columns
}
