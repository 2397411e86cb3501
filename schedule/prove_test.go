package schedule

import (
	"strings"
	"testing"
)

func TestPlansThatNoJobCanRunAreNotProved(t *testing.T) {
	for text, want := range map[string]string{
		"F0 X0":                    "malformed",
		"F0":                       "missing",
		"0F0 1F0 1B0 0B0\n2F0 2B0": "uneven: device 0 has 2 stages, device 1 has 1; want the same number on each device",
	} {
		if plan, err := Prove(text); err == nil || plan != nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: plan %v, error %v; want %q", text, plan, err, want)
		}
	}
	for _, text := range []string{"F0 B0\nF0 B0", "0F0 1F0 1B0 0B0\n2F0 3F0 3B0 2B0"} {
		if plan, err := Prove(text); err != nil || len(plan) != 2 {
			t.Errorf("%q: plan %v, error %v", text, plan, err)
		}
	}
}
