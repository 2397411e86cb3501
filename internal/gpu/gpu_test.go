package gpu

import (
	"slices"
	"testing"
)

func TestASickProcessorIsNotUsable(t *testing.T) {
	var all []GPU
	for i, level := range []Level{Healthy, Sick, Degraded} {
		all = append(all, GPU{Index: i, Health: Health{Level: level}})
	}
	if got := Usable(all); len(got) != 2 || got[0].Index != 0 || got[1].Index != 2 || len(all) != 3 || all[1].Index != 1 {
		t.Errorf("usable are %v of %v", got, all)
	}
}

func TestTheGravestReasonMakesTheLevel(t *testing.T) {
	hot, lost := Reason{"thermal", Degraded, "hot"}, Reason{"lost", Sick, "lost"}
	h := healthOf([]Reason{hot, lost})
	if h.Level != Sick || !slices.Equal(h.Reasons, []Reason{lost, hot}) || h.String() != "sick: lost" {
		t.Errorf("health is %+v", h)
	}
	if h := healthOf(nil); h.Level != Healthy || h.Reasons == nil || h.String() != "healthy" {
		t.Errorf("health without a reason is %+v", h)
	}
}
