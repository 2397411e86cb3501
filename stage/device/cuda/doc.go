// Package cuda is the device on a graphics processor of NVIDIA. Built with -tags cuda (Linux on amd64, cgo; `make cuda` sets the paths), a
// program looks for the driver when it opens a device and needs no toolkit of CUDA, neither to build nor to run.
//
// How it is laid out: package driver finds the driver's functions, on which gorgonia.org/cu calls; kernels/ holds the kernels, in CUDA C++, and
// what they were compiled to; package cudatest is a driver that runs them on the host, for tests. A device is one stream: what it is told to do
// runs in that order, and whoever needs a result waits for an event.
package cuda
