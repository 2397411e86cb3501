package model

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"

	"github.com/avgpipe/avgpipe/internal/nearest"
)

// FromHuggingFace makes the model of a Hugging Face config.json. It is as strict as Build about the fields that shape the
// computation; those that do not (token ids of special tokens, dropout, caching, task heads) are passed over.
func FromHuggingFace(config []byte) (*Model, error) {
	d := json.NewDecoder(bytes.NewReader(config))
	d.UseNumber()
	var fields map[string]any
	if err := d.Decode(&fields); err != nil {
		return nil, fmt.Errorf("read config.json: %w", err)
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return nil, errors.New("read config.json: more follows the object")
	}
	name, _ := fields["model_type"].(string)
	f, ok := families[name]
	if !ok {
		return nil, &FieldError{
			Field: "model_type", Found: fields["model_type"], Allowed: oneOf(Families()), Nearest: nearest.Word(name, Families()),
		}
	}
	if err := checkFixed(fields); err != nil {
		return nil, err
	}
	f.relax(fields)
	return f.build(fields)
}

// fixed holds fields that change the computation and that are implemented for one value only.
var fixed = map[string]bool{
	"scale_attn_weights":              true,
	"scale_attn_by_inverse_layer_idx": false,
	"add_cross_attention":             false,
	"is_encoder_decoder":              false,
}

func checkFixed(fields map[string]any) error {
	for name, want := range fixed {
		if got, ok := fields[name].(bool); ok && got != want {
			return &FieldError{Field: name, Found: got, Allowed: strconv.FormatBool(want)}
		}
	}
	return nil
}

// relaxGPT2 keeps the fields that Build knows, dropout excepted: training goes on without it.
func relaxGPT2(config map[string]any) {
	dropout := []string{"resid_pdrop", "embd_pdrop", "attn_pdrop"}
	known := gpt2Fields()
	for name := range config {
		isKnown := slices.ContainsFunc(known, func(f Field) bool { return f.Name == name })
		if !isKnown || slices.Contains(dropout, name) {
			delete(config, name)
		}
	}
}
