// Package ref is the device in plain Go: every operation as its definition says, one element after another. It is the
// oracle that other devices are tested against, and what trains where neither cgo nor oneDNN is at hand.
//
// Results depend on the operands alone: sums run in the order of their index, every product is rounded before it is
// added (Go may otherwise fuse the two on some processors), and exp and log are this package's own, so that the same
// inputs give the same bits on every processor.
package ref
