// Package schedule holds the order of micro-batch work as a value. A generator makes a Plan; Check proves it; Simulate
// times it; Draw shows it; package pipeline executes it. All of them consume the same Plan, which prints and parses in one
// grammar, one line a stage:
//
//	F0 F1 F2 B0 F3 B1 B2 B3
//	F0 B0 F1 B1 F2 B2 F3 B3
//
// The package is a leaf: no I/O, no clock, no goroutine.
package schedule
