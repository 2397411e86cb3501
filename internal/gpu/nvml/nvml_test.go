//go:build cuda && cgo && linux && amd64

package nvml

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/NVIDIA/go-nvml/pkg/nvml/mock"
	"github.com/NVIDIA/go-nvml/pkg/nvml/mock/dgxa100"

	"github.com/avgpipe/avgpipe/internal/gpu"
)

// bare is a library of a driver that has the required functions alone, with eight processors. A call of any other function is a panic of the mock, as it
// would be the end of the process.
func bare() *dgxa100.Server {
	s := dgxa100.New()
	s.LookupSymbolFunc = func(name string) error {
		if slices.Contains(required, name) {
			return nil
		}
		return errors.New("undefined symbol")
	}
	return s
}

// have adds functions to those of the library.
func have(s *dgxa100.Server, names ...string) {
	before := s.LookupSymbolFunc
	s.LookupSymbolFunc = func(name string) error {
		if slices.Contains(names, name) {
			return nil
		}
		return before(name)
	}
}

func device(s *dgxa100.Server, i int) *dgxa100.Device { return s.Devices[i].(*dgxa100.Device) } //nolint:forcetypeassert // it is

func opened(t *testing.T, s *dgxa100.Server) gpu.Source {
	t.Helper()
	from, err := open(s)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := from.Close(); err != nil {
			t.Error(err)
		}
	})
	return from
}

func sample(t *testing.T, from gpu.Source) []gpu.Sample {
	t.Helper()
	all, failures, err := from.Sample()
	if err != nil || len(failures) > 0 {
		t.Fatalf("failures %v, error %v", failures, err)
	}
	return all
}

func TestAHostWithoutTheLibrarySaysSo(t *testing.T) {
	from, err := Open()
	switch {
	case err == nil: // this host has it
		if err := from.Close(); err != nil {
			t.Error(err)
		}
	case !errors.Is(err, gpu.ErrNone):
		t.Errorf("open without the library: %v", err)
	}
}

func TestAfterAFailedInitNothingIsCalled(t *testing.T) {
	for code, want := range map[nvml.Return]string{
		nvml.ERROR_LIBRARY_NOT_FOUND: "libnvidia-ml.so.1 is not installed", nvml.ERROR_DRIVER_NOT_LOADED: "kernel module", nvml.ERROR_NO_PERMISSION: "error 4",
	} {
		lib := &mock.Interface{InitFunc: func() nvml.Return { return code }} // any other call is a panic
		if _, err := open(lib); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%d: %v, want %q", code, err, want)
		}
	}
}

func TestALibraryWithoutARequiredFunctionIsRefused(t *testing.T) {
	s := bare()
	s.LookupSymbolFunc = func(name string) error {
		if name == "nvmlDeviceGetUUID" {
			return errors.New("undefined symbol")
		}
		return nil
	}
	if _, err := open(s); err == nil || err.Error() != "libnvidia-ml.so.1 lacks nvmlDeviceGetUUID; update the driver of the GPU" {
		t.Errorf("error is %v", err)
	}
}

func TestFunctionsThatALibraryLacksAreNotCalled(t *testing.T) {
	from := opened(t, bare())
	all := sample(t, from)
	if len(all) != 8 {
		t.Fatalf("%d processors", len(all))
	}
	for i, one := range all {
		if one.Index != i || one.Name != "Mock NVIDIA A100-SXM4-40GB" || one.MemoryBytes != 42949672960 || !strings.HasPrefix(one.UUID, "GPU-") {
			t.Errorf("processor %d is %+v", i, one.GPU)
		}
		if r := one.Readings; r.PowerWatts != nil || r.Rows != nil || r.NVLinks != nil || r.Recovery != "" || r.Lost != "" {
			t.Errorf("readings of functions that are missing: %+v", r)
		}
	}
	if _, err := from.WaitXID(time.Millisecond); err == nil || !strings.Contains(err.Error(), "no XIDs") {
		t.Errorf("wait for an XID: %v", err)
	}
}

