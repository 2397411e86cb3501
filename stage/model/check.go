package model

import (
	"fmt"

	"github.com/avgpipe/avgpipe/stage/device"
)

// tanhGELU are the names that Hugging Face's library has for the tanh form of GELU (Hendrycks and Gimpel 2016, section 2).
var tanhGELU = []string{"gelu_new", "gelu_pytorch_tanh", "gelu_fast"}

// activations are the functions that Hugging Face's library has names for.
var activations = map[string]device.Function{
	"relu": device.ReLU, exactGELU: device.GELUErf, "gelu_new": device.GELU, "gelu_pytorch_tanh": device.GELU, "gelu_fast": device.GELU,
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
