package ref

import "github.com/avgpipe/avgpipe/stage/device"

// SmoothedCrossEntropy implements device.Device: with m the mean logit and t the target's, the loss grows by
// smoothing (t - m), and the gradient by smoothing (onehot - 1/V).
func (d *Device) SmoothedCrossEntropy(losses, dlogits, logits, targets device.Mem, rows, vocabulary int, scale, smoothing float32) {
	device.CheckCrossEntropy(losses, dlogits, logits, targets, rows, vocabulary)
	for r, target := range targets.I32() {
		row := logits.F32()[r*vocabulary:][:vocabulary]
		sum, own := 0.0, 0.0
		for _, v := range row {
			sum += float64(v)
		}
		if target >= 0 {
			own = float64(row[target])
		}
		gradient := device.Mem{}
		if !dlogits.Absent() {
			gradient = dlogits.Slice(r*vocabulary, vocabulary)
		}
		d.CrossEntropy(losses.Slice(r, 1), gradient, logits.Slice(r*vocabulary, vocabulary), targets.Slice(r, 1), 1, vocabulary, scale)
		if target < 0 {
			continue
		}
		losses.F32()[r] += float32(float64(smoothing) * (own - sum/float64(vocabulary)))
		if gradient.Absent() {
			continue
		}
		spread := float32(scale * smoothing / float32(vocabulary))
		for c := range gradient.F32() {
			gradient.F32()[c] -= spread
		}
		gradient.F32()[target] += float32(scale * smoothing)
	}
}
