package stage_test

import (
	"errors"
	"testing"

	"github.com/avgpipe/avgpipe/stage"
	"github.com/avgpipe/avgpipe/stage/device/ref"
	"github.com/avgpipe/avgpipe/stage/model"
	"github.com/avgpipe/avgpipe/stage/stagetest"
)

// A device that lacks an operation is refused when a stage is made, or before that, and not when the operation would run.
func TestAStageNamesWhatItsDeviceLacks(t *testing.T) {
	const device = "ref (plain Go, 1 thread) without "
	for _, c := range []struct {
		family, lacks string
		optimizer     string
		want          stage.MissingError // the zero value: nothing
	}{
		{"resnet", "Convolution", "sgd", stage.MissingError{Part: "layer stem", Operation: "Convolution", Device: device + "Convolution"}},
		{"resnet", "ConvolutionBackwardWeight", "sgd", stage.MissingError{
			Part: "layer stem", Operation: "ConvolutionBackwardWeight", Device: device + "ConvolutionBackwardWeight",
		}},
		{"mlp", "Convolution", "sgd", stage.MissingError{}},
		{"mlp", "CrossEntropy", "sgd", stage.MissingError{Part: "the loss", Operation: "CrossEntropy", Device: device + "CrossEntropy"}},
		{"mlp", "AdamStep", "adamw", stage.MissingError{Part: "the optimizer", Operation: "AdamStep", Device: device + "AdamStep"}},
		{"mlp", "AdamStep", "sgd", stage.MissingError{}},
	} {
		m, err := model.Build(c.family, map[string]any{"image_size": 32})
		if err != nil {
			t.Fatal(err)
		}
		config := stage.Config{
			Device: &stagetest.Without{Device: ref.New(), Prefix: c.lacks}, Model: m, Samples: 1, Slots: 1,
			Optimizer: stage.Optimizer{Name: c.optimizer},
		}
		s, made := stage.New(config)
		for what, err := range map[string]error{"New": made, "CheckOperations": config.CheckOperations()} {
			missing, _ := errors.AsType[*stage.MissingError](err)
			switch {
			case c.want == stage.MissingError{} && err != nil:
				t.Errorf("%s of %s by %s without %s: %v", what, c.family, c.optimizer, c.lacks, err)
			case c.want != stage.MissingError{} && (missing == nil || *missing != c.want):
				t.Errorf("%s of %s by %s without %s: %v, want %v", what, c.family, c.optimizer, c.lacks, err, &c.want)
			}
		}
		if made == nil {
			_ = s.Close()
		}
	}
}
