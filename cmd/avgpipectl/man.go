//go:build man

package main

import "github.com/avgpipe/avgpipe/internal/manual"

// With the tag man the program writes its manual pages: go run -tags man ./cmd/avgpipectl DIR.
func main() { manual.Main(newRootCommand(), "1") }
