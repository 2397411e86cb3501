package ref

import "github.com/avgpipe/avgpipe/stage/device"

// CrossEntropy implements device.Device.
func (d *Device) CrossEntropy(losses, dlogits, logits, targets device.Mem, rows, vocabulary int, scale float32) {
	device.CheckCrossEntropy(losses, dlogits, logits, targets, rows, vocabulary)
	for r, target := range targets.I32() {
		row := logits.F32()[r*vocabulary : (r+1)*vocabulary]
		var drow []float32
		if !dlogits.Absent() {
			drow = dlogits.F32()[r*vocabulary : (r+1)*vocabulary]
		}
		if target < 0 {
			losses.F32()[r] = 0
			clear(drow)
			continue
		}
		losses.F32()[r] = crossEntropyRow(drow, row, int(target), scale)
	}
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
