//go:build cuda && cgo && linux && amd64

package cuda

import (
	"reflect"
	"slices"
)

// history is the kinds of the last operations, so that a failure that shows later names those that it may come from. The device's mu guards it.
type history struct {
	kinds  [1024]reflect.Type
	handed int // operations
	passed int // of them, those that have ended well
}

func (h *history) add(kind reflect.Type) {
	h.kinds[h.handed%len(h.kinds)] = kind
	h.handed++
}

// pending adds the names of the kinds that were handed over and are not known to have ended.
func (h *history) pending(names []string) []string {
	for i := max(h.passed, h.handed-len(h.kinds)); i < h.handed; i++ {
		if name := h.kinds[i%len(h.kinds)].Elem().Name(); !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	return names
}
