//go:build !(cuda && cgo && linux && amd64)

package pick

// graphics are the kinds of graphics processors: none in a build without CUDA.
var graphics []choice