// answering is a library that has all functions, whose processors answer all calls.
func answering() *dgxa100.Server {
	s := bare()
	have(s, optional...)
	s.EventSetCreateFunc = func() (nvml.EventSet, nvml.Return) {
		return &mock.EventSet{FreeFunc: func() nvml.Return { return nvml.SUCCESS }}, nvml.SUCCESS
	}
	for i := range s.Devices {
		answer(device(s, i))
	}
	return s
}

func answer(d *dgxa100.Device) {
	d.MemoryInfo.Free = 30 << 30
	d.GetPciInfoFunc = func() (nvml.PciInfo, nvml.Return) {
		p := nvml.PciInfo{Bus: uint32(d.Index)}
		copy(p.BusId[:], "00000000:0"+string(rune('0'+d.Index))+":00.0")
		return p, nvml.SUCCESS
	}
	d.GetUtilizationRatesFunc = func() (nvml.Utilization, nvml.Return) { return nvml.Utilization{Gpu: 87}, nvml.SUCCESS }
	d.GetPowerUsageFunc = func() (uint32, nvml.Return) { return 250500, nvml.SUCCESS }
	d.GetEnforcedPowerLimitFunc = func() (uint32, nvml.Return) { return 400000, nvml.SUCCESS }
	d.GetTemperatureFunc = func(nvml.TemperatureSensors) (uint32, nvml.Return) { return 61, nvml.SUCCESS }
	d.GetClockInfoFunc = func(k nvml.ClockType) (uint32, nvml.Return) { return 1000 + uint32(k), nvml.SUCCESS }
	d.GetCurrentClocksEventReasonsFunc = func() (uint64, nvml.Return) { return 0, nvml.SUCCESS }
	d.GetTotalEccErrorsFunc = func(k nvml.MemoryErrorType, c nvml.EccCounterType) (uint64, nvml.Return) {
		if c != nvml.VOLATILE_ECC {
			return 0, nvml.ERROR_INVALID_ARGUMENT
		}
		return map[nvml.MemoryErrorType]uint64{nvml.MEMORY_ERROR_TYPE_CORRECTED: 5}[k], nvml.SUCCESS
	}
	d.GetRemappedRowsFunc = func() (int, int, bool, bool, nvml.Return) { return 2, 1, false, false, nvml.SUCCESS }
	d.GetComputeModeFunc = func() (nvml.ComputeMode, nvml.Return) { return nvml.COMPUTEMODE_DEFAULT, nvml.SUCCESS }
	d.GetFieldValuesFunc = func(v []nvml.FieldValue) nvml.Return {
		v[0].NvmlReturn = uint32(nvml.ERROR_NOT_SUPPORTED)
		return nvml.SUCCESS
	}
	d.GetNvLinkStateFunc = func(link int) (nvml.EnableState, nvml.Return) {
		if link >= 12 {
			return 0, nvml.ERROR_INVALID_ARGUMENT
		}
		return nvml.FEATURE_ENABLED, nvml.SUCCESS
	}
	d.GetNvLinkRemotePciInfoFunc = func(link int) (nvml.PciInfo, nvml.Return) {
		return nvml.PciInfo{Bus: uint32(1 - d.Index%2 + d.Index/2*2), Device: uint32(link % 2)}, nvml.SUCCESS // every other link leads elsewhere
	}
	d.GetTopologyCommonAncestorFunc = func(nvml.Device) (nvml.GpuTopologyLevel, nvml.Return) { return nvml.TOPOLOGY_HOSTBRIDGE, nvml.SUCCESS }
	d.GetSupportedEventTypesFunc = func() (uint64, nvml.Return) { return nvml.EventTypeXidCriticalError, nvml.SUCCESS }
	d.RegisterEventsFunc = func(uint64, nvml.EventSet) nvml.Return { return nvml.SUCCESS }
}

