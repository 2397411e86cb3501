package elastic

import (
	"fmt"
	"strings"

	"github.com/avgpipe/avgpipe/stage/flat"
)

// Age says of a run of a model's layers how old what pipelines apply there is: the mean gradient of so many steps before or, with methods that average weights, the center of so many rounds before.
type Age struct {
	From, To int // layers, To beyond the last
	Rounds   int
}

// Ages are those of all layers of a model, from the input, after the rounds in which nothing is late.
func Ages(m Method, layers int) (all []Age) {
	var l Layout
	for i := range layers {
		l = append(l, Run{Range: flat.Range{From: i, To: i + 1}, Layer: i, Trained: i})
	}
	for _, s := range Cut(m, l) {
		age := Age{s.From, s.To, 0}
		if s.Rules.Needs().Timing == Before && !s.Rules.Needs().Identity {
			age.Rounds = 1
		}
		if last := len(all) - 1; last >= 0 && all[last].Rounds == age.Rounds {
			all[last].To = age.To
			continue
		}
		all = append(all, age)
	}
	return all
}

// AgesText says it for people: "layers 0-2: gradients of the step before; layers 3-9: gradients of this step".
func AgesText(m Method, layers int) string {
	what, when := "the center", [2]string{"of this round", "of the round before"}
	if m.Needs().Gradients {
		what, when = "gradients", [2]string{"of this step", "of the step before"}
	}
	if period := m.Needs().Period; period > 1 {
		return fmt.Sprintf("all layers, in fragments that are exchanged in turn: the center of 1 to %d rounds before", period)
	}
	if turns := m.Needs().Turns; turns > 1 {
		return fmt.Sprintf("all layers: the center, which pipelines visit in turn, each in every %d rounds", turns)
	}
	ages := Ages(m, layers)
	var parts []string
	for _, a := range ages {
		of := "all layers"
		if len(ages) > 1 {
			of = fmt.Sprintf("layers %d-%d", a.From, a.To-1)
		}
		parts = append(parts, fmt.Sprintf("%s: %s %s", of, what, when[a.Rounds]))
	}
	return strings.Join(parts, "; ")
}
