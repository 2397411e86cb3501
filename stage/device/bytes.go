package device

import (
	"fmt"
	"unsafe"
)

// HostMemory is embedded by devices without a queue whose memory is the host's.
type HostMemory struct{}

// Host implements Device.
func (HostMemory) Host() bool { return true }

// Upload implements Device.
func (HostMemory) Upload(dst Mem, src []byte) {
	CheckLength("Upload", src, dst)
	copy(HostBytes(dst), src)
}

// Download implements Device.
func (HostMemory) Download(dst []byte, src Mem) {
	CheckLength("Download", dst, src)
	copy(dst, HostBytes(src))
}

// Record implements Device.
func (HostMemory) Record() Event { return nil }

// CheckLength panics unless host bytes are as long as the memory that they are copied to or from.
func CheckLength(op string, host []byte, m Mem) {
	if len(host) != m.Bytes() {
		panic(fmt.Sprintf("device: %s: %d bytes for %d %v, expected %d", op, len(host), m.n, m.typ, m.Bytes()))
	}
}

// Write is Upload, after which src may change.
func Write(d Device, dst Mem, src []byte) error {
	d.Upload(dst, src)
	return Wait(d.Record())
}

// Read is Download, after which dst is there.
func Read(d Device, dst []byte, src Mem) error {
	d.Download(dst, src)
	return Wait(d.Record())
}

// HostBytes views the elements of m as bytes. Only for devices whose memory is the host's.
func HostBytes(m Mem) []byte { return unsafe.Slice((*byte)(m.Pointer()), m.Bytes()) }

// Values views bytes, aligned to 4, as values in native order; nil of nothing.
func Values[T int32 | float32](b []byte) []T {
	if len(b) == 0 {
		return nil
	}
	return unsafe.Slice((*T)(unsafe.Pointer(unsafe.SliceData(b))), len(b)/4)
}

// FloatBytes views floats as their bytes in native order, for Upload and Download.
func FloatBytes(s []float32) []byte {
	return unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(s))), 4*len(s))
}

// DoubleBytes views doubles as their bytes in native order, for Upload and Download.
func DoubleBytes(s []float64) []byte {
	return unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(s))), 8*len(s))
}

// IntBytes views 32-bit integers as their bytes in native order, for Upload and Download.
func IntBytes(s []int32) []byte {
	return unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(s))), 4*len(s))
}
