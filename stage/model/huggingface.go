package model

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"

	"github.com/avgpipe/avgpipe/internal/nearest"
)

// FromHuggingFace makes the model of a Hugging Face config.json. It is as strict as Build about the fields that shape the
// computation; those that do not (token ids of special tokens, caching, task heads) are kept for export (Model.Config).
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
	if name == Python {
		return readModules(config)
	}
	family, ok := families[name]
	if !ok {
		return nil, &FieldError{
			Field: "model_type", Found: fields["model_type"], Allowed: oneOf(Families()), Nearest: nearest.Word(name, Families()),
		}
	}
	if err := checkFixed(fields); err != nil {
		return nil, err
	}
	kept, c := maps.Clone(fields), family()
	if r, ok := c.(interface{ relax(config map[string]any) }); ok {
		r.relax(fields)
	}
	known := c.fields()
	maps.DeleteFunc(fields, func(name string, _ any) bool {
		return !slices.ContainsFunc(known, func(f Field) bool { return f.Name == name })
	})
	m, err := Build(name, fields)
	if err != nil {
		return nil, err
	}
	if err := checkLayerTypes(m, kept["layer_types"]); err != nil {
		return nil, err
	}
	m.keep(kept)
	return m, nil
}

// dropped are fields of an imported config.json that are not true of an exported one.
var dropped = []string{"quantization_config", "compression_config"}

// keep adds to the config what an imported config.json holds beside the fields that shape the computation: the ids of special
// tokens, names, settings of generation. What the config says itself stands; dtype is the newer name of torch_dtype.
func (m *Model) keep(imported map[string]any) {
	for name, value := range imported {
		if _, own := m.config[name]; !own && !slices.Contains(dropped, name) {
			m.config[name] = value
		}
	}
	if names, ok := imported["id2label"].(map[string]any); ok && m.config["id2label"] != nil && len(names) == m.Loss.Classes {
		m.config["id2label"], m.config["label2id"] = names, imported["label2id"]
	}
	if imported["dtype"] != nil {
		m.config["dtype"] = m.config["torch_dtype"]
	}
}

// layerKinds are the names of attention over all positions before one's own and over a window of them, in the field layer_types.
const (
	fullAttention    = "full_attention"
	slidingAttention = "sliding_attention"
)

// checkLayerTypes refuses a layer_types, which newer releases write beside the fields that it follows from, that says
// otherwise than they do.
func checkLayerTypes(m *Model, found any) error {
	types, ok := found.([]any)
	if !ok || m.window == nil {
		return nil
	}
	for i, kind := range types {
		want := fullAttention
		if m.window(i) > 0 {
			want = slidingAttention
		}
		if kind != want {
			return &FieldError{
				Field: fmt.Sprintf("layer_types[%d]", i), Found: kind, Allowed: fmt.Sprintf("%q, as sliding_window and max_window_layers make it", want), Nearest: want,
			}
		}
	}
	return nil
}

// fixed holds fields that change the computation and that are implemented for one value only.
var fixed = map[string]any{
	"scale_attn_weights":              true,
	"scale_attn_by_inverse_layer_idx": false,
	"add_cross_attention":             false,
	"is_encoder_decoder":              false,
	"is_decoder":                      false,
	"position_embedding_type":         "absolute",
	"use_mrope":                       false,
}

func checkFixed(fields map[string]any) error {
	for name, want := range fixed {
		if got := fields[name]; got != nil && got != want {
			return &FieldError{Field: name, Found: got, Allowed: show(want), Nearest: show(want)}
		}
	}
	return nil
}

// relax takes what concerns rotary positions from where newer releases keep it.
func (c *llama) relax(config map[string]any) {
	object, ok := config["rope_parameters"].(map[string]any)
	if !ok {
		return
	}
	scaling := maps.Clone(object)
	if config["rope_theta"] == nil {
		config["rope_theta"] = scaling["rope_theta"]
	}
	delete(scaling, "rope_theta")
	if config["rope_scaling"] == nil {
		config["rope_scaling"] = scaling
	}
}
