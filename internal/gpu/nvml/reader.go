//go:build cuda && cgo && linux && amd64

package nvml

import (
	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/avgpipe/avgpipe/internal/gpu"
)

// losses are the codes after which a processor answers nothing more.
var losses = map[nvml.Return]gpu.Loss{nvml.ERROR_GPU_IS_LOST: gpu.FellOff, nvml.ERROR_RESET_REQUIRED: gpu.NeedsReset}

// reader takes the readings of one processor.
type reader struct {
	*source

	handle   nvml.Device
	of       string // for messages
	readings gpu.Readings
	failures []gpu.Failure
}

// ask makes a call, if the library has it and the processor is not lost, and reports whether that told anything. One that the processor does not
// support, or the driver no more, tells nothing and is no failure.
func (r *reader) ask(name string, call func() nvml.Return) bool {
	if !r.has(name) || r.readings.Lost != "" {
		return false
	}
	code := call()
	switch code {
	case nvml.SUCCESS:
		return true
	case nvml.ERROR_NOT_SUPPORTED, nvml.ERROR_NO_DATA, nvml.ERROR_NOT_FOUND, nvml.ERROR_DEPRECATED:
		return false
	case nvml.ERROR_GPU_IS_LOST, nvml.ERROR_RESET_REQUIRED:
		r.readings.Lost = losses[code]
	default:
		r.failures = append(r.failures, gpu.Failure{Call: name + " of " + r.of, Err: code})
	}
	return false
}

// get asks for one value. It is nil where the call tells nothing.
func get[T, V any](r *reader, name string, call func() (T, nvml.Return), value func(T) V) *V {
	var told T
	if !r.ask(name, func() (code nvml.Return) { told, code = call(); return code }) {
		return nil
	}
	return new(value(told))
}

func free(m nvml.Memory) int64   { return int64(m.Free) } //nolint:gosec // below 2^63
func whole(n uint32) int         { return int(n) }
func watts(milli uint32) float64 { return float64(milli) / 1000 }
func same[T any](v T) T          { return v }

// read takes all readings.
func (r *reader) read() {
	d, out := r.handle, &r.readings
	out.Utilization = get(r, "nvmlDeviceGetUtilizationRates", d.GetUtilizationRates, func(u nvml.Utilization) float64 { return float64(u.Gpu) / 100 })
	out.MemoryFreeBytes = get(r, "nvmlDeviceGetMemoryInfo", d.GetMemoryInfo, free)
	out.PowerWatts = get(r, "nvmlDeviceGetPowerUsage", d.GetPowerUsage, watts)
	out.PowerLimitWatts = get(r, "nvmlDeviceGetEnforcedPowerLimit", d.GetEnforcedPowerLimit, watts)
	out.TemperatureC = get(r, "nvmlDeviceGetTemperature", func() (uint32, nvml.Return) { return d.GetTemperature(nvml.TEMPERATURE_GPU) }, whole)
	out.SMClockMHz = get(r, "nvmlDeviceGetClockInfo", func() (uint32, nvml.Return) { return d.GetClockInfo(nvml.CLOCK_SM) }, whole)
	out.MemoryClockMHz = get(r, "nvmlDeviceGetClockInfo", func() (uint32, nvml.Return) { return d.GetClockInfo(nvml.CLOCK_MEM) }, whole)
	out.Throttled = []string{}
	name, reasons := "nvmlDeviceGetCurrentClocksEventReasons", d.GetCurrentClocksEventReasons
	if !r.has(name) { // drivers before 535
		name, reasons = "nvmlDeviceGetCurrentClocksThrottleReasons", d.GetCurrentClocksThrottleReasons
	}
	if bits := get(r, name, reasons, same); bits != nil {
		out.Throttled = throttled(*bits)
	}
	if mode := get(r, "nvmlDeviceGetComputeMode", d.GetComputeMode, same); mode != nil {
		out.ComputeProhibited = *mode == nvml.COMPUTEMODE_PROHIBITED
	}
	r.readMemoryErrors()
	r.readNVLinks()
	r.readRecovery()
}

// throttles are the bits of NVML, and what they are called here.
var throttles = []struct {
	bits uint64
	name string
}{
	{nvml.ClocksThrottleReasonGpuIdle, "idle"},
	{nvml.ClocksThrottleReasonApplicationsClocksSetting, "clock_setting"},
	{nvml.ClocksThrottleReasonSwPowerCap, "power_cap"},
	{nvml.ClocksThrottleReasonHwSlowdown, gpu.ThrottleHardware},
	{nvml.ClocksThrottleReasonSyncBoost, "sync_boost"},
	{nvml.ClocksThrottleReasonSwThermalSlowdown | nvml.ClocksThrottleReasonHwThermalSlowdown, gpu.ThrottleThermal},
	{nvml.ClocksThrottleReasonHwPowerBrakeSlowdown, gpu.ThrottlePowerBrake},
	{nvml.ClocksThrottleReasonDisplayClockSetting, "display_clock_setting"},
}

