//go:build cuda && cgo && linux && amd64

package nvml

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/avgpipe/avgpipe/internal/gpu"
)

// processor is one that the driver listed when the source was opened.
type processor struct {
	gpu.GPU

	handle    nvml.Device
	instances []instance // of one that is divided
	divided   bool
	pci       nvml.PciInfo
	peers     []gpu.Peer
	lost      gpu.Loss      // why it did not say what it is
	failed    []gpu.Failure // of calls that are made once
}

// instance is a part of a divided processor.
type instance struct {
	gpu.GPU

	handle nvml.Device
}

func (p *processor) String() string { return fmt.Sprintf("GPU %d", p.Index) }

// list asks for everything that does not change.
func (s *source) list() error {
	n, code := s.lib.DeviceGetCount()
	if code != nvml.SUCCESS {
		return fmt.Errorf("count the GPUs: %w", code)
	}
	for i := range n {
		p, err := s.identify(i)
		if err != nil {
			p.failed = append(p.failed, gpu.Failure{Call: "identify " + p.String(), Err: err})
			if code, ok := errors.AsType[nvml.Return](err); ok {
				p.lost = cmp.Or(losses[code], gpu.Unlisted)
			}
		}
		s.found = append(s.found, p)
	}
	for _, p := range s.found {
		p.peers = s.peersOf(p)
	}
	return nil
}

// identify asks what a processor is. One that does not answer is listed under its index alone.
func (s *source) identify(index int) (*processor, error) {
	p := &processor{GPU: gpu.GPU{Index: index, UUID: fmt.Sprintf("unknown-%d", index), Name: "unknown"}}
	handle, code := s.lib.DeviceGetHandleByIndex(index)
	if code != nvml.SUCCESS {
		return p, code
	}
	if err := describe(handle, &p.GPU); err != nil {
		return p, err
	}
	p.handle = handle
	if p.pci, code = handle.GetPciInfo(); code == nvml.SUCCESS {
		p.PCIBus = strings.ToLower(string(bytes.TrimRight(p.pci.BusId[:], "\x00")))
	}
	if s.has("nvmlDeviceGetCudaComputeCapability") {
		if major, minor, code := handle.GetCudaComputeCapability(); code == nvml.SUCCESS {
			p.ComputeCapability = fmt.Sprintf("%d.%d", major, minor)
		}
	}
	return p, s.divide(p)
}

// describe asks for what instances have as well.
func describe(handle nvml.Device, g *gpu.GPU) error {
	uuid, code := handle.GetUUID()
	if code != nvml.SUCCESS {
		return fmt.Errorf("its UUID: %w", code)
	}
	name, code := handle.GetName()
	if code != nvml.SUCCESS {
		return fmt.Errorf("its name: %w", code)
	}
	memory, code := handle.GetMemoryInfo()
	if code != nvml.SUCCESS {
		return fmt.Errorf("its memory: %w", code)
	}
	g.UUID, g.Name, g.MemoryBytes = uuid, name, int64(memory.Total) //nolint:gosec // below 2^63
	return nil
}

// divide asks for the instances of a processor in MIG mode.
func (s *source) divide(p *processor) error {
	if !s.has("nvmlDeviceGetMigMode", "nvmlDeviceGetMaxMigDeviceCount", "nvmlDeviceGetMigDeviceHandleByIndex") {
		return nil
	}
	mode, _, code := p.handle.GetMigMode()
	if p.divided = code == nvml.SUCCESS && mode == nvml.DEVICE_MIG_ENABLE; !p.divided {
		return nil
	}
	n, code := p.handle.GetMaxMigDeviceCount()
	if code != nvml.SUCCESS {
		return fmt.Errorf("count its instances: %w", code)
	}
	for i := range n {
		handle, code := p.handle.GetMigDeviceHandleByIndex(i)
		if code == nvml.ERROR_NOT_FOUND || code == nvml.ERROR_INVALID_ARGUMENT {
			continue // there is none
		}
		if code != nvml.SUCCESS {
			return fmt.Errorf("its instance %d: %w", i, code)
		}
		g := gpu.GPU{Index: p.Index, Parent: p.UUID, PCIBus: p.PCIBus, ComputeCapability: p.ComputeCapability}
		if err := describe(handle, &g); err != nil {
			return fmt.Errorf("its instance %d: %w", i, err)
		}
		p.instances = append(p.instances, instance{g, handle})
	}
	if len(p.instances) == 0 {
		return errors.New("it is in MIG mode and has no instance; make one (nvidia-smi mig -cgi ... -C), or end the mode, then restart the daemon")
	}
	return nil
}

