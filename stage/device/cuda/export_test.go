//go:build cuda && cgo && linux && amd64

package cuda

// BoundWindows bounds the windows of a product, and returns what bounds them as before.
func BoundWindows(bytes int) (restore func()) {
	before := mostWindowBytes
	mostWindowBytes = bytes
	return func() { mostWindowBytes = before }
}
