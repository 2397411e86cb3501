// Package lint holds the project's conventions as tests, so that a convention worth stating is one that cannot lapse: which
// package may import which, one package doc each, functions that fit a screen, links that lead somewhere, and a unit file
// that agrees with the program it starts. What golangci-lint can check stands in .golangci.yml instead.
package lint
