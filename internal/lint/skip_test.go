package lint

import (
	"go/ast"
	"slices"
	"testing"
)

// impossible lists the tests that skip, in CI as well, what a machine cannot have whatever is installed.
var impossible = map[string]string{
	"stage/stagetest/each.go":         "an emulated device computes nothing",
	"stage/device/cpu/onednn_test.go": "a processor without AVX-512 or AVX2 cannot run their kernels",
	"stage/device/cpu/config_test.go": "a machine with as many cores as a CPU set holds has none that does not exist",
}

// TestSkipsFailInCI: a test says through internal/envtest what it lacks, so that CI cannot pass without it.
func TestSkipsFailInCI(t *testing.T) {
	used := map[string]bool{}
	for _, s := range allSources(t) {
		if s.dir() == "internal/envtest" {
			continue
		}
		ast.Inspect(s.tree, func(n ast.Node) bool {
			call, ok := n.(*ast.CallExpr)
			if !ok {
				return true
			}
			selector, ok := call.Fun.(*ast.SelectorExpr)
			if !ok {
				return true
			}
			if slices.Contains([]string{"Skip", "Skipf", "SkipNow"}, selector.Sel.Name) && (s.test() || forTests(s.dir())) {
				t.Errorf("%s: %s skips in CI as well: use envtest.Missing", s.at(call), selector.Sel.Name)
			}
			if from, ok := selector.X.(*ast.Ident); ok && from.Name == "envtest" && selector.Sel.Name == "Impossible" {
				used[s.name] = true
				if impossible[s.name] == "" {
					t.Errorf("%s: envtest.Impossible without a reason in this test's table", s.at(call))
				}
			}
			return true
		})
	}
	for name := range impossible {
		if !used[name] {
			t.Errorf("%s skips nothing impossible: take it out of the table", name)
		}
	}
}
