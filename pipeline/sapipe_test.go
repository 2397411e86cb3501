package pipeline

import (
	"fmt"
	"slices"
	"testing"

	"github.com/avgpipe/avgpipe/elastic"
	"github.com/avgpipe/avgpipe/stage/device"
)

// trainedBy trains modelConfig's GPT-2, whose embeddings are tied, in two pipelines over so many stages by a method, and returns losses, gradient norms and evaluations.
func trainedBy(t *testing.T, open func() device.Device, stages int, name string, c elastic.Config) []float64 {
	t.Helper()
	c.Pipelines = 2
	method, err := elastic.NewMethod(name, c)
	if err != nil {
		t.Fatal(err)
	}
	var log modelLog
	config := modelConfigBy(t, open, plan(t, "1f1b", stages, modelMicros), method, device.F32, &log)
	g, err := New(config)
	if err != nil {
		t.Fatal(err)
	}
	if err := g.Run(t.Context()); err != nil {
		t.Fatal(err)
	}
	return log.numbers(2)
}

// TestSAPipeWithoutLateLayersIsAllReduce, and with all of them late and no prediction Pipe-SGD, to the bit.
func TestSAPipeWithoutLateLayersIsAllReduce(t *testing.T) {
	for _, stages := range []int{1, 2} {
		allReduce, pipeSGD := trainedBy(t, onHost, stages, "allreduce", elastic.Config{}), trainedBy(t, onHost, stages, "pipesgd", elastic.Config{Warmup: 1})
		none := trainedBy(t, onHost, stages, "sapipe", elastic.Config{})
		all := trainedBy(t, onHost, stages, "sapipe", elastic.Config{StaleLayers: 99, Prediction: elastic.PredictNothing, Warmup: 1})
		some := trainedBy(t, onHost, stages, "sapipe", elastic.Config{StaleLayers: 3, Prediction: elastic.PredictNothing, Warmup: 1})
		if !slices.Equal(none, allReduce) || !slices.Equal(all, pipeSGD) {
			t.Errorf("%d stages: without late layers %v, all-reduce %v; all late %v, Pipe-SGD %v", stages, none, allReduce, all, pipeSGD)
		}
		if slices.Equal(some, allReduce) || slices.Equal(some, pipeSGD) {
			t.Errorf("%d stages: with some layers late %v, as one of the two", stages, some)
		}
	}
}

// TestSAPipeDoesNotDependOnTheSplit: wherever late layers end, beside a tied copy or not, on devices with and without a queue, by every prediction and compensation.
func TestSAPipeDoesNotDependOnTheSplit(t *testing.T) {
	for _, c := range []elastic.Config{
		{StaleLayers: 1},
		{StaleLayers: 4},
		{StaleLayers: 99},
		{StaleLayers: 3, Prediction: elastic.PredictPrevSync, Warmup: 2},
		{StaleLayers: 3, Prediction: elastic.PredictLocalPrevSync, Compensation: elastic.CompensateOuterAdaptive, Lambda: 2},
		{StaleLayers: 5, Prediction: elastic.PredictLocalPrevSync, Compensation: elastic.CompensateDiag, Lambda: 2},
	} {
		t.Run(fmt.Sprintf("%d %s %s", c.StaleLayers, c.Prediction, c.Compensation), func(t *testing.T) {
			t.Parallel()
			want := trainedBy(t, onHost, 1, "sapipe", c)
			for _, stages := range []int{2, 3} {
				if got := trainedBy(t, onHost, stages, "sapipe", c); !slices.Equal(got, want) {
					t.Errorf("%d stages: %v, one %v", stages, got, want)
				}
			}
			if got := trainedBy(t, queued, 2, "sapipe", c); !slices.Equal(got, want) {
				t.Errorf("two stages with queues: %v, one %v", got, want)
			}
		})
	}
}
