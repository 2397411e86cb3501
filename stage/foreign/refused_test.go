package foreign_test

import (
	"bufio"
	"errors"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/avgpipe/avgpipe/stage/foreign"
	"github.com/avgpipe/avgpipe/stage/stagetest"
)

// lineOf is the line of a file whose comment says that it is that of a program; 0: there is none.
func lineOf(t *testing.T, file, program string) int {
	t.Helper()
	f, err := os.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	lines := bufio.NewScanner(f)
	for n := 1; lines.Scan(); n++ {
		if _, names, ok := strings.Cut(lines.Text(), "# at: "); ok && slices.Contains(strings.Fields(names), program) {
			return n
		}
	}
	return 0
}

// try builds and tries a program on samples of two numbers.
func try(p *foreign.Process, file, function string) error {
	const samples = 4
	file, loss, _ := strings.Cut(file, ":")
	built, err := p.Build(foreign.Program{Path: file, Function: function, Loss: loss}, 1)
	if err != nil {
		return err
	}
	inputs := []foreign.ProbeInput{{Shape: []int{samples, 2}, Type: "f32"}}
	probed, err := p.Probe(foreign.Probe{Inputs: inputs, Targets: []foreign.ProbeInput{{Shape: []int{samples}, Type: "i32"}}})
	if err != nil {
		return err
	}
	_, err = foreign.Modules(built, inputs, probed, samples)
	return err
}

// start starts an interpreter that is closed with the test.
func start(t *testing.T, c foreign.Config) *foreign.Process {
	t.Helper()
	if c.Log == nil {
		c.Log = func(stream, line string) { t.Log(stream, line) }
	}
	p, err := foreign.Start(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := p.Close(); err != nil {
			t.Error(err)
		}
	})
	return p
}

