package cpu

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/avgpipe/avgpipe/stage/device"
)

// BenchmarkProductsOfOneInput compares the products of layers that read one input (queries, keys and values; gate and up), forward and
// backward, with those of one layer as wide as all of them. It reports how many times longer the separate ones take, their additions included.
func BenchmarkProductsOfOneInput(b *testing.B) {
	d := newBench(b, 1)
	evict, sum := d.floats(32<<20), d.alloc(device.F64, 1)
	for _, typ := range []device.Type{device.F32, device.BF16} {
		for _, rows := range []int{128, 1024} {
			for _, s := range []struct {
				name   string
				in     int
				widths []int
			}{{"q,k,v", 512, []int{512, 512, 512}}, {"q,k,v of shared heads", 768, []int{768, 256, 256}}, {"gate,up", 512, []int{1408, 1408}}} {
				d.Run(fmt.Sprintf("%v/%d rows/%s", typ, rows, s.name), func(b *testing.B) {
					p := newOneInput(&bench{b, d.d}, typ, rows, s.in, s.widths)
					var took [2][]time.Duration
					for b.Loop() {
						for i, run := range []func(){p.apart, p.joined} {
							d.d.Do(&device.SquaredNorm{Sum: sum, X: evict})
							start := time.Now()
							run()
							took[i] = append(took[i], time.Since(start))
						}
					}
					for i := range took {
						slices.Sort(took[i])
					}
					middle := len(took[0]) / 2
					b.ReportMetric(took[0][middle].Seconds()/took[1][middle].Seconds(), "apart/joined")
				})
			}
		}
	}
}

// oneInput are layers that read x (rows,in): their weights w, outputs y, and what their backward makes.
type oneInput struct {
	d             *Device
	rows, in, all int
	widths        []int
	x, w, y       device.Mem
	dw, dx        device.Mem
	sum, term     device.Mem // F32, as dx
}

func newOneInput(b *bench, typ device.Type, rows, in int, widths []int) *oneInput {
	all := 0
	for _, n := range widths {
		all += n
	}
	return &oneInput{
		d: b.d, rows: rows, in: in, all: all, widths: widths, x: b.alloc(typ, rows*in), w: b.alloc(typ, all*in), y: b.alloc(typ, rows*all),
		dw: b.floats(all * in), dx: b.alloc(typ, rows*in), sum: b.floats(rows * in), term: b.floats(rows * in),
	}
}

// layer runs the products of a layer whose output begins at column `from`; dx receives the gradient of x.
func (o *oneInput) layer(from, width int, dx device.Mem) {
	y, w, dw := o.y.Slice(from*o.rows, width*o.rows), o.w.Slice(from*o.in, width*o.in), o.dw.Slice(from*o.in, width*o.in)
	o.d.Do(&device.MatMul{C: y, A: o.x, B: w, Product: device.Product{M: o.rows, N: width, K: o.in, TransB: true}})
	o.d.Do(&device.MatMul{C: dw, A: y, B: o.x, Product: device.Product{M: width, N: o.in, K: o.rows, TransA: true, Accumulate: true}})
	o.d.Do(&device.MatMul{C: dx, A: y, B: w, Product: device.Product{M: o.rows, N: o.in, K: width}})
}

func (o *oneInput) joined() { o.layer(0, o.all, o.dx) }

func (o *oneInput) apart() {
	from := 0
	for i, width := range o.widths {
		if i == 0 {
			o.layer(from, width, o.sum)
		} else {
			o.layer(from, width, o.term)
			o.d.Do(&device.Add{Out: o.sum, A: o.sum, B: o.term})
		}
		from += width
	}
	o.d.Do(&device.Copy{Y: o.dx, X: o.sum})
}
