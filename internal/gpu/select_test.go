package gpu

import (
	"fmt"
	"strings"
	"testing"
)

// found are three processors, the second of which is divided.
func found() []GPU {
	return []GPU{
		{Index: 0, UUID: "GPU-aa11", Name: "A100"},
		{Index: 1, UUID: "MIG-bb11", Parent: "GPU-bb", Name: "A100 MIG 3g.20gb"},
		{Index: 1, UUID: "MIG-bb22", Parent: "GPU-bb", Name: "A100 MIG 3g.20gb"},
		{Index: 2, UUID: "GPU-cc11", Name: "A100"},
	}
}

func TestSelection(t *testing.T) {
	for _, c := range []struct {
		wanted  []string
		visible *string
		want    string // UUIDs, or the beginning of an error
	}{
		{nil, nil, "GPU-aa11 MIG-bb11 MIG-bb22 GPU-cc11"},
		{[]string{"all"}, nil, "GPU-aa11 MIG-bb11 MIG-bb22 GPU-cc11"},
		{[]string{"none"}, nil, ""},
		{[]string{}, nil, ""},
		{[]string{"2", "0"}, nil, "GPU-aa11 GPU-cc11"},
		{[]string{"1"}, nil, "MIG-bb11 MIG-bb22"},
		{[]string{"GPU-bb"}, nil, "MIG-bb11 MIG-bb22"},
		{[]string{"MIG-bb22", "0"}, nil, "GPU-aa11 MIG-bb22"},
		{[]string{"0", "all"}, nil, "the GPUs that are asked for cannot be used: all stands alone"},
		{[]string{"7"}, nil, "the GPUs that are asked for cannot be used: there is no GPU 7; found: 0 (A100, GPU-aa11), 1 (A100 MIG 3g.20gb, MIG-bb11)"},
		{[]string{"GPU-cc11", "2"}, nil, "the GPUs that are asked for cannot be used: GPU 2 (A100, GPU-cc11) is named twice, as GPU-cc11 and as 2; name it once"},
		{[]string{"1", "MIG-bb22"}, nil, "the GPUs that are asked for cannot be used: GPU 1 (A100 MIG 3g.20gb, MIG-bb22) is named twice, as 1 and as MIG-bb22"},
		{nil, new(""), ""},
		{nil, new("-1"), ""},
		{nil, new("0,2"), "GPU-aa11 GPU-cc11"},
		{nil, new("2, GPU-aa"), "GPU-aa11 GPU-cc11"},
		{nil, new("0,9,2"), "GPU-aa11"}, // as CUDA does
		{nil, new("MIG-bb22"), "MIG-bb22"},
		{nil, new("MIG-bb2,GPU-bb,0"), "GPU-aa11 MIG-bb11 MIG-bb22"}, // one by its beginning, both by their processor
		{nil, new("0,MIG-bb"), "the GPUs that are asked for cannot be used: MIG-bb in CUDA_VISIBLE_DEVICES=0,MIG-bb begins the UUIDs of 2 GPUs: 1 (A100"},
		{[]string{"0"}, new("GPU-"), "the GPUs that are asked for cannot be used: GPU- in CUDA_VISIBLE_DEVICES=GPU- begins the UUIDs of 2 GPUs: 0 (A100"},
		{[]string{"none"}, new("GPU-"), ""},
		{[]string{"0"}, new("0,2"), "GPU-aa11"},
		{[]string{"1"}, new("MIG-bb11"), "MIG-bb11"},
		{[]string{"0", "1"}, new("0,2"), "the GPUs that are asked for cannot be used: CUDA_VISIBLE_DEVICES=0,2 hides GPU 1"},
	} {
		all, err := Selection{Wanted: c.wanted, Visible: c.visible}.Of(found())
		var got []string
		for _, g := range all {
			got = append(got, g.UUID)
		}
		text := strings.Join(got, " ")
		if err != nil {
			text = err.Error()
		}
		if text != c.want && (err == nil || !strings.HasPrefix(text, c.want)) {
			visible := "not set"
			if c.visible != nil {
				visible = fmt.Sprintf("%q", *c.visible)
			}
			t.Errorf("%v of those visible (%s): %q, want %q", c.wanted, visible, text, c.want)
		}
	}
}

func TestSelectionOfNothingFound(t *testing.T) {
	if _, err := (Selection{Wanted: []string{"0"}}).Of(nil); err == nil || err.Error() != "the GPUs that are asked for cannot be used: there is no GPU 0; found: none" {
		t.Errorf("error is %v", err)
	}
}

// TestGPUsThatKernelsDoNotRunOnAreHidden, and it is said why; what the driver does not say is no reason.
func TestGPUsThatKernelsDoNotRunOnAreHidden(t *testing.T) {
	all := []GPU{{Index: 0, Name: "Tesla V100", UUID: "GPU-v", ComputeCapability: "7.0"}, {Index: 1, Name: "H100", UUID: "GPU-h", ComputeCapability: "9.0"}, {Index: 2, UUID: "GPU-u"}}
	s := Selection{LeastCapability: 8}
	const why = "GPU 0 (Tesla V100): compute capability 7.0, the kernels need 8.0"
	if chosen, err := s.Of(all); err != nil || len(chosen) != 2 || chosen[0].UUID != "GPU-h" || chosen[1].UUID != "GPU-u" || s.Hides(all) != why {
		t.Errorf("jobs get %v, %v; hidden: %q", chosen, err, s.Hides(all))
	}
	s.Visible = new("0,1")
	if got := s.Hides(all); got != why+"; CUDA_VISIBLE_DEVICES=0,1 hides 1 of the 3 GPUs of this host: 2 (, GPU-u)" {
		t.Errorf("hidden: %q", got)
	}
	s.Wanted = []string{"1", "0"}
	if _, err := s.Of(all); err == nil || err.Error() != "the GPUs that are asked for cannot be used: "+why {
		t.Errorf("error is %v", err)
	}
}
