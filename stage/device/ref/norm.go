package ref

import (
	"math"

	"github.com/avgpipe/avgpipe/stage/device"
)

// norm runs device.Norm (Ba, Kiros and Hinton 2016, equation 4). The mean comes first and the variance about it second, both in float64;
// without a mean the variance is about 0.
func (d *Device) norm(o *device.Norm) {
	rows, columns := o.Size()
	ws, bs, ys := o.Weight.F32(), optional(o.Bias), d.result(0, o.Y)
	for r := range rows {
		in, out := o.X.F32()[r*columns:][:columns], ys[r*columns:][:columns]
		mean := 0.0
		if !o.Mean.Absent() {
			mean = meanOf(in)
			o.Mean.F32()[r] = float32(mean)
		}
		variance := 0.0
		for _, v := range in {
			variance += float64((float64(v) - mean) * (float64(v) - mean))
		}
		m, s := float32(mean), float32(1/math.Sqrt(variance/float64(columns)+float64(o.Epsilon)))
		o.Rstd.F32()[r] = s
		for c, v := range in {
			out[c] = (v - m) * s * ws[c]
			if bs != nil {
				out[c] += bs[c]
			}
		}
	}
	d.finish(0, o.Y)
}

func meanOf(x []float32) float64 {
	sum := 0.0
	for _, v := range x {
		sum += float64(v)
	}
	return sum / float64(len(x))
}

// normBackward runs device.NormBackward: with g = dy*weight, dx = rstd (g - mean(g) - xhat mean(g*xhat)) [+ plus]; without a mean,
// mean(g) does not count.
func (d *Device) normBackward(o *device.NormBackward) {
	rows, columns := o.Size()
	ws, means, plus, dys := o.Weight.F32(), optional(o.Mean), optional(o.Plus), d.read(0, o.DY)
	for r := range rows {
		in, dout := o.X.F32()[r*columns:][:columns], dys[r*columns:][:columns]
		m, s := float32(0), o.Rstd.F32()[r]
		if means != nil {
			m = means[r]
		}
		var sumG, sumGX float64
		for c, v := range in {
			g := float64(dout[c] * ws[c])
			sumG += g
			sumGX += float64(g * float64((v-m)*s))
		}
		meanG, meanGX := float32(sumG/float64(columns)), float32(sumGX/float64(columns))
		if means == nil {
			meanG = 0
		}
		din := o.DX.F32()[r*columns:][:columns]
		for c, v := range in {
			din[c] = (float32(dout[c]*ws[c]) - meanG - float32((v-m)*s*meanGX)) * s
		}
		if plus != nil {
			add(din, plus[r*columns:][:columns])
		}
	}
}

// normBackwardWeight runs device.NormBackwardWeight.
func (d *Device) normBackwardWeight(o *device.NormBackwardWeight) {
	rows, columns := o.Size()
	dys, xs, sums := d.read(0, o.DY), o.X.F32(), d.clearSums(2*columns)
	mean := float32(0)
	for r := range rows {
		if !o.Mean.Absent() {
			mean = o.Mean.F32()[r]
		}
		for c, g := range dys[r*columns : (r+1)*columns] {
			sums[c] += float64(g) * float64((xs[r*columns+c]-mean)*o.Rstd.F32()[r])
			sums[columns+c] += float64(g)
		}
	}
	addRounded(o.DWeight.F32(), sums)
	if !o.DBias.Absent() {
		addRounded(o.DBias.F32(), sums[columns:])
	}
}