// paths are the ways between processors in the words of nvidia-smi.
var paths = map[nvml.GpuTopologyLevel]string{
	nvml.TOPOLOGY_INTERNAL: "PIX", nvml.TOPOLOGY_SINGLE: "PIX", nvml.TOPOLOGY_MULTIPLE: "PXB", nvml.TOPOLOGY_HOSTBRIDGE: "PHB",
	nvml.TOPOLOGY_NODE: "NODE", nvml.TOPOLOGY_SYSTEM: "SYS",
}

// peersOf asks how a processor reaches each other one.
func (s *source) peersOf(p *processor) (all []gpu.Peer) {
	if p.lost != "" || p.divided { // instances exchange nothing
		return []gpu.Peer{}
	}
	ends := s.linkEnds(p)
	all = []gpu.Peer{}
	for _, other := range s.found {
		if other == p || other.lost != "" || other.divided {
			continue
		}
		peer := gpu.Peer{UUID: other.UUID}
		if s.has("nvmlDeviceGetTopologyCommonAncestor") {
			if level, code := p.handle.GetTopologyCommonAncestor(other.handle); code == nvml.SUCCESS {
				peer.Path = paths[level]
			}
		}
		for _, end := range ends {
			if end.Domain == other.pci.Domain && end.Bus == other.pci.Bus && end.Device == other.pci.Device {
				peer.NVLinks++
			}
		}
		all = append(all, peer)
	}
	return all
}

// linkEnds are what the active NVLinks of a processor lead to.
func (s *source) linkEnds(p *processor) (ends []nvml.PciInfo) {
	if !s.has("nvmlDeviceGetNvLinkState", "nvmlDeviceGetNvLinkRemotePciInfo_v2") {
		return nil
	}
	for link := range nvml.NVLINK_MAX_LINKS {
		if state, code := p.handle.GetNvLinkState(link); code == nvml.SUCCESS && state == nvml.FEATURE_ENABLED {
			if end, code := p.handle.GetNvLinkRemotePciInfo(link); code == nvml.SUCCESS {
				ends = append(ends, end)
			}
		}
	}
	return ends
}

// Sample implements gpu.Source.
func (s *source) Sample() (all []gpu.Sample, failures []gpu.Failure, err error) {
	for _, p := range s.found {
		failures = append(failures, p.failed...)
		if p.lost != "" {
			all = append(all, gpu.Sample{GPU: p.GPU, Readings: gpu.Readings{Lost: p.lost, Throttled: []string{}}, Peers: []gpu.Peer{}})
			continue
		}
		r := reader{source: s, handle: p.handle, of: p.String()}
		r.read()
		failures = append(failures, r.failures...)
		if !p.divided {
			all = append(all, gpu.Sample{GPU: p.GPU, Readings: r.readings, Peers: slices.Clone(p.peers)})
			continue
		}
		for _, part := range p.instances {
			of := r.readings
			of.MemoryFreeBytes = get(&r, "nvmlDeviceGetMemoryInfo", part.handle.GetMemoryInfo, free)
			all = append(all, gpu.Sample{GPU: part.GPU, Readings: of, Peers: []gpu.Peer{}})
		}
	}
	return all, failures, nil
}
