//go:build cuda && cgo && linux && amd64

package nvml

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/avgpipe/avgpipe/internal/gpu"
)

// source is a loaded library.
type source struct {
	lib     nvml.Interface
	missing map[string]bool // whether the library lacks a function, of those that it was asked for
	found   []*processor
	events  nvml.EventSet // nil: it has none
	silent  error         // why there are no events
}

// required are the functions without which there is nothing to tell, of any driver of the last ten years.
var required = []string{
	"nvmlInit_v2", "nvmlShutdown", "nvmlErrorString", "nvmlDeviceGetCount_v2", "nvmlDeviceGetHandleByIndex_v2",
	"nvmlDeviceGetUUID", "nvmlDeviceGetName", "nvmlDeviceGetPciInfo_v3", "nvmlDeviceGetMemoryInfo",
}

// optional are the others that are called.
var optional = []string{
	"nvmlDeviceGetCudaComputeCapability", "nvmlDeviceGetMigMode", "nvmlDeviceGetMaxMigDeviceCount", "nvmlDeviceGetMigDeviceHandleByIndex",
	"nvmlDeviceGetUtilizationRates", "nvmlDeviceGetPowerUsage", "nvmlDeviceGetEnforcedPowerLimit", "nvmlDeviceGetTemperature",
	"nvmlDeviceGetClockInfo", "nvmlDeviceGetCurrentClocksEventReasons", "nvmlDeviceGetCurrentClocksThrottleReasons", "nvmlDeviceGetTotalEccErrors",
	"nvmlDeviceGetRemappedRows",
	"nvmlDeviceGetRetiredPages", "nvmlDeviceGetRetiredPagesPendingStatus", "nvmlDeviceGetComputeMode", "nvmlDeviceGetFieldValues",
	"nvmlDeviceGetNvLinkState", "nvmlDeviceGetNvLinkRemotePciInfo_v2", "nvmlDeviceGetTopologyCommonAncestor",
	"nvmlEventSetCreate", "nvmlEventSetFree", "nvmlEventSetWait_v2", "nvmlDeviceRegisterEvents", "nvmlDeviceGetSupportedEventTypes",
}

// Open loads the library, which the loader finds, and the driver.
func Open() (gpu.Source, error) { return openAt("libnvidia-ml.so.1") }

func openAt(path string) (gpu.Source, error) {
	if err := load(path); err != nil {
		return nil, fmt.Errorf("%w: %w; it comes with the driver of the GPU", gpu.ErrNone, err)
	}
	return open(nvml.New(nvml.WithLibraryPath(path)))
}

func open(lib nvml.Interface) (gpu.Source, error) {
	switch code := lib.Init(); code { // after any other code no function may be called, not even for the code's text
	case nvml.SUCCESS:
	case nvml.ERROR_LIBRARY_NOT_FOUND:
		return nil, fmt.Errorf("%w: libnvidia-ml.so.1 is not installed; it comes with the driver of the GPU", gpu.ErrNone)
	case nvml.ERROR_DRIVER_NOT_LOADED:
		return nil, fmt.Errorf("%w: the kernel module of the NVIDIA driver is not loaded", gpu.ErrNone)
	default:
		return nil, fmt.Errorf("initialise libnvidia-ml.so.1: error %d; nvidia-smi says more", int(code))
	}
	s := &source{lib: lib, missing: map[string]bool{}}
	var lacks []string
	for _, name := range required {
		if s.missing[name] = lib.Extensions().LookupSymbol(name) != nil; s.missing[name] {
			lacks = append(lacks, name)
		}
	}
	if len(lacks) > 0 {
		return nil, fmt.Errorf("libnvidia-ml.so.1 lacks %s; update the driver of the GPU", strings.Join(lacks, ", "))
	}
	for _, name := range optional {
		s.missing[name] = lib.Extensions().LookupSymbol(name) != nil
	}
	if err := s.list(); err != nil {
		return nil, errors.Join(err, s.Close())
	}
	s.subscribe()
	return s, nil
}

// has reports whether the library has functions. One that was not looked up is not there.
func (s *source) has(names ...string) bool {
	for _, name := range names {
		if missing, asked := s.missing[name]; !asked || missing {
			return false
		}
	}
	return true
}

// fault makes an error of a code; nil for success.
func fault(code nvml.Return) error {
	if code == nvml.SUCCESS {
		return nil
	}
	return code
}

// subscribe asks for the XIDs of all processors.
func (s *source) subscribe() {
	if !s.has("nvmlEventSetCreate", "nvmlEventSetFree", "nvmlEventSetWait_v2", "nvmlDeviceRegisterEvents", "nvmlDeviceGetSupportedEventTypes") {
		s.silent = errors.New("the driver reports no XIDs; update it")
		return
	}
	set, code := s.lib.EventSetCreate()
	if s.silent = fault(code); s.silent != nil {
		return
	}
	s.events = set
	for _, p := range s.found {
		if p.lost != "" {
			continue
		}
		supported, code := p.handle.GetSupportedEventTypes()
		if code == nvml.SUCCESS && supported&nvml.EventTypeXidCriticalError != 0 {
			code = p.handle.RegisterEvents(nvml.EventTypeXidCriticalError, set)
		}
		if code != nvml.SUCCESS && code != nvml.ERROR_NOT_SUPPORTED {
			p.failed = append(p.failed, gpu.Failure{Call: "register for XIDs of " + p.String(), Err: code})
		}
	}
}

// WaitXID implements gpu.Source.
func (s *source) WaitXID(bound time.Duration) (*gpu.XID, error) {
	if s.silent != nil {
		return nil, s.silent
	}
	event, code := s.events.Wait(uint32(bound.Milliseconds()))
	switch {
	case code == nvml.ERROR_TIMEOUT:
		return nil, nil
	case code != nvml.SUCCESS:
		return nil, code
	case event.EventType != nvml.EventTypeXidCriticalError:
		return nil, nil
	}
	uuid, code := event.Device.GetUUID()
	if code != nvml.SUCCESS { // as after XID 79
		return nil, fmt.Errorf("XID %d of a GPU that does not say which it is: %w", event.EventData, code)
	}
	return &gpu.XID{GPU: uuid, Code: event.EventData}, nil
}

// Close implements gpu.Source.
func (s *source) Close() error {
	var errs []error
	if s.events != nil {
		errs = append(errs, fault(s.events.Free()))
	}
	return errors.Join(append(errs, fault(s.lib.Shutdown()))...)
}
