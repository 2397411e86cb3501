// Package cpu is the fast device on the host's processor. Built with -tags onednn (Linux on amd64, cgo, libdnnl-dev), its
// matrix products are oneDNN primitives and everything else is C with vector instructions, chosen at run time among
// AVX-512, AVX2 and SSE2. Built otherwise, the products are gonum's and the rest is package ref's: slower, and in need of
// nothing but Go. OneDNN tells which form was built, Device.Name what a device came to use.
//
// How the C is laid out: operations.h lists the operations with their operands; device.h makes of the list the table of an instruction
// set and the functions that Go calls. kernels_body.h and the files that it includes (*_body.h) have for each operation a function that
// cuts it into parts for the threads (parts.h) and runs them on vectors (vector.h); kernels_*.c compile them, each for its instruction
// set. products.c and convolution.c describe the oneDNN primitives, each built once per shape by primitives.c, with the reorders of its
// operands; recurrent.c holds the products of an LSTM.
//
// The operations that package device calls exact give the same bits as package ref on every instruction set and with
// any number of threads. The sources are compiled as strict ISO C, so that the compiler does not fuse multiplications and
// additions; kernels that may fuse say so by calling fused.
package cpu
