package foreigntest

import (
	"embed"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/avgpipe/avgpipe/stage/stagetest"
)

//go:embed pretended/sitecustomize.py
var pretended embed.FS

// PretendGPU is an interpreter whose PyTorch finds a GPU, or those that CUDA_VISIBLE_DEVICES names, on a machine that has none: the processor computes what it is
// asked for, with the processor's bits. See pretended/sitecustomize.py.
func PretendGPU(t testing.TB) (interpreter string) {
	t.Helper()
	dir := t.TempDir()
	text, err := pretended.ReadFile("pretended/sitecustomize.py")
	if err == nil {
		err = os.WriteFile(filepath.Join(dir, "sitecustomize.py"), text, 0o600)
	}
	interpreter = filepath.Join(dir, "python3")
	if err == nil {
		script := fmt.Sprintf("#!/bin/sh\nPYTHONPATH=%s PYTHONDONTWRITEBYTECODE=1 exec %s \"$@\"\n", dir, stagetest.Python(t))
		err = os.WriteFile(interpreter, []byte(script), 0o700) //nolint:gosec // it is a program
	}
	if err != nil {
		t.Fatal(err)
	}
	return interpreter
}
