// Package program holds the passes of a stage as values: lists of operations on memory without addresses, written once by the layers. From
// such a list follow what a micro-batch keeps between its passes, which operations the input half of a backward needs, where everything
// lies, what a pass costs, and what a device runs.
package program
