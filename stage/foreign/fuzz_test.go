package foreign

import (
	"encoding/json"
	"math"
	"testing"

	"github.com/avgpipe/avgpipe/stage/layer"
)

var (
	builtSeed = `{"framework":"torch 1","copies":true,"modules":[{"name":"0","type":"Linear","parameters":[{"name":"0.w","shape":[2,2],"tied_to":"","trained":true}],"buffers":[{"name":"0.n","shape":[]}]},` +
		`{"name":"1","type":"Linear","parameters":[{"name":"1.w","shape":[2,2],"tied_to":"0.w","trained":true}],"buffers":[]}]}`
	probedSeed = `{"modules":[{"inputs":[{"shape":[4,2],"type":"f32"}],"outputs":[{"shape":[4,2],"type":"f32"},{"shape":[4],"type":"i32"}],"differentiable":[true,false],"saved_bytes":32,"forward_seconds":0.1,"backward_seconds":0.2},` +
		`{"inputs":[{"shape":[4,2],"type":"f32"},{"shape":[4],"type":"i32"}],"outputs":[{"shape":[4,3],"type":"f32"}],"differentiable":[true],"saved_bytes":0,"forward_seconds":0.1,"backward_seconds":0}]}`
)

// FuzzAnswers decodes texts as each of the answers. What is taken for an error is bounded.
func FuzzAnswers(f *testing.F) {
	for _, text := range []string{
		builtSeed, probedSeed, `{"version":4,"python":"3.11"}`, `{}`, `null`, `{"error":null}`, `{"error":{}}`, ` {"error":{"type":"E","message":"m","file":"f","line":-1,"traceback":["a"]}}`, `{} x`,
	} {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		for _, answer := range []any{nil, &helloAnswer{}, &Built{}, &probeAnswer{}} {
			switch err := decode(text, answer).(type) { //nolint:errorlint // it is not wrapped
			case nil:
				if !json.Valid(text) {
					t.Errorf("%q was read as %T", text, answer)
				}
			case *ProgramError:
				if err.Type == "" && err.Message == "" || len(err.Message) > longestText+8 || len(err.Traceback) > mostLines || err.Line < 0 {
					t.Errorf("%q was read as an error: %#v", text, err)
				}
			}
		}
	})
}

// FuzzModules makes layers of whatever a process may say. Those that are made have names, tensors and prices that others may rely on.
func FuzzModules(f *testing.F) {
	f.Add([]byte(builtSeed), []byte(probedSeed), 4)
	f.Add([]byte(`{"framework":"x","modules":[{"name":"a","type":"b"}]}`), []byte(`{"modules":[{"outputs":[{"shape":[1],"type":"f32"}],"differentiable":[true]}]}`), 1)
	f.Add([]byte(`{}`), []byte(`{}`), 0)
	f.Fuzz(func(t *testing.T, built, probed []byte, samples int) {
		var b Built
		var p probeAnswer
		if decode(built, &b) != nil || decode(probed, &p) != nil {
			return
		}
		var given []ProbeInput
		if len(p.Modules) > 0 {
			given = make([]ProbeInput, len(p.Modules[0].Inputs))
		}
		all, err := Modules(b, given, p.Modules, samples)
		if err != nil {
			return
		}
		names, elements := map[string]int{}, 0
		for _, m := range all {
			for _, of := range m.Parameters {
				n := layer.Param{Shape: of.Shape}.Len()
				if _, twice := names[of.Name]; twice || of.Name == "" || n < 1 {
					t.Errorf("a second %q, or one of %d elements", of.Name, n)
				}
				if first, ok := names[of.TiedTo]; of.TiedTo != "" && (!ok || first != n) {
					t.Errorf("%q is tied to %q of %d elements", of.Name, of.TiedTo, first)
				}
				names[of.Name] = n
				elements += n
			}
			if cost := m.Forward + m.Backward; math.IsNaN(cost) || math.IsInf(cost, 0) || cost < 0 {
				t.Errorf("%q costs %v", m.Name, cost)
			}
			if m.Name == "" || len(m.Outputs) == 0 {
				t.Errorf("%q has %d outputs", m.Name, len(m.Outputs))
			}
		}
		if elements < 0 || elements > mostElements {
			t.Errorf("%d elements", elements)
		}
		for i := range all[1:] {
			if len(all[i].Outputs) != len(all[i+1].Inputs) {
				t.Errorf("module %d gives %d tensors, and %d are taken", i, len(all[i].Outputs), len(all[i+1].Inputs))
			}
		}
	})
}
