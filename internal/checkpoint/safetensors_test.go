package checkpoint_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/avgpipe/avgpipe/internal/checkpoint"
)

// tensorFile assembles a file from a header and data, as the format's specification has it.
func tensorFile(header, data string) string {
	return string(binary.LittleEndian.AppendUint64(nil, uint64(len(header)))) + header + data
}

// floats is little-endian float32.
func floats(values ...float32) string {
	var b []byte
	for _, v := range values {
		b = binary.LittleEndian.AppendUint32(b, math.Float32bits(v))
	}
	return string(b)
}

// values are the tensors that tests write.
var values = map[string][]float32{
	"h.0.weight": {1, 2, 3, 4, 5, 6},
	"bias":       {-0.5, float32(math.Inf(1))},
	"empty":      {},
	"scalar":     {42},
}

func shapes() []checkpoint.Tensor {
	return []checkpoint.Tensor{
		{Name: "scalar"}, {Name: "h.0.weight", Shape: []int{2, 3}}, {Name: "empty", Shape: []int{0, 7}}, {Name: "bias", Shape: []int{2}},
	}
}

func readValues(t checkpoint.Tensor, dst []float32, offset int) error {
	copy(dst, values[t.Name][offset:])
	return nil
}

func write(t *testing.T, path string) string {
	t.Helper()
	if err := writeTensors(path, shapes(), map[string]string{"format": "pt"}, readValues); err != nil {
		t.Fatal(err)
	}
	return read(t, path)
}

// writeTensors writes a file and holds its length against what was announced.
func writeTensors(path string, tensors []checkpoint.Tensor, metadata map[string]string, read checkpoint.ReadTensor) error {
	length, encode, err := checkpoint.EncodeSafetensors(tensors, metadata, read)
	if err != nil {
		return err
	}
	var b bytes.Buffer
	if err := encode(&b); err != nil {
		return err
	}
	if int64(b.Len()) != length {
		return fmt.Errorf("%d bytes were written, %d announced", b.Len(), length)
	}
	return os.WriteFile(path, b.Bytes(), 0o600)
}

// open writes text as a file, opens it and verifies it.
func open(t *testing.T, text string) (*checkpoint.Safetensors, error) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "model.safetensors")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	s, err := checkpoint.OpenSafetensors(path, os.Open)
	if err == nil {
		err = s.Verify()
		t.Cleanup(func() {
			if err := s.Close(); err != nil {
				t.Error(err)
			}
		})
	}
	if err != nil && !strings.Contains(err.Error(), path) {
		t.Errorf("error %v: expected the file's name", err)
	}
	return s, err
}

// TestLayoutIsTheSpecifications: byte for byte, but for the 64 digits of the digest.
func TestLayoutIsTheSpecifications(t *testing.T) {
	zeros := strings.Repeat("0", 64)
	header := `{"__metadata__":{"avgpipe.sha256":"` + zeros + `","format":"pt"},` +
		`"bias":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},` +
		`"empty":{"dtype":"F32","shape":[0,7],"data_offsets":[8,8]},` +
		`"h.0.weight":{"dtype":"F32","shape":[2,3],"data_offsets":[8,32]},` +
		`"scalar":{"dtype":"F32","shape":[],"data_offsets":[32,36]}}`
	for len(header)%8 != 0 {
		header += " "
	}
	expected := tensorFile(header, floats(-0.5, float32(math.Inf(1)), 1, 2, 3, 4, 5, 6, 42))
	got := write(t, filepath.Join(t.TempDir(), "model.safetensors"))
	at := strings.Index(expected, zeros)
	if len(got) < at+64 {
		t.Fatalf("%d bytes, expected %d", len(got), len(expected))
	}
	if digest := got[at : at+64]; digest == zeros || strings.Trim(digest, "0123456789abcdef") != "" {
		t.Errorf("digest %q", digest)
	}
	if got = got[:at] + zeros + got[at+64:]; got != expected {
		t.Errorf("file is\n%q\nexpected\n%q", got, expected)
	}
}

// TestSafetensorsRoundTrip reads back what was written, in parts.
func TestSafetensorsRoundTrip(t *testing.T) {
	s, err := open(t, write(t, filepath.Join(t.TempDir(), "x")))
	if err != nil {
		t.Fatal(err)
	}
	if n := len(s.Tensors()); n != len(values) {
		t.Errorf("%d tensors, expected %d", n, len(values))
	}
	for name, expected := range values {
		tensor, ok := s.Tensor(name)
		if !ok || tensor.Elements() != len(expected) {
			t.Errorf("%s: %+v, %v", name, tensor, ok)
		}
		for from := range expected {
			got := make([]float32, len(expected)-from)
			if err := s.ReadF32(name, got, from); err != nil {
				t.Fatal(err)
			}
			for i, v := range got {
				if v != expected[from+i] {
					t.Errorf("%s[%d] is %v, expected %v", name, from+i, v, expected[from+i])
				}
			}
		}
	}
	for _, bad := range []func() error{
		func() error { return s.ReadF32("bias", make([]float32, 3), 0) },
		func() error { return s.ReadF32("bias", make([]float32, 1), -1) },
		func() error { return s.ReadF32("bias", make([]float32, 1), 2) },
		func() error { return s.ReadF32("wte", nil, 0) },
	} {
		if err := bad(); err == nil || !strings.Contains(err.Error(), "bias") && !strings.Contains(err.Error(), "wte") {
			t.Errorf("error %v", err)
		}
	}
}