func TestReadings(t *testing.T) {
	all := sample(t, opened(t, answering()))
	g, r := all[1].GPU, all[1].Readings
	if g.PCIBus != "00000000:01:00.0" || g.ComputeCapability != "8.0" {
		t.Errorf("processor is %+v", g)
	}
	if *r.Utilization != 0.87 || *r.MemoryFreeBytes != 30<<30 || *r.PowerWatts != 250.5 || *r.PowerLimitWatts != 400 || *r.TemperatureC != 61 ||
		*r.SMClockMHz != 1001 || *r.MemoryClockMHz != 1002 || *r.ECCCorrected != 5 || *r.ECCUncorrected != 0 || *r.Rows != (gpu.Rows{Corrected: 2, Uncorrected: 1}) ||
		*r.NVLinks != 12 || len(r.Throttled) != 0 || r.Recovery != "" || r.Lost != "" || r.ComputeProhibited || r.RetiredPages != nil {
		t.Errorf("readings are %+v", r)
	}
	if p := all[1].Peers; len(p) != 7 || p[0] != (gpu.Peer{UUID: all[0].UUID, Path: "PHB", NVLinks: 6}) || p[1].NVLinks != 0 {
		t.Errorf("peers are %+v", p)
	}
}

func TestReadingsThatMakeItSick(t *testing.T) {
	for name, c := range map[string]struct {
		set  func(d *dgxa100.Device)
		want func(r gpu.Readings) bool
	}{
		"a reset is asked for": {
			func(d *dgxa100.Device) {
				d.GetFieldValuesFunc = func(v []nvml.FieldValue) nvml.Return {
					v[0].Value[0] = byte(nvml.GPU_RECOVERY_ACTION_GPU_RESET)
					return nvml.SUCCESS
				}
			},
			func(r gpu.Readings) bool { return r.Recovery == gpu.RecoverReset },
		},
		"the driver has given up a function": {
			func(d *dgxa100.Device) {
				d.GetTemperatureFunc = func(nvml.TemperatureSensors) (uint32, nvml.Return) { return 0, nvml.ERROR_DEPRECATED }
			},
			func(r gpu.Readings) bool { return r.TemperatureC == nil && r.PowerWatts != nil },
		},
		"a reset of the bus is asked for": {
			func(d *dgxa100.Device) {
				d.GetFieldValuesFunc = func(v []nvml.FieldValue) nvml.Return { v[0].Value[0] = 6; return nvml.SUCCESS }
			},
			func(r gpu.Readings) bool { return r.Recovery == gpu.RecoverBusReset },
		},
		"a newer driver asks for something": {
			func(d *dgxa100.Device) {
				d.GetFieldValuesFunc = func(v []nvml.FieldValue) nvml.Return { v[0].Value[0] = 8; return nvml.SUCCESS }
			},
			func(r gpu.Readings) bool { return r.Recovery == gpu.RecoverUnknown },
		},
		"it is lost": {
			func(d *dgxa100.Device) {
				d.GetPowerUsageFunc = func() (uint32, nvml.Return) { return 0, nvml.ERROR_GPU_IS_LOST }
			},
			func(r gpu.Readings) bool { return r.Lost == gpu.FellOff && r.TemperatureC == nil },
		},
		"it answers nothing until a reset": {
			func(d *dgxa100.Device) {
				d.GetUtilizationRatesFunc = func() (nvml.Utilization, nvml.Return) { return nvml.Utilization{}, nvml.ERROR_RESET_REQUIRED }
			},
			func(r gpu.Readings) bool { return r.Lost == gpu.NeedsReset },
		},
		"no process may compute": {
			func(d *dgxa100.Device) {
				d.GetComputeModeFunc = func() (nvml.ComputeMode, nvml.Return) { return nvml.COMPUTEMODE_PROHIBITED, nvml.SUCCESS }
			},
			func(r gpu.Readings) bool { return r.ComputeProhibited },
		},
		"it retires pages": {
			func(d *dgxa100.Device) {
				d.GetRemappedRowsFunc = func() (int, int, bool, bool, nvml.Return) { return 0, 0, false, false, nvml.ERROR_NOT_SUPPORTED }
				d.GetRetiredPagesFunc = func(nvml.PageRetirementCause) ([]uint64, nvml.Return) { return []uint64{1, 2}, nvml.SUCCESS }
				d.GetRetiredPagesPendingStatusFunc = func() (nvml.EnableState, nvml.Return) { return nvml.FEATURE_ENABLED, nvml.SUCCESS }
			},
			func(r gpu.Readings) bool { return r.Rows == nil && *r.RetiredPages == 4 && *r.RetirementPending },
		},
		"it is hot": {
			func(d *dgxa100.Device) {
				d.GetCurrentClocksEventReasonsFunc = func() (uint64, nvml.Return) { return 0x48, nvml.SUCCESS }
			},
			func(r gpu.Readings) bool { return slices.Equal(r.Throttled, []string{gpu.ThrottleThermal}) },
		},
	} {
		s := answering()
		c.set(device(s, 3))
		all := sample(t, opened(t, s))
		if !c.want(all[3].Readings) || c.want(all[2].Readings) {
			t.Errorf("%s: readings are %+v", name, all[3].Readings)
		}
	}
}

