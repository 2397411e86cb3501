package server

import (
	"slices"
	"strconv"

	"github.com/avgpipe/avgpipe/internal/gpu"
)

// collectGPU sends what is known of a graphics processor.
func collectGPU(s *gpu.GPUStatus, gauge, counter send) {
	of, r := []string{"gpu", strconv.Itoa(s.Index), "uuid", s.UUID}, &s.Readings
	with := func(name, value string) []string { return append(slices.Clip(of), name, value) }
	gauge("gpu_info", "1, with the processor's name and place.", known(1), append(slices.Clip(of), "name", s.Name, "pci_bus", s.PCIBus)...)
	gauge("gpu_health", "1 for how healthy the processor is.", known(1), with("level", string(s.Health.Level))...)
	for _, reason := range s.Health.Reasons {
		gauge("gpu_health_reason", "1 for each reason why it is not healthy.", known(1), with("reason", reason.Code)...)
	}
	gauge("gpu_memory_bytes", "Memory of the processor.", known(s.MemoryBytes), of...)
	gauge("gpu_memory_free_bytes", "That which is free.", maybe(r.MemoryFreeBytes), of...)
	gauge("gpu_utilization_ratio", "Share of the time in which a kernel ran.", r.Utilization, of...)
	gauge("gpu_power_watts", "What the processor draws.", r.PowerWatts, of...)
	gauge("gpu_power_limit_watts", "What it may draw.", r.PowerLimitWatts, of...)
	gauge("gpu_temperature_celsius", "Temperature of the processor.", maybe(r.TemperatureC), of...)
	gauge("gpu_sm_clock_megahertz", "Clock of its multiprocessors.", maybe(r.SMClockMHz), of...)
	gauge("gpu_memory_clock_megahertz", "Clock of its memory.", maybe(r.MemoryClockMHz), of...)
	for _, why := range r.Throttled {
		gauge("gpu_throttled", "1 for each reason why its clocks are lower than they could be.", known(1), with("reason", why)...)
	}
	gauge("gpu_ecc_corrected_errors", "Errors in its memory that were corrected, since the last reset.", maybe(r.ECCCorrected), of...)
	gauge("gpu_ecc_uncorrected_errors", "Those that could not be.", maybe(r.ECCUncorrected), of...)
	if r.Rows != nil {
		gauge("gpu_remapped_rows", "Rows of its memory that were replaced.", known(r.Rows.Corrected+r.Rows.Uncorrected), of...)
	}
	gauge("gpu_retired_pages", "Pages of its memory that are not used any more.", maybe(r.RetiredPages), of...)
	gauge("gpu_nvlinks", "NVLinks that are active.", maybe(r.NVLinks), of...)
	for _, x := range s.XIDs {
		counter("gpu_xid_errors_total", "Errors that the driver reported since the daemon started, and those that were kept, by code.", known(x.Count), with("xid", strconv.FormatUint(x.Code, 10))...)
	}
}

// maybe is a value that may not be known.
func maybe[N int | int64 | uint64](n *N) *float64 {
	if n == nil {
		return nil
	}
	return known(*n)
}
