//go:build cuda && cgo && linux && amd64

package cuda

import "time"

// BoundWindows bounds the windows of a product, and returns what bounds them as before.
func BoundWindows(bytes int) (restore func()) {
	before := mostWindowBytes
	mostWindowBytes = bytes
	return func() { mostWindowBytes = before }
}

// LimitCopies bounds how long a copy between processors may take, looks out for failures often, and returns what makes both as before.
func LimitCopies(to time.Duration) (restore func()) {
	before, often := limit, lookout
	limit, lookout = to, 10*time.Millisecond
	return func() { limit, lookout = before, often }
}
