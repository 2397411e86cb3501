// Package cpu is the fast device on the host's processor. Built with -tags onednn (Linux on amd64, cgo, libdnnl-dev), its
// matrix products are oneDNN primitives and everything else is C with vector instructions, chosen at run time among
// AVX-512, AVX2 and SSE2. Built otherwise, the products are gonum's and the rest is package ref's: slower, and in need of
// nothing but Go. OneDNN tells which form was built, Device.Name what a device came to use.
//
// How the C is laid out: device.h declares one function per operation; ops.c cuts an operation into parts for the
// threads; kernels.h is the table of what one thread runs, compiled three times from kernels_body.h and
// attention_body.h, once per instruction set; attention.c cuts attention into parts; products.c holds the oneDNN primitives,
// each built once per shape.
//
// The operations that package device calls exact give the same bits as package ref on every instruction set and with
// any number of threads. The sources are compiled as strict ISO C, so that the compiler does not fuse multiplications and
// additions; kernels that may fuse say so by calling fused.
package cpu