// throttled names the bits that are set. The slowdown of which the cause is known is not named beside it.
func throttled(bits uint64) []string {
	if bits&(nvml.ClocksThrottleReasonHwThermalSlowdown|nvml.ClocksThrottleReasonHwPowerBrakeSlowdown) != 0 {
		bits &^= nvml.ClocksThrottleReasonHwSlowdown
	}
	all := []string{}
	for _, t := range throttles {
		if bits&t.bits != 0 {
			all = append(all, t.name)
		}
	}
	return all
}

func (r *reader) readMemoryErrors() {
	d, out := r.handle, &r.readings
	out.ECCCorrected = get(r, "nvmlDeviceGetTotalEccErrors", func() (uint64, nvml.Return) {
		return d.GetTotalEccErrors(nvml.MEMORY_ERROR_TYPE_CORRECTED, nvml.VOLATILE_ECC)
	}, same)
	out.ECCUncorrected = get(r, "nvmlDeviceGetTotalEccErrors", func() (uint64, nvml.Return) {
		return d.GetTotalEccErrors(nvml.MEMORY_ERROR_TYPE_UNCORRECTED, nvml.VOLATILE_ECC)
	}, same)
	out.Rows = get(r, "nvmlDeviceGetRemappedRows", func() (rows gpu.Rows, code nvml.Return) {
		rows.Corrected, rows.Uncorrected, rows.Pending, rows.Failed, code = d.GetRemappedRows()
		return rows, code
	}, same)
	if out.Rows != nil {
		return // such a processor retires no pages
	}
	retired := func() (n int, code nvml.Return) {
		for _, cause := range []nvml.PageRetirementCause{nvml.PAGE_RETIREMENT_CAUSE_MULTIPLE_SINGLE_BIT_ECC_ERRORS, nvml.PAGE_RETIREMENT_CAUSE_DOUBLE_BIT_ECC_ERROR} {
			pages, code := d.GetRetiredPages(cause)
			if code != nvml.SUCCESS {
				return 0, code
			}
			n += len(pages)
		}
		return n, nvml.SUCCESS
	}
	out.RetiredPages = get(r, "nvmlDeviceGetRetiredPages", retired, same)
	out.RetirementPending = get(r, "nvmlDeviceGetRetiredPagesPendingStatus", d.GetRetiredPagesPendingStatus, func(s nvml.EnableState) bool {
		return s == nvml.FEATURE_ENABLED
	})
}

// readNVLinks counts the active links. A processor without links supports no such call.
func (r *reader) readNVLinks() {
	for link := range nvml.NVLINK_MAX_LINKS {
		var state nvml.EnableState
		exists := r.ask("nvmlDeviceGetNvLinkState", func() (code nvml.Return) {
			state, code = r.handle.GetNvLinkState(link)
			if code == nvml.ERROR_INVALID_ARGUMENT { // it has fewer links
				code = nvml.ERROR_NOT_SUPPORTED
			}
			return code
		})
		if !exists {
			return
		}
		if r.readings.NVLinks == nil {
			r.readings.NVLinks = new(0)
		}
		if state == nvml.FEATURE_ENABLED {
			*r.readings.NVLinks++
		}
	}
}

// recoveries are the actions of NVML by their numbers. The header of go-nvml ends with the fourth; drivers have the fifth since 595, the others
// since 615.
var recoveries = []gpu.Recovery{
	gpu.RecoverNone, gpu.RecoverReset, gpu.RecoverReboot, gpu.RecoverDrainPeers, gpu.RecoverDrainAndReset,
	gpu.RecoverIMEX, gpu.RecoverBusReset, gpu.RecoverReboot,
}

// readRecovery asks what the driver asks for. Drivers before 565 do not know the field.
func (r *reader) readRecovery() {
	field := []nvml.FieldValue{{FieldId: nvml.FI_DEV_GET_GPU_RECOVERY_ACTION}}
	told := r.ask("nvmlDeviceGetFieldValues", func() nvml.Return { return r.handle.GetFieldValues(field) })
	if told && nvml.Return(field[0].NvmlReturn) == nvml.SUCCESS { //nolint:gosec // a small number
		r.readings.Recovery = gpu.RecoverUnknown
		if action := int(field[0].Value[0]); action < len(recoveries) { // the number is little-endian and below 256
			r.readings.Recovery = recoveries[action]
		}
	}
}
