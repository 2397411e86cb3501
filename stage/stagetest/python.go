package stagetest

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os/exec"
	"sync"
	"testing"

	"github.com/avgpipe/avgpipe/internal/envtest"
)

const python = "/usr/bin/python3"

// importTorch says why the interpreter has no PyTorch; "" when it has.
var importTorch = sync.OnceValue(func() string {
	out, err := exec.CommandContext(context.Background(), python, "-c", "import torch").CombinedOutput()
	if err != nil {
		return fmt.Sprintf("%v\n%s", err, out)
	}
	return ""
})

// Python is an interpreter that has PyTorch. Without one the test is skipped on a developer's machine; in CI, which installs it,
// it fails.
func Python(t testing.TB) string {
	t.Helper()
	if why := importTorch(); why != "" {
		envtest.Missing(t, "%s has no PyTorch: `make test-deps` installs it (%s)", python, why)
	}
	return python
}

// PyTorch runs a script that reads the request as JSON from its standard input and writes the answer as JSON.
func PyTorch(t testing.TB, script string, request, answer any) {
	t.Helper()
	in, err := json.Marshal(request)
	if err != nil {
		t.Fatal(err)
	}
	var out, errors bytes.Buffer
	c := exec.CommandContext(t.Context(), Python(t), script)
	c.Stdin, c.Stdout, c.Stderr = bytes.NewReader(in), &out, &errors
	if err := c.Run(); err != nil {
		t.Fatalf("%s: %v\n%s", script, err, &errors)
	}
	if err := json.Unmarshal(out.Bytes(), answer); err != nil {
		t.Fatalf("%s: %v", script, err)
	}
}
