package ref

import "github.com/avgpipe/avgpipe/stage/device"

// crossEntropy runs device.CrossEntropy.
func (d *Device) crossEntropy(o *device.CrossEntropy) {
	_, vocabulary := o.Size()
	for r, target := range o.Targets.I32() {
		row := o.Logits.F32()[r*vocabulary:][:vocabulary]
		var drow []float32
		if !o.DLogits.Absent() {
			drow = o.DLogits.F32()[r*vocabulary:][:vocabulary]
		}
		if target < 0 {
			o.Losses.F32()[r] = 0
			clear(drow)
			continue
		}
		soft := float32(0)
		if o.Smoothing > 0 { // before drow, which may be row
			soft = smoothed(row, int(target), o.Smoothing)
		}
		o.Losses.F32()[r] = crossEntropyRow(drow, row, int(target), o.Scale) + soft
		if o.Smoothing > 0 && drow != nil {
			spread := float32(o.Scale * o.Smoothing / float32(vocabulary))
			for c := range drow {
				drow[c] -= spread
			}
			drow[target] += float32(o.Scale * o.Smoothing)
		}
	}
}

// smoothed is by how much smoothing raises the loss of a row: smoothing (t - m), with m the mean logit and t the target's. The gradient
// grows by smoothing (onehot - 1/V).
func smoothed(row []float32, target int, smoothing float32) float32 {
	sum := 0.0
	for _, v := range row {
		sum += float64(v)
	}
	return float32(float64(smoothing) * (float64(row[target]) - sum/float64(len(row))))
}

// crossEntropyRow returns -log softmax(row)[target] and, unless drow is nil, sets drow = scale (softmax - onehot).
func crossEntropyRow(drow, row []float32, target int, scale float32) float32 {
	largest := row[0]
	var poison float64 // 0, or NaN when a logit is not finite: exp(-Inf) alone would hide one
	for _, v := range row {
		largest = max(largest, v)
		poison += float64(float64(v) * 0)
	}
	var sum float64
	for _, v := range row {
		sum += exp(float64(v) - float64(largest))
	}
	loss := float32(float64(largest) - float64(row[target]) + log(sum) + poison)
	for c := range drow {
		probability := exp(float64(row[c])-float64(largest)) / sum
		if c == target {
			probability--
		}
		drow[c] = float32(probability * float64(scale))
	}
	return loss
}
