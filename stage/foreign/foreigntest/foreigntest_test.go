package foreigntest_test

import (
	"cmp"
	_ "embed"
	"flag"
	"os"
	"testing"

	"github.com/avgpipe/avgpipe/stage/foreign"
	"github.com/avgpipe/avgpipe/stage/foreign/foreigntest"
	"github.com/avgpipe/avgpipe/stage/stagetest"
)

//go:embed testdata/plain_stub.py
var plain []byte

func config(t *testing.T, stub []byte) foreign.Config {
	return foreign.Config{Interpreter: stagetest.Python(t), Stub: stub, Log: func(stream, line string) { t.Log(stream, line) }}
}

// onGPU is an interpreter with a GPU, for a run on a machine that has one.
var onGPU = flag.String("gpu-interpreter", "", "interpreter whose PyTorch has CUDA; none: one that pretends to")

// TestPyTorch also runs with copies, and on a GPU, which is pretended.
func TestPyTorch(t *testing.T) {
	for _, on := range []string{"", "cpu", "cuda"} {
		t.Run("on "+on, func(t *testing.T) {
			c := config(t, nil)
			if c.Device = on; on == "cuda" {
				c.Interpreter, c.GPU = cmp.Or(*onGPU, foreigntest.PretendGPU(t)), "0"
			}
			foreigntest.Run(t, foreigntest.Stub{Config: c, Program: foreign.Program{Path: "testdata/torch_modules.py", Function: "build", Loss: "loss"}})
		})
	}
}

// TestPlain has the checks themselves checked: by a stub that was written after the document alone.
func TestPlain(t *testing.T) {
	foreigntest.Run(t, foreigntest.Stub{Config: config(t, plain), Program: foreign.Program{Path: "testdata/plain_modules.py", Function: "build", Loss: "loss"}})
}

// TestStandIns checks what the stub for Python does with JAX and TensorFlow, by stand-ins of them: neither was run.
func TestStandIns(t *testing.T) {
	for _, framework := range []string{"jax", "tensorflow"} {
		t.Run(framework, func(t *testing.T) {
			c := config(t, nil)
			c.Env = append(os.Environ(), "PYTHONPATH=standins", "PYTHONDONTWRITEBYTECODE=1")
			foreigntest.Run(t, foreigntest.Stub{Config: c, Program: foreign.Program{Path: "testdata/" + framework + "_modules.py", Function: "build", Loss: "loss"}})
		})
	}
}
