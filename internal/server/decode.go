package server

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"reflect"
	"strings"

	"github.com/avgpipe/avgpipe/internal/api"
)

// decodeBody reads the JSON body of a request into value, and refuses keys that value does not have.
func decodeBody(r *http.Request, value any) error {
	verb := r.Method + " " + r.URL.Path
	decoder := json.NewDecoder(r.Body)
	decoder.DisallowUnknownFields()
	err := decoder.Decode(value)
	if err == nil {
		if _, err := decoder.Token(); !errors.Is(err, io.EOF) {
			return api.Errorf(http.StatusBadRequest, "%s: something follows the JSON object of the request's body", verb)
		}
		return nil
	}
	if large, ok := errors.AsType[*http.MaxBytesError](err); ok {
		return api.Errorf(http.StatusRequestEntityTooLarge, "%s: the request has more than %d bytes", verb, large.Limit)
	}
	return api.Errorf(http.StatusBadRequest, "%s: the request's body %s", verb, bodyProblem(err))
}

// bodyProblem says in the terms of JSON what a decoder found.
func bodyProblem(err error) string {
	var syntax *json.SyntaxError
	var mismatch *json.UnmarshalTypeError
	switch {
	case errors.Is(err, io.EOF):
		return "is empty; it must be a JSON object"
	case errors.Is(err, io.ErrUnexpectedEOF):
		return "ends before its JSON object does"
	case errors.As(err, &syntax):
		return fmt.Sprintf("is no JSON: the fault is at byte %d", syntax.Offset)
	case errors.As(err, &mismatch) && mismatch.Field == "":
		return fmt.Sprintf("is %s; it must be %s", article(mismatch.Value), jsonKind(mismatch.Type))
	case errors.As(err, &mismatch):
		return fmt.Sprintf("has %s in %s; it must be %s", article(mismatch.Value), mismatch.Field, jsonKind(mismatch.Type))
	}
	if _, name, ok := strings.Cut(err.Error(), "unknown field "); ok { // encoding/json has no type for it
		return fmt.Sprintf("has the key %s, which this request does not have", name)
	}
	return "cannot be read"
}

// article writes what encoding/json calls a value: "number 1.5", "string", "array".
func article(value string) string {
	switch kind, _, _ := strings.Cut(value, " "); kind {
	case "array", "object":
		return "an " + kind
	case "bool":
		return "a boolean"
	default:
		return "a " + kind
	}
}

// jsonKind is what JSON calls the values of a Go type.
func jsonKind(t reflect.Type) string {
	switch t.Kind() {
	case reflect.String:
		return "a string"
	case reflect.Bool:
		return "a boolean"
	case reflect.Slice, reflect.Array:
		return "an array"
	case reflect.Float32, reflect.Float64:
		return "a number"
	case reflect.Struct, reflect.Map:
		return "an object"
	default:
		return "a whole number within its range"
	}
}
