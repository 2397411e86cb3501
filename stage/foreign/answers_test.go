package foreign_test

import (
	_ "embed"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/avgpipe/avgpipe/stage/foreign"
	"github.com/avgpipe/avgpipe/stage/stagetest"
)

//go:embed testdata/liar.py
var liar []byte

// framed is an answer as it is sent, in hexadecimal.
func framed(text string) string {
	return hex.EncodeToString(append(binary.LittleEndian.AppendUint32(nil, uint32(len(text))), text...)) //nolint:gosec // short
}

const (
	hello = `{"version":4,"python":"3.11.2"}`
	built = `{"framework":"torch 1","modules":[{"name":"0","type":"Linear","parameters":[{"name":"0.w","shape":[2,2],"tied_to":"","trained":true}],"buffers":[{"name":"0.n","shape":[]}]},` +
		`{"name":"1","type":"Linear","parameters":[{"name":"1.w","shape":[2,2],"tied_to":"0.w","trained":true}],"buffers":[]}]}`
	probed = `{"modules":[{"inputs":[{"shape":[4,2],"type":"f32"}],"outputs":[{"shape":[4,2],"type":"f32"}],"differentiable":[true],"saved_bytes":32,"forward_seconds":0.1,"backward_seconds":0.2},` +
		`{"inputs":[{"shape":[4,2],"type":"f32"}],"outputs":[{"shape":[4,3],"type":"f32"}],"differentiable":[true],"saved_bytes":0,"forward_seconds":0.1,"backward_seconds":0}]}`
)

// lie is what a stub answers, and what is expected to be said of it.
type lie struct {
	answers []string
	text    string
}

// TestAnswersThatAreNotBelieved has a stub answer what none may.
func TestAnswersThatAreNotBelieved(t *testing.T) {
	replace := func(text, old, by string) string {
		if !strings.Contains(text, old) {
			t.Fatalf("no %s in %s", old, text)
		}
		return framed(strings.Replace(text, old, by, 1))
	}
	inHello := func(text, expected string) lie { return lie{[]string{framed(text)}, expected} }
	asBuild := func(text, expected string) lie { return lie{[]string{framed(hello), framed(text)}, expected} }
	inBuild := func(old, by, expected string) lie {
		return lie{[]string{framed(hello), replace(built, old, by)}, expected}
	}
	inProbe := func(old, by, expected string) lie {
		return lie{[]string{framed(hello), framed(built), replace(probed, old, by)}, expected}
	}
	for name, c := range map[string]lie{
		"another version":       inHello(`{"version":5,"python":"3"}`, "version 5 of the protocol, expected 4"),
		"no version":            inHello(`{}`, "version 0 of the protocol, expected 4"),
		"no interpreter":        inHello(`{"version":4}`, "version of the interpreter has 0 bytes"),
		"a long answer":         {[]string{framed(hello), "01000001"}, "an answer of 16777217 bytes, expected at most 16777216"},
		"the longest answer":    {[]string{framed(hello), "ffffffff"}, "an answer of 4294967295 bytes, expected at most 16777216"},
		"two answers":           {[]string{framed(hello) + framed(built)}, "bytes came before the request, expected none"},
		"no JSON":               asBuild("built", `it is "built", expected an object of JSON`),
		"nothing":               asBuild("", "expected an object of JSON"),
		"null":                  asBuild("null", "expected an object of JSON"),
		"a list":                asBuild("[]", "expected an object of JSON"),
		"garbage behind":        asBuild(built+"x", "invalid character 'x' after top-level value"),
		"an error of nothing":   asBuild(`{"error":{}}`, "an error has neither a type nor a message"),
		"no modules":            asBuild(`{"framework":"x","modules":[]}`, "0 modules, expected 1 to"),
		"no framework":          inBuild("torch 1", "", "the framework has 0 bytes"),
		"a name twice":          inBuild(`"name":"1"`, `"name":"0"`, "a second module 0"),
		"no name":               inBuild(`"name":"1"`, `"name":""`, "the name has 0 bytes"),
		"a name of two lines":   inBuild(`"name":"1"`, `"name":"1\n"`, "expected characters that can be printed"),
		"no name of a tensor":   inBuild(`"0.w"`, `""`, "the name of a parameter has 0 bytes"),
		"a tensor twice":        inBuild(`"1.w"`, `"0.w"`, "a second tensor 0.w"),
		"a statistic twice":     inBuild(`"0.n"`, `"0.w"`, "a second tensor 0.w"),
		"a shape below 0":       inBuild(`[2,2]`, `[-2,-2]`, "shape [-2 -2]: expected dimensions above 0"),
		"a shape of nothing":    inBuild(`[2,2]`, `[2,0]`, "shape [2 0]: expected dimensions above 0"),
		"a shape that is large": inBuild(`[2,2]`, `[4294967296,4294967296]`, "expected at most 1099511627776 elements"),
		"a shape of fractions":  inBuild(`[2,2]`, `[2.5]`, "cannot unmarshal number 2.5"),
		"a shape of 2^64":       inBuild(`[2,2]`, `[18446744073709551617]`, "cannot unmarshal number"),
		"tied to nothing":       inBuild(`"tied_to":"0.w"`, `"tied_to":"2.w"`, "is tied to \"2.w\", expected a parameter in front of it"),
		"tied to itself":        inBuild(`"tied_to":"0.w"`, `"tied_to":"1.w"`, "expected a parameter in front of it"),
		"tied to a statistic":   inBuild(`"tied_to":"0.w"`, `"tied_to":"0.n"`, "expected a parameter in front of it"),
		"tied to another shape": inBuild(`"shape":[2,2]`, `"shape":[2,3]`, "it is tied to 0.w: shape [2 3]"),
		"one module tried":      inProbe(`{"modules":[{`, `{"modules":[],"x":[{`, "a dry run of 0 modules, expected the 2 that were built"),
		"other inputs":          inProbe(`[4,2]`, `[4,4]`, "its inputs are [{[4 4] f32}], expected [{[4 2] f32}]"),
		"inputs that nobody gave": inProbe(`"outputs":[{"shape":[4,2]`, `"outputs":[{"shape":[4,4]`,
			"its inputs are [{[4 2] f32}], expected [{[4 4] f32}]"),
		"no outputs":           inProbe(`"outputs":[{"shape":[4,3],"type":"f32"}],"differentiable":[true]`, `"outputs":[],"differentiable":[]`, "0 outputs"),
		"half said":            inProbe(`"differentiable":[true]`, `"differentiable":[]`, "1 outputs, of which 0 are said to be differentiable or not"),
		"another type":         inProbe(`[4,3],"type":"f32"`, `[4,3],"type":"f64"`, `output 0: type "f64", expected f32 or i32`),
		"gradient of integers": inProbe(`[4,3],"type":"f32"`, `[4,3],"type":"i32"`, "output 0 is differentiable and of type i32"),
		"bytes below 0":        inProbe(`"saved_bytes":32`, `"saved_bytes":-1`, "saved_bytes is -1"),
		"seconds below 0":      inProbe(`"forward_seconds":0.1`, `"forward_seconds":-1`, "forward_seconds is -1"),
		"seconds without end":  inProbe(`"backward_seconds":0.2`, `"backward_seconds":1e300`, "backward_seconds 1e+300"),
		"seconds that are NaN": inProbe(`"backward_seconds":0.2`, `"backward_seconds":NaN`, "invalid character 'N'"),
	} {
		t.Run(name, func(t *testing.T) {
			err := told(t, c.answers)
			var broke *foreign.ProtocolError
			if !errors.As(err, &broke) || !strings.Contains(err.Error(), c.text) {
				t.Errorf("found %v, expected what breaks the protocol: %s", err, c.text)
			}
		})
	}
	if err := told(t, []string{framed(hello), framed(built), framed(probed)}); err != nil {
		t.Errorf("answers that nothing was changed in: %v", err)
	}
}