// TestForeignFilesAreRead: written by other programs, without a digest, in their order and types.
func TestForeignFilesAreRead(t *testing.T) {
	s, err := open(t, tensorFile(`{"b":{"dtype":"F32","shape":[1],"data_offsets":[2,6]},`+
		`"a":{"shape":[1],"data_offsets":[0,2],"dtype":"BF16"},"c":{"shape":[8],"data_offsets":[6,22],"dtype":"F16"},`+
		`"d":{"shape":[1],"data_offsets":[22,24],"dtype":"I16"}}   `, "\x80\x3f"+floats(7)+
		"\x00\x3c\x00\xc0\x01\x00\xff\x03\xff\x7b\x00\x7c\x00\x80\x55\x35"+"xx"))
	if err != nil {
		t.Fatal(err)
	}
	if list := s.Tensors(); len(list) != 4 || list[0].Name != "a" || list[0].DType != "BF16" {
		t.Errorf("tensors %+v", list)
	}
	for name, want := range map[string][]float32{
		"a": {1}, "b": {7},
		// 1, -2, the least, the largest below the normal range, the largest of all, infinity, -0, nearly a third.
		"c": {1, -2, 1.0 / (1 << 24), 1023.0 / (1 << 24), 65504, float32(math.Inf(1)), float32(math.Copysign(0, -1)), 0.333251953125},
	} {
		got := make([]float32, len(want))
		if err := s.ReadF32(name, got, 0); err != nil {
			t.Fatal(err)
		}
		for i, w := range want {
			if math.Float32bits(got[i]) != math.Float32bits(w) {
				t.Errorf("%s[%d] is %v, expected %v", name, i, got[i], w)
			}
		}
	}
	if err := s.ReadF32("d", make([]float32, 1), 0); err == nil || !strings.Contains(err.Error(), `"d" is I16, expected F32, F16 or BF16`) {
		t.Errorf("d: %v", err)
	}
	if _, err := open(t, tensorFile("{}", "")); err != nil {
		t.Errorf("no tensors: %v", err)
	}
}

// TestEveryDamagedByteIsReported: with any byte changed, or the file cut anywhere or longer, nothing is loaded.
func TestEveryDamagedByteIsReported(t *testing.T) {
	whole := write(t, filepath.Join(t.TempDir(), "x"))
	for i := range len(whole) {
		for _, flip := range []byte{1, 0x80} {
			if _, err := open(t, whole[:i]+string(whole[i]^flip)+whole[i+1:]); err == nil {
				// The key itself may turn into another one that means nothing to us; then there is no digest to check.
				if at := strings.Index(whole, checkpoint.DigestKey); i >= at && i < at+len(checkpoint.DigestKey) {
					continue
				}
				t.Errorf("byte %d changed by %#x: no error", i, flip)
			}
		}
		if _, err := open(t, whole[:i]); err == nil {
			t.Errorf("cut to %d bytes: no error", i)
		}
	}
	if _, err := open(t, whole+"x"); err == nil {
		t.Error("one byte more: no error")
	}
}

