package cuda

// Processor is a graphics processor that the driver shows to this process.
type Processor struct {
	UUID, Name, PCIBus string
	Capability         string // of CUDA: "9.0"
	MemoryBytes        int64
}
