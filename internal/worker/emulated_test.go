package worker

import (
	"strings"
	"testing"
	"time"

	"github.com/avgpipe/avgpipe/job"
)

// A device that is opened to be asked what it is says the same of itself as the ones that train.
func TestADeviceThatIsAskedIsTheFirstOfTheJob(t *testing.T) {
	for _, c := range []struct {
		emulated job.Emulated
		want     string
	}{
		{job.Emulated{FLOPs: []float64{2e9, 1e9}}, "emulated (2e+09 FLOP/s)"},
		{job.Emulated{Forward: []time.Duration{time.Millisecond}, Memory: []float64{5e4}}, "emulated (times given, 50000 bytes)"},
	} {
		dev, err := new(Trials).OpenDevice(job.Devices{Kind: job.KindEmulated, Emulated: c.emulated})
		if err != nil {
			t.Fatal(err)
		}
		if dev.Name() != c.want {
			t.Errorf("the device is %s, want %s", dev.Name(), c.want)
		}
		if err := dev.Close(); err != nil {
			t.Error(err)
		}
	}
	_, err := new(Trials).OpenDevice(job.Devices{Kind: "abacus"})
	if err == nil || !strings.Contains(err.Error(), "abacus") {
		t.Errorf("an unknown kind: %v", err)
	}
}

// Where no time is given the operations say what a pass takes; what is given is given to every stage.
func TestStagesHaveTimesOnlyWhereTheJobGivesThem(t *testing.T) {
	if c := emulate(job.Emulated{FLOPs: []float64{1e9}}, 0, 4); len(c.Stages) != 0 {
		t.Errorf("nobody gave %v", c.Stages)
	}
	c := emulate(job.Emulated{Forward: []time.Duration{time.Millisecond}}, 0, 4)
	if len(c.Stages) != 4 || c.Stages[3].Forward != time.Millisecond || c.Stages[3].Backward != 2*time.Millisecond {
		t.Errorf("times are %v", c.Stages)
	}
}