// told is what comes of a stub's answers.
func told(t *testing.T, answers []string) error {
	t.Helper()
	p, err := foreign.Start(t.Context(), foreign.Config{
		Interpreter: stagetest.Python(t), Stub: liar, Env: append(os.Environ(), "ANSWERS="+strings.Join(answers, " ")),
		Log: func(stream, line string) { t.Log(stream, line) },
	})
	if err != nil {
		return err
	}
	defer func() {
		if err := p.Close(); err != nil {
			t.Error(err)
		}
	}()
	return try(p, "any", "any")
}

func TestInterpretersThatAreNone(t *testing.T) {
	script := filepath.Join(t.TempDir(), "script")
	if err := os.WriteFile(script, []byte("#!/bin/sh\nexec "+stagetest.Python(t)+" -S \"$@\"\n"), 0o700); err != nil { //nolint:gosec // it is to be run
		t.Fatal(err)
	}
	for _, c := range []struct{ interpreter, text string }{
		{"/no/such/python", "start /no/such/python: fork/exec /no/such/python: no such file or directory; expected the path of a Python interpreter, as in /usr/bin/python3"},
		{"./testdata", "permission denied; expected the path of a Python interpreter"},
		{"no-such-python", "executable file not found in $PATH; expected the path of a Python interpreter"},
		{"/bin/true", "start /bin/true: the interpreter ended while it was asked for hello: exit status 0"},
	} {
		p, err := foreign.Start(t.Context(), foreign.Config{Interpreter: c.interpreter})
		if err == nil || !strings.Contains(err.Error(), c.text) {
			t.Errorf("found %v, expected %s", err, c.text)
		}
		if p != nil {
			t.Error("a process was returned with an error")
		}
	}
	err := try(start(t, foreign.Config{Interpreter: script}), "testdata/mlp.py", "build")
	var program *foreign.ProgramError
	if !errors.As(err, &program) || program.Line != 3 || !strings.Contains(err.Error(), "mlp.py:3: ModuleNotFoundError: No module named 'torch'; the interpreter is ") {
		t.Errorf("an interpreter without PyTorch: %v", err)
	}
}
