// Package nvml asks NVIDIA's management library (NVML) about the graphics processors of this host. A build with -tags cuda has it (Linux, cgo);
// any other has no processors.
//
// The library is loaded by Open. A call of a function that it lacks would end the process, so Open asks for each name that is called; a reading
// whose function is missing, or that the processor does not support, is not known.
package nvml