// TestRefusedPrograms tries one program after the other in one process: none harms the next.
func TestRefusedPrograms(t *testing.T) {
	p := start(t, foreign.Config{Interpreter: stagetest.Python(t)})
	const refused = "refused.py"
	for _, c := range []struct{ file, function, kind, text string }{
		{refused, "raises", "KeyError", "'width'"},
		{refused, "raises_weird", "Weird", "its text cannot be had: RuntimeError"},
		{refused, "raises_long", "ValueError", "... (10485760 characters)"},
		{refused, "raises_deep", "RecursionError", "maximum recursion depth"},
		{refused, "exits", "SystemExit", "3; expected that nothing ends the interpreter"},
		{refused, "interrupts", "KeyboardInterrupt", ""},
		{refused, "reads", "EOFError", "EOF when reading a line"},
		{refused, "shrinks", "PermissionError", "Operation not permitted"},
		{refused, "missing", "", "has no function missing; expected one, which returns the modules; it has Weird, raises, raises_weird, raises_long, raises_deep"},
		{"syntax.py", "build", "SyntaxError", "invalid syntax"},
		{"imports_syntax.py", "build", "SyntaxError", "invalid syntax"},
		{"imports_missing.py", "build", "ModuleNotFoundError", "No module named 'no_such_module'; the interpreter is " + stagetest.Python(t)},
		{"no_such_file.py", "build", "FileNotFoundError", "no_such_file.py"},
		{"refused.txt", "build", "", "is no Python file; expected a name that ends in .py"},
		{refused + ":no_loss", "number", "", "refused.py has no function no_loss; expected one, which gives the loss of logits and targets"},
		{refused, "number", "", "number returned: int; expected a module of PyTorch or a list of them"},
		{refused, "empty", "", "empty returned: empty list; expected a module of PyTorch"},
		{refused, "mixed", "", "module 1 of what build returned is of int; expected a module of PyTorch"},
		{refused, "scripted", "", "module 0 of what build returned is compiled by TorchScript"},
		{refused, "no_modules", "", "build returned a Sequential without modules; expected at least one"},
		{refused, "gives_no_gradient", "", "no gradient flows through any output of module 1 (Of), so that nothing in front of it learns"},
		{refused, "detaches", "", "no gradient flows from the outputs of module 1 (Of) to any of its inputs, so that nothing in front of it learns"},
		{refused, "reads_another", "", "the gradient of module 2 (Of) flows to what another one computed, by another way than its inputs"},
		{refused, "reads_what_was", "", "module 2 (Of) gives something else of the same inputs when it runs alone, after the others ran on other samples"},
		{refused + ":no_number", "fine", "", "the loss function gave torch.float32 of shape (4, 2); expected a tensor of torch.float32 with one number"},
		{refused + ":no_gradient", "fine", "", "the loss function gave a number that no gradient flows through"},
		{refused + ":has_parameters", "fine", "", "the loss function computes with a parameter of its own, of shape (2,), which nothing trains"},
		{refused + ":weighs_the_model", "of_the_file", "", "the loss function computes with parameter weight of the model, of which it has the value that build made"},
		{refused + ":adds_up", "fine", "", "the loss function adds over samples: it gives "},
		{refused + ":of_logits", "fine", "TypeError", "the loss function: of_logits() takes 1 positional argument but 2 were given"},
		{refused + ":wrong_shape", "fine", "RuntimeError", "the loss function: shape '[-1, 3]' is invalid for input of size 4"},
		{refused, "gives_dict", "", "output 0 of module 1 (Of) is of dict; expected a tensor, or a tuple of tensors"},
		{refused, "gives_sparse", "", "output 0 of module 1 (Of) is on cpu and of layout torch.sparse_coo; expected a dense tensor of the processor"},
		{refused, "gives_nothing", "", "module 1 (Of) gave a tuple of 0; expected a tensor"},
		{refused, "gives_double", "", "output 0 of module 1 (Of) is of torch.float64; expected torch.float32, as of x.float()"},
		{refused, "gives_half", "", "output 0 of module 1 (Of) is of torch.bfloat16"},
		{refused, "gives_no_elements", "", "output 0 of module 1 (Of) has no elements: shape (4, 0)"},
		{refused, "forward_raises", "RuntimeError", "module 1 (Of), which was given torch.float32 of shape (4, 2): mat1 and mat2 shapes cannot be multiplied"},
		{refused, "library_raises", "RuntimeError", "module 1 (Linear), which was given torch.float32 of shape (4, 3): mat1 and mat2 shapes cannot be multiplied"},
		{refused, "takes_one_tensor", "TypeError", "module 1 (Linear), which was given a tuple of torch.float32 of shape (4, 2) and torch.float32 of shape (4, 2): "},
		{refused, "backward_raises", "ValueError", "the backward of module 1 (Of): no gradient today"},
		{refused, "shape_changes", "", "output 0 of module 1 (Of) has shape (4, 1) and then (4, 2)"},
		{refused, "count_changes", "", "module 1 (Of) gave 2 and then 3 tensors"},
		{refused, "hidden_state", "", "output 0 of module 1 (Of) differs between two forwards"},
		{refused, "strided", "", "parameter 0.weight is not contiguous: shape (3, 2), strides (1, 3)"},
		{refused, "shared", "", "parameters 0.weight and 1.weight share memory"},
		{refused, "shared_statistic", "", "running statistics 0.running_mean and 2.running_mean are one tensor"},
		{refused, "double", "", "parameter 0.weight is of torch.float64; expected torch.float32"},
		{refused, "half", "", "parameter 0.weight is of torch.bfloat16; expected torch.float32"},
		{refused, "lazy", "", "parameter 0.weight has no shape yet"},
		{refused, "no_elements", "", "parameter 0.weight has no elements"},
		{refused, "wide_statistic", "", "running statistic 0.big is of torch.int64 and has values that torch.float32 has not"},
		{refused, "changes_in_place", "", "the forward changed parameter 0.weight; expected that only the optimizer changes it"},
		{refused, "changes_data", "", "the forward changed parameter 0.weight"},
		{refused, "replaces", "", "the forward changed parameter 0.weight"},
		{refused, "hides", "", "module 0 (Hides) computes with parameter 0.weight from elsewhere than where it is registered"},
		{refused, "borrows", "", "module 1 (Of) computes with parameter 0.weight from elsewhere"},
		{refused, "unregistered", "", "module 1 (Of) computes with a parameter of shape (2, 2) that is none of its parameters()"},
		{refused, "makes", "", "the forward made parameter 0.scale; expected that build makes them all"},
	} {
		t.Run(c.file+":"+c.function, func(t *testing.T) {
			var err *foreign.ProgramError
			if found := try(p, filepath.Join("testdata", c.file), c.function); !errors.As(found, &err) {
				t.Fatalf("found %v, expected an error of the program", found)
			}
			t.Log(len(err.Error()), err.Error()[:min(300, len(err.Error()))])
			if err.Type != c.kind || !strings.Contains(err.Message, c.text) {
				t.Errorf("found %q: %.300q, expected %q: %q", err.Type, err.Message, c.kind, c.text)
			}
			at, loss, _ := strings.Cut(c.file, ":")
			line := 0
			switch at {
			case refused:
				if line = lineOf(t, filepath.Join("testdata", at), loss); line == 0 {
					line = lineOf(t, filepath.Join("testdata", at), c.function)
				}
			case "imports_syntax.py", "syntax.py":
				at, line = "syntax.py", 4
			case "imports_missing.py":
				line = 1
			}
			if line == 0 {
				at = ""
			}
			if err.Line != line || filepath.Base("/"+err.File) != filepath.Base("/"+at) {
				t.Errorf("found %s:%d, expected %s:%d", err.File, err.Line, at, line)
			}
			if len(err.Error()) > 32<<10 {
				t.Errorf("the error has %d bytes", len(err.Error()))
			}
		})
	}
	for function, text := range map[string]string{
		"gives_none_of_samples": "module 1 (Of): output 0 has shape []: expected its first dimension to be the 4 samples",
	} {
		if err := try(p, "testdata/"+refused, function); err == nil || err.Error() != text {
			t.Errorf("%s: found %v, expected %s", function, err, text)
		}
	}
	if _, err := p.Build(foreign.Program{Path: "testdata/refused.py", Function: "mixed", Args: map[string]any{"x": math.NaN()}}, 1); err == nil || !strings.Contains(err.Error(), "the request was not sent") {
		t.Errorf("an argument that is no number: %v", err)
	}
	for _, function := range []string{"not_a_number", "gradient_not_a_number", "infinite", "differentiates", "switches_gradients_off", "spectral", "repeats_a_module", "replaces_clock", "whole", "skips", "frozen_in_front", "computes_in_double"} {
		if err := try(p, "testdata/accepted.py", function); err != nil {
			t.Errorf("%s: %v", function, err)
		}
	}
}

// TestAModuleThatIsRepeatedRunsTwice holds what a Sequential of PyTorch does, whose named_children lists it once.
func TestAModuleThatIsRepeatedRunsTwice(t *testing.T) {
	p := start(t, foreign.Config{Interpreter: stagetest.Python(t)})
	built, err := p.Build(foreign.Program{Path: "testdata/accepted.py", Function: "repeats_a_module"}, 1)
	if err != nil {
		t.Fatal(err)
	}
	var names, tied []string
	for _, m := range built.Modules {
		names = append(names, m.Name+" "+m.Type)
		for _, p := range m.Parameters {
			tied = append(tied, p.Name+"="+p.TiedTo)
		}
	}
	if found, expected := strings.Join(names, ", "), "0 Linear, 1 ReLU, 2 Linear, 3 ReLU"; found != expected {
		t.Errorf("found modules %s, expected %s", found, expected)
	}
	if found, expected := strings.Join(tied, " "), "0.weight= 0.bias= 2.weight=0.weight 2.bias=0.bias"; found != expected {
		t.Errorf("found parameters %s, expected %s", found, expected)
	}
}
