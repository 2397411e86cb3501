// Package job is the job file: its types, strict parsing, defaults, validation and documentation. The daemon
// and the command line both read job files through it, and neither needs a device for that.
package job
