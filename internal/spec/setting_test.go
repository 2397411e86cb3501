package spec_test

import (
	"strings"
	"testing"

	"github.com/avgpipe/avgpipe/elastic"
)

// TestEverySettingOfAMethodIsTold where status and explain say how a job is averaged.
func TestEverySettingOfAMethodIsTold(t *testing.T) {
	set := map[string]string{
		"pull": "predicted", "alpha": "0.5", "horizon": "2", "max_drift": "0.5", "outer_lr": "0.5", "outer_momentum": "0.5", "fragments": "3", "mix": "0.25", "warmup": "3", "stale_layers": "2",
		"prediction": "prev_sync", "compensation": "diag", "lambda": "0.5",
	}
	for method, settings := range elastic.Settings() {
		given, told := []string{"method: " + method}, []string{method}
		for _, name := range settings {
			value, known := set[name]
			if !known {
				t.Fatalf("setting %s of %s has no value in this test: give it one that is not the default", name, method)
			}
			given = append(given, name+": "+value)
			told = append(told, name+"="+value)
		}
		said := " " + lateSpec(t, "groups=1", "averaging={"+strings.Join(given, ", ")+"}").Averaging() + " "
		for _, want := range told {
			if !strings.Contains(said, " "+want+" ") {
				t.Errorf("%s is not told in %q", want, said)
			}
		}
	}
}
