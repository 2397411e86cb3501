package ref

import (
	"math"

	"github.com/avgpipe/avgpipe/stage/device"
)

// LayerNorm implements device.Device (Ba, Kiros and Hinton 2016, equation 4). The mean comes first and the variance about
// it second, both in float64.
func (d *Device) LayerNorm(y, mean, rstd, x, weight, bias device.Mem, rows, columns int, epsilon float32) {
	device.CheckLayerNorm(y, mean, rstd, x, weight, bias, rows, columns)
	means, rstds, ws, bs := mean.F32(), rstd.F32(), weight.F32(), bias.F32()
	ys := d.result(0, y)
	for r := range rows {
		in, out := x.F32()[r*columns:(r+1)*columns], ys[r*columns:(r+1)*columns]
		m, variance := moments(in)
		means[r] = float32(m)
		rstds[r] = float32(1 / math.Sqrt(variance+float64(epsilon)))
		for c, v := range in {
			xhat := (v - means[r]) * rstds[r]
			out[c] = float32(xhat*ws[c]) + bs[c]
		}
	}
	d.finish(0, y)
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

// LayerNormBackward implements device.Device: with g = dy*weight, dx = rstd (g - mean(g) - xhat mean(g*xhat)) [+ plus].
func (d *Device) LayerNormBackward(dx, dy, x, mean, rstd, weight, plus device.Mem, rows, columns int) {
	device.CheckLayerNormBackward(dx, dy, x, mean, rstd, weight, plus, rows, columns)
	ws := weight.F32()
	dys := d.read(0, dy)
	for r := range rows {
		in, dout := x.F32()[r*columns:(r+1)*columns], dys[r*columns:(r+1)*columns]
		din := dx.F32()[r*columns : (r+1)*columns]
		m, s := mean.F32()[r], rstd.F32()[r]
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
	addStream(dx, plus)
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

// LayerNormBackwardWeight implements device.Device.
func (d *Device) LayerNormBackwardWeight(dweight, dbias, dy, x, mean, rstd device.Mem, rows, columns int) {
	device.CheckLayerNormBackwardWeight(dweight, dbias, dy, x, mean, rstd, rows, columns)
	dws, dbs := dweight.F32(), dbias.F32()
	dys := d.read(0, dy)
	for r := range rows {
		in, dout := x.F32()[r*columns:(r+1)*columns], dys[r*columns:(r+1)*columns]
		m, s := mean.F32()[r], rstd.F32()[r]
		for c, v := range in {
			dws[c] += float32(dout[c] * ((v - m) * s))
			dbs[c] += dout[c]
		}
	}
}
