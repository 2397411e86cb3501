package model

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"

	"github.com/avgpipe/avgpipe/internal/nearest"
)

// FromHuggingFace makes the model of a Hugging Face config.json. It is as strict as Build about the fields that shape the
// computation; those that do not (token ids of special tokens, caching, task heads) are passed over.
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
var fixed = map[string]any{
	"scale_attn_weights":              true,
	"scale_attn_by_inverse_layer_idx": false,
	"add_cross_attention":             false,
	"is_encoder_decoder":              false,
	"is_decoder":                      false,
	"position_embedding_type":         "absolute",
}

func checkFixed(fields map[string]any) error {
	for name, want := range fixed {
		if got := fields[name]; got != nil && got != want {
			return &FieldError{Field: name, Found: got, Allowed: show(want), Nearest: show(want)}
		}
	}
	return nil
}

// relaxLlama keeps the fields that Build knows, and takes what concerns rotary positions from where newer releases keep it.
func relaxLlama(config map[string]any) {
	if object, ok := config["rope_parameters"].(map[string]any); ok {
		scaling := maps.Clone(object)
		if config["rope_theta"] == nil {
			config["rope_theta"] = scaling["rope_theta"]
		}
		delete(scaling, "rope_theta")
		if config["rope_scaling"] == nil {
			config["rope_scaling"] = scaling
		}
	}
	keepFields(llamaFields)(config)
}
