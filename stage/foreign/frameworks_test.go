package foreign_test

import (
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"github.com/avgpipe/avgpipe/stage"
	"github.com/avgpipe/avgpipe/stage/foreign"
	"github.com/avgpipe/avgpipe/stage/stagetest"
)

// standIns has interpreters find the stand-ins of JAX and TensorFlow: neither framework was run.
func standIns(t *testing.T) {
	t.Helper()
	path, err := filepath.Abs("foreigntest/standins")
	if err != nil {
		t.Fatal(err)
	}
	t.Setenv("PYTHONPATH", path)
	t.Setenv("PYTHONDONTWRITEBYTECODE", "1")
}

// TestTrainsAsPlainProgramsOfStandIns trains a model with dropout and batch norm by stages, and as a plain program of JAX or TensorFlow does, both on the
// stand-in of the framework.
func TestTrainsAsPlainProgramsOfStandIns(t *testing.T) {
	standIns(t)
	of := images()
	var all []twice
	for _, framework := range []string{"jax", "tensorflow"} {
		for _, pipeline := range []stagetest.PipelineConfig{{Stages: 3}, {Stages: 2, Recompute: stage.RecomputeFull}} {
			all = append(all, twice{
				name: fmt.Sprintf("%s in %d stages, recompute %s", framework, pipeline.Stages, pipeline.Recompute), of: of, pipeline: pipeline, exact: true,
				program: foreign.Program{Path: "testdata/" + framework + "_models.py", Function: "build", Loss: "loss", Inputs: []foreign.ProbeInput{of.input}},
			})
		}
	}
	trainTwice(t, "testdata/plain_frameworks.py", all)
}

// TestRefusedProgramsOfStandIns: what cannot be used is refused with the user's line.
func TestRefusedProgramsOfStandIns(t *testing.T) {
	standIns(t)
	for framework, all := range map[string][]refusal{
		"jax": {
			{"number", "", "number returned: int; expected a module of PyTorch or a list of them; or of JAX a list of pairs (init, apply)"},
			{"mixed", "", "module 1 of what build returned is of int; expected a pair (init, apply) of functions, or an object with init and apply"},
			{"no_pair", "", "module 1 of what build returned is a tuple of function; expected a pair"},
			{"init_gives_array", "", "init of module 0 (init_gives_array) gave Array; expected a pair of the output's shape and parameters, as in stax"},
			{"init_gives_list", "", "init of module 0 (Lists) gave list; expected a dictionary of collections of variables"},
			{"integers", "", "parameter 0.1 is of int32; expected float32"},
			{"floats", "", "parameter 0.rate is of float; expected an array of float32"},
			{"one_array", "", "parameters 0.a and 0.b are one array; expected an array for each"},
			{"raises", "ValueError", "not today"},
			{"shapes", "ValueError", "matmul"},
			{"gives_dict", "", "output 0 of module 0 (gives_dict) is of dict; expected a tensor"},
			{"gives_half", "", "output 0 of module 0 (gives_half) is of float16; expected float32"},
			{"by_values", "TracerBoolConversionError", "Attempted boolean conversion of traced array"},
			{"writes", "TypeError", "JAX arrays are immutable"},
			{"other_arguments", "", "module 0 (other_arguments): "},
			{"hidden_state", "", "output 0 of module 0 (Hidden) differs between two forwards"},
		},
		"tensorflow": {
			{"number", "", "; or of TensorFlow a keras.Sequential, a list of layers or modules, or one of them"},
			{"mixed", "", "module 1 of what build returned is of int; expected a layer of Keras or a module of TensorFlow"},
			{"double", "", "parameter 0.kernel is of float64; expected float32"},
			{"raises", "ValueError", "not today"},
			{"gives_dict", "", "output 0 of module 0 (Dict) is of dict; expected a tensor"},
			{"gives_double", "", "output 0 of module 0 (Double) is of float64; expected float32"},
			{"no_gradient", "", "no gradient flows from the outputs of module 1 (Stops) to any of its inputs"},
			{"other_arguments", "", "module 0 (Other): "},
			{"hidden_state", "", "output 0 of module 0 (Hidden) differs between two forwards"},
			{"borrows", "", "the gradient of parameter 0.kernel is another when modules run one by one"},
		},
	} {
		file := "testdata/refused_" + framework + ".py"
		p := start(t, foreign.Config{Interpreter: stagetest.Python(t)})
		for _, c := range all {
			t.Run(framework+" "+c.function, func(t *testing.T) {
				inputs := []foreign.ProbeInput{{Shape: []int{samples, 2}, Type: "f32"}}
				_, err := p.Build(foreign.Program{Path: file, Function: c.function, Inputs: inputs}, 1)
				if err == nil {
					_, err = p.Probe(foreign.Probe{Inputs: inputs})
				}
				found, ok := errors.AsType[*foreign.ProgramError](err)
				if !ok || found.Type != c.kind || !strings.Contains(found.Message, c.text) {
					t.Fatalf("found %v, expected %q: %s", err, c.kind, c.text)
				}
				if line := lineOf(t, file, c.function); found.Line != line || filepath.Base(found.File) != filepath.Base(file) {
					t.Errorf("found %s:%d, expected line %d: %v", found.File, found.Line, line, err)
				}
			})
		}
	}
}

// refusal is a program that is refused, and how.
type refusal struct{ function, kind, text string }

// TestAFrameworkThatIsMissing is said with the user's line and the interpreter. An interpreter that has it wants to know what modules are made for.
func TestAFrameworkThatIsMissing(t *testing.T) {
	p := start(t, foreign.Config{Interpreter: stagetest.Python(t)})
	for framework, line := range map[string]int{"jax": 3, "tensorflow": 3} {
		_, err := p.Build(foreign.Program{Path: "testdata/" + framework + "_models.py", Function: "build"}, 1)
		missing := fmt.Sprintf("%s_models.py:%d: ModuleNotFoundError: No module named '%s'; the interpreter is ", framework, line, framework)
		if err == nil || !strings.Contains(err.Error(), missing) && !strings.Contains(err.Error(), "build without inputs") {
			t.Errorf("found %v, expected %s", err, missing)
		}
	}
}
