package ref

import "github.com/avgpipe/avgpipe/stage/device"

// crossEntropy runs device.CrossEntropy.
func (d *Device) crossEntropy(o *device.CrossEntropy) {
	_, vocabulary := o.Size()
	for r, target := range o.Targets.I32() {
		var drow []float32
		if !o.DLogits.Absent() {
			drow = o.DLogits.F32()[r*vocabulary:][:vocabulary]
		}
		o.Losses.F32()[r] = 0
		if target < 0 {
			clear(drow)
			continue
		}
		o.Losses.F32()[r] = crossEntropyRow(drow, o.Logits.F32()[r*vocabulary:][:vocabulary], int(target), o.Scale, o.Smoothing)
	}
}

// crossEntropyRow returns -log softmax(row)[target] and, unless drow is nil, sets drow = scale (softmax - onehot). drow may be row.
//
// With m the mean logit and t the target's, smoothing adds smoothing (t - m), and to the gradient smoothing (onehot - 1/V).
func crossEntropyRow(drow, row []float32, target int, scale, smoothing float32) float32 {
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
	if smoothing > 0 {
		loss += float32(float64(smoothing) * (float64(row[target]) - meanOf(row)))
	}
	spread := float32(scale * smoothing / float32(len(row)))
	for c := range drow {
		probability := exp(float64(row[c])-float64(largest)) / sum
		if c == target {
			probability--
		}
		drow[c] = float32(probability*float64(scale)) - spread
	}
	if drow != nil {
		drow[target] += float32(scale * smoothing)
	}
	return loss
}
