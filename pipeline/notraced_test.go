//go:build !race

package pipeline

// raced: the race detector runs the tests, ten times as slow.
const raced = false