func TestThrottleReasons(t *testing.T) {
	for bits, want := range map[uint64]string{0: "", 1: "idle", 4 | 2: "clock_setting power_cap", 8: "hardware_slowdown", 8 | 0x80: "power_brake", 0x20: "thermal", 0x60: "thermal"} {
		if got := strings.Join(throttled(bits), " "); got != want {
			t.Errorf("%#x: %q, want %q", bits, got, want)
		}
	}
}

func TestAnOlderDriverIsAskedForTheOldName(t *testing.T) {
	s := answering()
	before := s.LookupSymbolFunc
	s.LookupSymbolFunc = func(name string) error {
		if name == "nvmlDeviceGetCurrentClocksEventReasons" {
			return errors.New("undefined symbol")
		}
		return before(name)
	}
	for i := range s.Devices {
		d := device(s, i)
		d.GetCurrentClocksEventReasonsFunc = nil
		d.GetCurrentClocksThrottleReasonsFunc = func() (uint64, nvml.Return) { return 1, nvml.SUCCESS }
	}
	if all := sample(t, opened(t, s)); !slices.Equal(all[0].Readings.Throttled, []string{"idle"}) {
		t.Errorf("readings are %+v", all[0].Readings)
	}
}

func TestACallThatFailsIsTold(t *testing.T) {
	s := answering()
	device(s, 2).GetPowerUsageFunc = func() (uint32, nvml.Return) { return 0, nvml.ERROR_UNKNOWN }
	all, failures, err := opened(t, s).Sample()
	if err != nil || len(failures) != 1 || failures[0].Call != "nvmlDeviceGetPowerUsage of GPU 2" || all[2].Readings.PowerWatts != nil || *all[2].Readings.TemperatureC != 61 {
		t.Errorf("failures %v, error %v, readings %+v", failures, err, all[2].Readings)
	}
}

func TestAProcessorThatDoesNotAnswerIsListedByItsIndex(t *testing.T) {
	s := answering()
	handle := s.DeviceGetHandleByIndexFunc
	s.DeviceGetHandleByIndexFunc = func(i int) (nvml.Device, nvml.Return) {
		if i == 5 {
			return nil, nvml.ERROR_GPU_IS_LOST
		}
		return handle(i)
	}
	all, failures, err := opened(t, s).Sample()
	if err != nil || len(failures) != 1 || failures[0].Call != "identify GPU 5" || len(all) != 8 || len(all[0].Peers) != 6 {
		t.Fatalf("%d processors, failures %v, error %v", len(all), failures, err)
	}
	if g := all[5]; g.Index != 5 || g.UUID != "unknown-5" || g.Readings.Lost != gpu.FellOff {
		t.Errorf("the lost one is %+v", g)
	}
}

