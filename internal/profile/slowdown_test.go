package profile

import (
	"math"
	"strings"
	"testing"

	"github.com/avgpipe/avgpipe/internal/trace"
	"github.com/avgpipe/avgpipe/job"
	"github.com/avgpipe/avgpipe/stage"
	"github.com/avgpipe/avgpipe/tuner"
)

// layersOn is a layered run of layers that take so long on a device of speed 1, on devices so slow, of which as little is known as
// declared says. Layers of one shape have one time here.
func layersOn(homes []stage.Range, times []float64, shapes []int64, slowdown, declared []float64) *measurement {
	m := &measurement{
		profile: &tuner.Profile{}, guess: &tuner.Profile{}, middle: 4, homes: homes, layers: newMeasured(len(times)),
	}
	for d, run := range homes {
		m.profile.Devices = append(m.profile.Devices, tuner.Device{Slowdown: declared[d]})
		for i := run.From; i < run.To; i++ {
			curve := tuner.Curve{Samples: []int{1}, Values: []float64{1}}
			m.guess.Layers = append(m.guess.Layers, tuner.Layer{Forward: curve, Backward: curve, Parameters: shapes[i]})
			took := times[i] * slowdown[d]
			m.layers.passes[trace.Forward][i][4] = []float64{took, 1.01 * took, 3 * took} // one pass was disturbed
			m.layers.passes[trace.Backward][i][4] = []float64{2 * took, 2.02 * took, 2 * took}
		}
	}
	return m
}

func TestSlownessIsMeasuredOnLayersOfOneShape(t *testing.T) {
	three := []stage.Range{{From: 0, To: 3}, {From: 3, To: 5}, {From: 5, To: 8}}
	blocks := []float64{0.2, 1, 1, 1, 1, 1, 1, 0.7}
	for name, test := range map[string]struct {
		shapes                   []int64
		slowdown, declared, want []float64
		notes                    int
	}{
		"alike":                          {[]int64{1, 2, 2, 2, 2, 2, 2, 3}, []float64{1, 1.05, 0.95}, []float64{1, 1, 1}, []float64{1, 1, 1}, 0},
		"as declared":                    {[]int64{1, 2, 2, 2, 2, 2, 2, 3}, []float64{1, 2, 3}, []float64{1, 2, 3}, []float64{1, 2, 3}, 0},
		"one slower":                     {[]int64{1, 2, 2, 2, 2, 2, 2, 3}, []float64{1, 1, 1.5}, []float64{1, 1, 1}, []float64{1, 1, 1.5}, 1},
		"other than declared":            {[]int64{1, 2, 2, 2, 2, 2, 2, 3}, []float64{1, 0.5, 3}, []float64{1, 2, 2}, []float64{1, 0.5, 3}, 2},
		"nothing to compare":             {[]int64{1, 2, 3, 4, 5, 6, 7, 8}, []float64{1, 2, 3}, []float64{1, 1, 2}, []float64{1, 1, 2}, 0},
		"layers without weights":         {[]int64{0, 0, 0, 0, 0, 0, 0, 0}, []float64{1, 2, 3}, []float64{1, 1, 1}, []float64{1, 1, 1}, 0},
		"by way of the device in middle": {[]int64{1, 2, 3, 3, 4, 4, 4, 5}, []float64{1, 2, 3}, []float64{1, 1, 1}, []float64{1, 2, 3}, 2},
	} {
		t.Run(name, func(t *testing.T) {
			m := layersOn(three, blocks, test.shapes, test.slowdown, test.declared)
			notes := m.compareDevices()
			for d, want := range test.want {
				if got := m.profile.Devices[d].Slowdown; math.Abs(got/want-1) > 0.01 {
					t.Errorf("device %d is %.3f times as slow as the first, want %v", d, got, want)
				}
			}
			if len(notes) != test.notes {
				t.Errorf("notes: %q", notes)
			}
		})
	}
}

// A host that does other things now and then makes no device slower than others.
func TestDisturbedPassesMakeNoDeviceSlow(t *testing.T) {
	m := layersOn([]stage.Range{{From: 0, To: 4}, {From: 4, To: 8}}, []float64{1, 1, 1, 1, 0.6, 1.4, 1.3, 0.9},
		[]int64{1, 1, 1, 1, 1, 1, 1, 1}, []float64{1, 1.1}, []float64{1, 1})
	if notes := m.compareDevices(); len(notes) > 0 || m.profile.Devices[1].Slowdown != 1 {
		t.Errorf("device 1 is %v times as slow: %q", m.profile.Devices[1].Slowdown, notes)
	}
}

// What nobody said of devices is measured: here the second one moves bytes at a hundredth of the rate, and its FLOP/s are the same.
func TestADeviceThatIsSlowerThanItsFLOPsGetsFewerLayers(t *testing.T) {
	r := request(t, func(j *job.Job) {
		emulate(1e9)(j)
		j.Model.Config["n_layer"], j.MicroBatches, j.Schedule = 6, 4, "gpipe"
		j.Devices.Emulated.FLOPs, j.Devices.Emulated.Bandwidth = []float64{4e8}, []float64{8e8, 8e6}
	})
	report, err := Tune(t.Context(), Config{Request: r, Batches: 2, Watch: -1, Runs: -1})
	if err != nil {
		t.Fatal(err)
	}
	if len(report.Notes) != 1 || !strings.Contains(report.Notes[0], "device 1 takes") {
		t.Errorf("notes: %q", report.Notes)
	}
	first, last := report.Profile.Layers[1], report.Profile.Layers[6] // blocks alike, of which the last one ran on the slow device
	if ratio := last.ForwardSeconds / first.ForwardSeconds; ratio > 3 || ratio < 1.0/3 || report.Chosen.Split[0][1] < 5 {
		t.Errorf("blocks take %v and %v s on a device of speed 1; the first device has %d layers of 8", first.ForwardSeconds, last.ForwardSeconds,
			report.Chosen.Split[0][1])
	}
}
