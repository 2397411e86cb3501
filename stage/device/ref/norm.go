package ref

import (
	"math"

	"github.com/avgpipe/avgpipe/stage/device"
)

// layerNorm runs device.Norm (Ba, Kiros and Hinton 2016, equation 4). The mean comes first and the variance about
// it second, both in float64.
func (d *Device) layerNorm(o *device.Norm) {
	rows, columns := o.Size()
	means, rstds, ws, bs := o.Mean.F32(), o.Rstd.F32(), o.Weight.F32(), o.Bias.F32()
	ys := d.result(0, o.Y)
	for r := range rows {
		in, out := o.X.F32()[r*columns:(r+1)*columns], ys[r*columns:(r+1)*columns]
		m, variance := moments(in)
		means[r] = float32(m)
		rstds[r] = float32(1 / math.Sqrt(variance+float64(o.Epsilon)))
		for c, v := range in {
			xhat := (v - means[r]) * rstds[r]
			out[c] = float32(xhat*ws[c]) + bs[c]
		}
	}
	d.finish(0, o.Y)
}

// moments returns the mean and the variance of x.
func moments(x []float32) (mean, variance float64) {
	for _, v := range x {
		mean += float64(v)
	}
	mean /= float64(len(x))
	for _, v := range x {
		distance := float64(v) - mean
		variance += float64(distance * distance)
	}
	return mean, variance / float64(len(x))
}

// layerNormBackward runs device.NormBackward: with g = dy*weight, dx = rstd (g - mean(g) - xhat mean(g*xhat)) [+ plus].
func (d *Device) layerNormBackward(o *device.NormBackward) {
	rows, columns := o.Size()
	ws := o.Weight.F32()
	dys := d.read(0, o.DY)
	for r := range rows {
		in, dout := o.X.F32()[r*columns:(r+1)*columns], dys[r*columns:(r+1)*columns]
		din := o.DX.F32()[r*columns : (r+1)*columns]
		m, s := o.Mean.F32()[r], o.Rstd.F32()[r]
		var sumG, sumGX float64
		for c, v := range in {
			g := float64(dout[c] * ws[c])
			sumG += g
			sumGX += float64(g * float64((v-m)*s))
		}
		meanG, meanGX := float32(sumG/float64(columns)), float32(sumGX/float64(columns))
		for c, v := range in {
			xhat := (v - m) * s
			g := float32(dout[c] * ws[c])
			din[c] = (g - meanG - float32(xhat*meanGX)) * s
		}
	}
	addStream(o.DX, o.Plus)
}

// addStream adds plus to dx unless it is absent.
func addStream(dx, plus device.Mem) {
	if plus.Absent() {
		return
	}
	for i, v := range plus.F32() {
		dx.F32()[i] += v
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

// rmsNorm runs device.Norm.
func (d *Device) rmsNorm(o *device.Norm) {
	rows, columns := o.Size()
	ys, xs, ws := d.result(0, o.Y), o.X.F32(), o.Weight.F32()
	for r := range rows {
		in, out := xs[r*columns:(r+1)*columns], ys[r*columns:(r+1)*columns]
		sum := 0.0
		for _, v := range in {
			sum += float64(float64(v) * float64(v))
		}
		s := float32(1 / math.Sqrt(sum/float64(columns)+float64(o.Epsilon)))
		o.Rstd.F32()[r] = s
		for c, v := range in {
			out[c] = v * s * ws[c]
		}
	}
	d.finish(0, o.Y)
}

// rmsNormBackward runs device.NormBackward: with g = dy*weight and xhat = x*rstd, dx = rstd (g - xhat mean(g*xhat))
// [+ plus].
func (d *Device) rmsNormBackward(o *device.NormBackward) {
	rows, columns := o.Size()
	dxs, dys, xs, ws := o.DX.F32(), d.read(0, o.DY), o.X.F32(), o.Weight.F32()
	for r := range rows {
		in, dout := xs[r*columns:(r+1)*columns], dys[r*columns:(r+1)*columns]
		s := o.Rstd.F32()[r]
		sum := 0.0
		for c, v := range in {
			sum += float64(float64(dout[c]*ws[c]) * float64(v*s))
		}
		mean := float32(sum / float64(columns))
		for c, v := range in {
			dxs[r*columns+c] = (float32(dout[c]*ws[c]) - float32(v*s*mean)) * s
		}
	}
	addStream(o.DX, o.Plus)
}
