package profile

import (
	"fmt"

	"github.com/avgpipe/avgpipe/internal/trace"
)

// differing is how far, of 1, measured slowdown has to be from what is known of a device to take its place.
const differing = 0.15

// shape tells apart what layers are: two of one shape take the same time on the same device.
type shape struct {
	work                                         trace.Work
	forward, backward, output, inFlight, weights float64
}

// shapeOf is the shape of a layer's pass; none of layers without products or weights, of which there are too many kinds for so few
// numbers.
func (m *measurement) shapeOf(w trace.Work, layer int) (of shape, is bool) {
	l := &m.guess.Layers[layer]
	of = shape{w, l.Forward.At(m.middle), l.Backward.At(m.middle), l.OutputBytes, l.ActivationBytes, float64(l.Parameters)}
	return of, l.Forward.At(2) > l.Forward.At(1) && of.weights > 0
}

// compareDevices finds how slow devices are from the layered run, in which layers of one shape ran on several of them: a transformer's
// blocks, for example. The median ratio to such layers of devices before it is a device's slowdown. Where it has none, or not three
// quarters of the ratios are so far from what the job says of the device (that it is like the others, if nothing), that stays: single
// ratios of devices that are alike were seen between 0.5 and 1.9 on a busy host, their quartiles on both sides of 1. It returns what
// has changed, for people.
func (m *measurement) compareDevices() (notes []string) {
	known := map[shape][]float64{} // times on a device of speed 1
	for d, run := range m.homes {
		device, took := &m.profile.Devices[d], map[shape][]float64{}
		var ratios []float64
		for layer := run.From; layer < run.To; layer++ {
			for _, w := range []trace.Work{trace.Forward, trace.Backward} {
				of, is := m.shapeOf(w, layer)
				times := m.layers.passes[w][layer][m.middle]
				if !is || len(times) == 0 {
					continue
				}
				took[of] = append(took[of], median(times))
				if before := median(known[of]); before > 0 {
					ratios = append(ratios, median(times)/before)
				}
			}
		}
		low, high := quantile(ratios, 0.25)/device.Slowdown, quantile(ratios, 0.75)/device.Slowdown
		if slow := median(ratios); slow > 0 && (low > 1+differing || high < 1-differing) {
			notes = append(notes, fmt.Sprintf("of %d devices, device %d takes %.2f times as long for the same layers as those before it, where %.2f was expected",
				len(m.homes), d, slow, device.Slowdown))
			device.Slowdown = slow
		}
		for of, times := range took {
			for _, t := range times {
				known[of] = append(known[of], t/device.Slowdown)
			}
		}
	}
	return notes
}
