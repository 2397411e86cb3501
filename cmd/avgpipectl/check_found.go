package main

import (
	"fmt"
	"strings"

	"github.com/avgpipe/avgpipe/stage/foreign"
	"github.com/avgpipe/avgpipe/stage/model"
)

// checkedModules is what `check` finds.
type checkedModules struct {
	Framework string     `json:"framework"`
	Task      model.Task `json:"task"`
	// Samples are how many the program makes, of the task samples.
	Samples *model.SampleCounts `json:"samples,omitempty"`
	Modules []checkedModule     `json:"modules"`
	Stages  []checkedStages     `json:"stages"` // from 2 on
	Within  []string            `json:"within"` // modules that have parameters, of the program's own
}

// checkedModule is a module; times and bytes are of one sample.
type checkedModule struct {
	Name            string   `json:"name"`
	Parameters      int      `json:"parameters"` // elements
	ForwardSeconds  float64  `json:"forward_seconds"`
	BackwardSeconds float64  `json:"backward_seconds"`
	KeptBytes       int64    `json:"kept_bytes"` // from the forward to the backward
	Takes           []string `json:"takes"`
	Gives           []string `json:"gives"`
	Part            float64  `json:"part"` // of the time of all
}

// checkedStages is what so many stages would be at best.
type checkedStages struct {
	Stages  int      `json:"stages"`
	Speedup float64  `json:"speedup"` // the time of all modules in that of the slowest stage
	Before  []string `json:"before"`  // the first module of each stage but the first
}

func checkOf(c *model.ModulesConfig) *checkedModules {
	found := &checkedModules{Framework: c.Framework, Task: c.Task}
	if c.Task == model.Samples {
		found.Samples = &c.Samples
	}
	total := 0.0
	var times []float64
	seen := map[string]bool{}
	for _, m := range c.Modules {
		one := checkedModule{
			Name: m.Name, ForwardSeconds: foreign.Seconds(m.Forward), BackwardSeconds: foreign.Seconds(m.Backward), KeptBytes: int64(m.Kept), Takes: shapes(m.Inputs), Gives: shapes(m.Outputs),
		}
		for _, p := range m.Parameters {
			if p.TiedTo == "" && !p.Running {
				one.Parameters += elements(p.Shape)
			}
			if name := within(p.Name); name != "" && !seen[name] {
				seen[name] = true
				found.Within = append(found.Within, name)
			}
		}
		times = append(times, one.ForwardSeconds+one.BackwardSeconds)
		total += one.ForwardSeconds + one.BackwardSeconds
		found.Modules = append(found.Modules, one)
	}
	for i := range found.Modules {
		if total > 0 {
			found.Modules[i].Part = times[i] / total
		}
	}
	const most = 8
	for k := 2; k <= min(most, len(times)) && total > 0; k++ {
		begins, slowest := balanced(times, k)
		s := checkedStages{Stages: k, Speedup: total / slowest}
		for _, at := range begins[1:] {
			s.Before = append(s.Before, found.Modules[at].Name)
		}
		found.Stages = append(found.Stages, s)
	}
	return found
}

// within is the module of the program that has a parameter: "down" of "down.conv.weight", "blocks.3" of "blocks.3.norm.bias", "" of its own.
func within(parameter string) string {
	parts := strings.Split(parameter, ".")
	n := 1
	if len(parts) > 2 && strings.Trim(parts[1], "0123456789") == "" {
		n = 2
	}
	if len(parts) <= n {
		return ""
	}
	return strings.Join(parts[:n], ".")
}

func elements(shape []int) int {
	n := 1
	for _, d := range shape {
		n *= d
	}
	return n
}

// shapes are those of tensors, of one sample.
func shapes(ports []model.ModulePort) (all []string) {
	for _, p := range ports {
		all = append(all, p.Type+strings.ReplaceAll(fmt.Sprint(p.Shape), " ", ","))
	}
	return all
}

// balanced cuts times into k consecutive parts, each with one at least, of which the slowest takes as little as possible. It returns where the parts begin.
func balanced(times []float64, k int) (begins []int, slowest float64) {
	n := len(times)
	best := make([][]float64, k+1) // best[j][i]: the slowest of j parts of the first i
	from := make([][]int, k+1)
	for j := range best {
		best[j], from[j] = make([]float64, n+1), make([]int, n+1)
	}
	for j := 1; j <= k; j++ {
		for i := j; i <= n; i++ {
			sum := 0.0
			best[j][i] = -1
			for at := i - 1; at >= j-1; at-- {
				sum += times[at]
				if j == 1 && at > 0 {
					continue
				}
				if worst := max(best[j-1][at], sum); best[j][i] < 0 || worst < best[j][i] {
					best[j][i], from[j][i] = worst, at
				}
			}
		}
	}
	begins = make([]int, k)
	for j, i := k, n; j > 0; j-- {
		i = from[j][i]
		begins[j-1] = i
	}
	return begins, best[k][n]
}