func TestADividedProcessorIsItsInstances(t *testing.T) {
	s := answering()
	parent := device(s, 0)
	parent.MigMode = nvml.DEVICE_MIG_ENABLE
	parent.GetMaxMigDeviceCountFunc = func() (int, nvml.Return) { return 7, nvml.SUCCESS }
	parent.GetMigDeviceHandleByIndexFunc = func(i int) (nvml.Device, nvml.Return) {
		if i > 1 {
			return nil, nvml.ERROR_NOT_FOUND
		}
		part := dgxa100.NewDevice(i)
		part.UUID, part.Name, part.MemoryInfo = "MIG-"+string(rune('a'+i)), "A100 MIG 3g.20gb", nvml.Memory{Total: 20 << 30, Free: 19 << 30}
		return part, nvml.SUCCESS
	}
	all := sample(t, opened(t, s))
	if len(all) != 9 {
		t.Fatalf("%d processors", len(all))
	}
	for i, uuid := range []string{"MIG-a", "MIG-b"} {
		one := all[i]
		if one.UUID != uuid || one.Parent != parent.UUID || one.Index != 0 || one.MemoryBytes != 20<<30 || *one.Readings.MemoryFreeBytes != 19<<30 ||
			one.ComputeCapability != "8.0" || *one.Readings.TemperatureC != 61 || len(one.Peers) != 0 {
			t.Errorf("instance %d is %+v", i, one)
		}
	}
	parent.GetMigDeviceHandleByIndexFunc = func(int) (nvml.Device, nvml.Return) { return nil, nvml.ERROR_NOT_FOUND }
	_, failures, err := opened(t, s).Sample()
	if err != nil || len(failures) != 1 || !strings.Contains(failures[0].Err.Error(), "MIG mode and has no instance") {
		t.Errorf("without instances: failures %v, error %v", failures, err)
	}
}

func TestXIDs(t *testing.T) {
	s := answering()
	var next nvml.EventData
	code := nvml.SUCCESS
	freed := false
	s.EventSetCreateFunc = func() (nvml.EventSet, nvml.Return) {
		return &mock.EventSet{
			WaitFunc: func(ms uint32) (nvml.EventData, nvml.Return) {
				if ms != 1500 {
					t.Errorf("waits %d ms", ms)
				}
				return next, code
			},
			FreeFunc: func() nvml.Return { freed = true; return nvml.SUCCESS },
		}, nvml.SUCCESS
	}
	registered := 0
	for i := range s.Devices {
		device(s, i).RegisterEventsFunc = func(types uint64, _ nvml.EventSet) nvml.Return {
			registered++
			if types != nvml.EventTypeXidCriticalError {
				t.Errorf("registers for %#x", types)
			}
			return nvml.SUCCESS
		}
	}
	device(s, 7).GetSupportedEventTypesFunc = func() (uint64, nvml.Return) { return 0, nvml.SUCCESS }
	from, err := open(s)
	if err != nil || registered != 7 {
		t.Fatalf("%d registered, error %v", registered, err)
	}
	next = nvml.EventData{Device: s.Devices[4], EventType: nvml.EventTypeXidCriticalError, EventData: 79}
	if x, err := from.WaitXID(1500 * time.Millisecond); err != nil || x == nil || x.GPU != device(s, 4).UUID || x.Code != 79 {
		t.Errorf("%+v, error %v", x, err)
	}
	code = nvml.ERROR_TIMEOUT
	if x, err := from.WaitXID(1500 * time.Millisecond); x != nil || err != nil {
		t.Errorf("no XID: %+v, error %v", x, err)
	}
	code = nvml.ERROR_GPU_IS_LOST
	if x, err := from.WaitXID(1500 * time.Millisecond); x != nil || !errors.Is(err, nvml.ERROR_GPU_IS_LOST) {
		t.Errorf("a failed wait: %+v, error %v", x, err)
	}
	if err := from.Close(); err != nil || !freed {
		t.Errorf("close: %v, freed %v", err, freed)
	}
}
