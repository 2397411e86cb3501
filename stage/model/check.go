package model

import (
	"fmt"
	"slices"
	"strconv"

	"github.com/avgpipe/avgpipe/internal/nearest"
)

// integerField is a config field with its bounds. The upper ones lie well beyond any published model; they keep sizes in
// bytes within 63 bits.
type integerField struct {
	name        string
	value       int
	least, most int
}

func checkIntegers(fields []integerField) error {
	for _, f := range fields {
		if f.value < f.least || f.value > f.most {
			return &FieldError{
				Field: f.name, Found: f.value, Allowed: fmt.Sprintf("an integer from %d to %d", f.least, f.most),
				Nearest: strconv.Itoa(min(max(f.value, f.least), f.most)),
			}
		}
	}
	return nil
}

// rateField is a config field that is a probability below 1.
type rateField struct {
	name  string
	value float64
}

func checkRates(fields []rateField) error {
	for _, f := range fields {
		if !(f.value >= 0 && f.value < 1) {
			return &FieldError{Field: f.name, Found: f.value, Allowed: "a number of at least 0 and below 1", Nearest: "0"}
		}
	}
	return nil
}

// tanhGELU are the names that Hugging Face's library has for the tanh form of GELU (Hendrycks and Gimpel 2016, section 2).
var tanhGELU = []string{"gelu_new", "gelu_pytorch_tanh", "gelu_fast"}

// checkActivation refuses a name that is not among the allowed ones.
func checkActivation(field, found string, allowed []string) error {
	if slices.Contains(allowed, found) {
		return nil
	}
	near := nearest.Word(found, allowed)
	if near == "" {
		near = allowed[0]
	}
	return &FieldError{Field: field, Found: found, Allowed: oneOf(allowed), Nearest: near}
}

// noBuffer is the skip of a family whose files hold parameters only.
func noBuffer(string) bool { return false }

// exported is the config.json of a family whose config it is alone.
func exported(name string, fields []Field) map[string]any {
	config := map[string]any{"model_type": name, "torch_dtype": "float32"}
	for _, f := range describe(fields) {
		config[f.Name] = f.Default
	}
	return config
}

// keepFields returns a relax that drops all but a family's fields.
func keepFields(fields func() []Field) func(config map[string]any) {
	return func(config map[string]any) {
		known := fields()
		for name := range config {
			if !slices.ContainsFunc(known, func(f Field) bool { return f.Name == name }) {
				delete(config, name)
			}
		}
	}
}

// checkMultiple refuses a width that is no multiple of a number of heads.
func checkMultiple(field string, value int, of string, heads int) error {
	if value%heads == 0 {
		return nil
	}
	down := value / heads * heads
	nearest := down + heads
	if down > 0 && value-down <= nearest-value {
		nearest = down
	}
	return &FieldError{
		Field: field, Found: value, Allowed: fmt.Sprintf("a multiple of %s, which is %d", of, heads),
		Nearest: fmt.Sprintf("%s %d", field, nearest),
	}
}

// checkScales refuses what a norm cannot divide by, and a deviation below 0.
func checkScales(epsilonField string, epsilon, initializerRange float64) error {
	if !(epsilon > 0) {
		return &FieldError{Field: epsilonField, Found: epsilon, Allowed: "a number above 0", Nearest: "1e-5"}
	}
	if !(initializerRange >= 0) {
		return &FieldError{Field: "initializer_range", Found: initializerRange, Allowed: "a number of at least 0", Nearest: "0.02"}
	}
	return nil
}