// TestMalformedHeadersAreRefused with what was found and what was expected.
func TestMalformedHeadersAreRefused(t *testing.T) {
	entry := func(body string) string { return `{"t":{` + body + `}}` }
	cases := []struct{ name, file, expect string }{
		{"empty", "", "0 bytes, expected at least 8"},
		{"huge header", "\xff\xff\xff\xff\xff\xff\xff\x7f{}", "claims 9223372036854775807 bytes in a file of 10"},
		{"not JSON", tensorFile("hello", ""), `starts with "h", expected "{"`},
		{"leading space", tensorFile(" {}", ""), `starts with " "`},
		{"cut JSON", tensorFile(`{"t":{"dtype":`, ""), "unexpected EOF"},
		{"text after", tensorFile(`{} {}`, ""), `"{}" after its end`},
		{"twice", tensorFile(`{"t":{"dtype":"F32","shape":[0],"data_offsets":[0,0]},"t":{"dtype":"F32","shape":[0],"data_offsets":[0,0]}}`, ""), "key t: expected a name that is there once"},
		{"metadata", tensorFile(`{"__metadata__":{"a":1}}`, ""), "expected an object of strings"},
		{"missing shape", tensorFile(entry(`"dtype":"F32","data_offsets":[0,4]`), "1234"), "expected dtype, shape and data_offsets"},
		{"dtype", tensorFile(entry(`"dtype":"F31","shape":[1],"data_offsets":[0,4]`), "1234"), `dtype "F31"`},
		{"unknown key", tensorFile(entry(`"dtype":"F32","shape":[1],"data_offsets":[0,4],"x":1`), "1234"), `unknown field "x"`},
		{"offsets", tensorFile(entry(`"dtype":"F32","shape":[1],"data_offsets":[4,0]`), "1234"), "expected [begin, end]"},
		{"negative", tensorFile(entry(`"dtype":"F32","shape":[-1],"data_offsets":[0,4]`), "1234"), "shape [-1]"},
		{"overflow", tensorFile(entry(`"dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,0]`), ""), "too large"},
		{"size", tensorFile(entry(`"dtype":"F32","shape":[2],"data_offsets":[0,4]`), "1234"), "hold 4 bytes, F32[2] takes 8"},
		{"beyond", tensorFile(entry(`"dtype":"F32","shape":[2],"data_offsets":[0,8]`), "1234"), "take 8 bytes, the file has 4"},
		{"gap", tensorFile(entry(`"dtype":"F32","shape":[1],"data_offsets":[4,8]`), "12345678"), "begins at 4, expected 0"},
		{"overlap", tensorFile(`{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},"b":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}}`, "12345678"), `"b" begins at 4, expected 8`},
		{"digest", tensorFile(`{"__metadata__":{"avgpipe.sha256":"12"}}`, ""), "expected 64 hexadecimal digits"},
	}
	for _, c := range cases {
		if _, err := open(t, c.file); err == nil || !strings.Contains(err.Error(), c.expect) {
			t.Errorf("%s: error %v\nexpected one with %q", c.name, err, c.expect)
		}
	}
}

// TestTensorsThatCannotBeWrittenAreRefused: one that cannot be read, is given twice or has no shape.
func TestTensorsThatCannotBeWrittenAreRefused(t *testing.T) {
	path := filepath.Join(t.TempDir(), "x")
	fault := errors.New("injected")
	broken := func(checkpoint.Tensor, []float32, int) error { return fault }
	if err := writeTensors(path, shapes(), nil, broken); !errors.Is(err, fault) || !strings.Contains(err.Error(), `"bias"`) {
		t.Errorf("unreadable: %v", err)
	}
	for _, bad := range []checkpoint.Tensor{{}, {Name: "bias"}, {Name: "__metadata__"}, {Name: "x", Shape: []int{-1}}, {Name: "x", DType: "BF16"}} {
		if err := writeTensors(path, append(shapes(), bad), nil, readValues); err == nil {
			t.Errorf("%+v: no error", bad)
		}
	}
}

// FuzzOpenSafetensors: no input may crash the reader, and what opens can be read.
func FuzzOpenSafetensors(f *testing.F) {
	f.Add([]byte(tensorFile(`{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}`, floats(1))))
	f.Add([]byte(tensorFile(`{"__metadata__":{"format":"pt"},"a":{"dtype":"F16","shape":[],"data_offsets":[0,2]}}`, "xx")))
	f.Add([]byte(tensorFile(`{}`, "")))
	f.Fuzz(func(t *testing.T, data []byte) {
		path := filepath.Join(t.TempDir(), "fuzzed")
		if err := os.WriteFile(path, data, 0o600); err != nil {
			t.Fatal(err)
		}
		s, err := checkpoint.OpenSafetensors(path, os.Open)
		if err != nil {
			return
		}
		defer s.Close()
		_ = s.Verify() // it does not crash either
		for _, tensor := range s.Tensors() {
			if tensor.DType != checkpoint.F32 {
				continue
			}
			if err := s.ReadF32(tensor.Name, make([]float32, tensor.Elements()), 0); err != nil {
				t.Errorf("tensor %q: %v", tensor.Name, err)
			}
		}
	})
}

// TestAFileThatIsOverwrittenWhileItIsOpenIsNotReadOn: what was checked is what is read.
func TestAFileThatIsOverwrittenWhileItIsOpenIsNotReadOn(t *testing.T) {
	path := filepath.Join(t.TempDir(), "x")
	whole := write(t, path)
	s, err := checkpoint.OpenSafetensors(path, os.Open)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	into := make([]float32, 2)
	if err := s.ReadF32("bias", into, 0); err != nil {
		t.Error(err)
	}
	later := time.Now().Add(time.Second)
	if err := errors.Join(os.WriteFile(path, []byte(whole), 0o600), os.Chtimes(path, later, later)); err != nil {
		t.Fatal(err)
	}
	if err := s.ReadF32("bias", into, 0); err == nil || !strings.Contains(err.Error(), path) || !strings.Contains(err.Error(), "was overwritten while it was open") {
		t.Errorf("error %v", err)
	}
}
