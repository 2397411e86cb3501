//go:build !linux

package worker

func resetPeakRSS() {}

func peakRSS() int64 { return 0 }
