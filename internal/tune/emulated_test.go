package tune

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/avgpipe/avgpipe/internal/worker"
	"github.com/avgpipe/avgpipe/job"
	"github.com/avgpipe/avgpipe/tuner"
)

// emulate makes a job's devices emulated ones, of which the second is half as fast, with so much memory each.
func emulate(bytes float64) func(j *job.Job) {
	return func(j *job.Job) {
		j.Devices.Kind, j.Stages, j.Pipelines = emulated, 2, 1
		j.Devices.Emulated.FLOPs = []float64{2e9, 1e9}
		j.Devices.Emulated.Memory = []float64{bytes}
	}
}

// The slow one of two devices gets the smaller part of the work, by what was measured on both.
func TestEmulatedDevicesAreTunedLikeOthers(t *testing.T) {
	report, err := Tune(t.Context(), Config{Request: request(t, emulate(1e9)), Batches: 2})
	if err != nil {
		t.Fatal(err)
	}
	c := report.Chosen
	if c.Measured == nil || c.Measured.BatchSeconds <= 0 {
		t.Fatalf("chosen: %+v", c)
	}
	first, second := c.Split[0][1]-c.Split[0][0], c.Split[1][1]-c.Split[1][0]
	if first < second {
		t.Errorf("the fast device has %d layers, the slow one %d", first, second)
	}
}

// whole refuses runs with more stages than devices.
type whole struct{ bench }

func (w whole) Run(ctx context.Context, c worker.TrialConfig) (worker.TrialResult, error) {
	if len(c.Split) > len(c.Plan) {
		return worker.TrialResult{}, errors.New("no room for buffers of each layer")
	}
	return w.bench.Run(ctx, c)
}

// Devices that hold their stages, but not every layer as a stage: the parts of layers are then guessed.
func TestLayersThatCannotBeMeasuredAloneAreGuessed(t *testing.T) {
	s, err := Open(t.Context(), Config{Request: request(t, emulate(1e9)), Batches: 2})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	}()
	s.bench = whole{s.bench}
	report, err := s.run(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if len(report.Notes) == 0 || report.Profile.Layers[1].ForwardSeconds <= 0 || report.Chosen.Measured == nil {
		t.Errorf("notes %q, chosen %+v", report.Notes, report.Chosen)
	}
}

func TestTooSmallDevicesAreRefusedWithStageBytesAndAFix(t *testing.T) {
	_, err := Tune(t.Context(), Config{Request: request(t, emulate(5e4))})
	short, is := errors.AsType[*tuner.NoFitError](err)
	if !is || short.Bytes <= 0 || !strings.Contains(err.Error(), "stage ") || short.Fix == "" {
		t.Errorf("error is %v", err)
	}
}
