package gpu

import "time"

// Readings are what a processor reports at one moment. What a driver or a processor does not tell is null. An instance has those of its processor,
// but for its own memory.
type Readings struct {
	Utilization       *float64 `json:"utilization"` // share of the time in which a kernel ran
	MemoryFreeBytes   *int64   `json:"memory_free_bytes"`
	PowerWatts        *float64 `json:"power_watts"`
	PowerLimitWatts   *float64 `json:"power_limit_watts"`
	TemperatureC      *int     `json:"temperature_c"`
	SMClockMHz        *int     `json:"sm_clock_mhz"`
	MemoryClockMHz    *int     `json:"memory_clock_mhz"`
	Throttled         []string `json:"throttled"` // why its clocks are lower than they could be; "idle" is a reason
	ECCCorrected      *uint64  `json:"ecc_corrected"`
	ECCUncorrected    *uint64  `json:"ecc_uncorrected"` // both since the driver was loaded or the processor was reset
	Rows              *Rows    `json:"rows"`            // remapped rows of its memory
	RetiredPages      *int     `json:"retired_pages"`   // of processors that do not remap rows
	RetirementPending *bool    `json:"retirement_pending"`
	NVLinks           *int     `json:"nvlinks"` // that are active
	ComputeProhibited bool     `json:"compute_prohibited"`
	Recovery          Recovery `json:"recovery"` // what the driver asks for; empty where it does not say
	Lost              Loss     `json:"lost"`     // why the driver cannot speak to it; empty where it can
	Unread            string   `json:"-"`        // why none of these is known; empty where the source reads them
}

// Rows are remapped rows of a processor's memory.
type Rows struct {
	Corrected   int  `json:"corrected"` // after errors that were corrected
	Uncorrected int  `json:"uncorrected"`
	Pending     bool `json:"pending"` // one is remapped at the next reset
	Failed      bool `json:"failed"`  // one could not be remapped
}

// Recovery is what the driver asks for after an error.
type Recovery string

// What it may ask for.
const (
	RecoverNone          Recovery = "none"
	RecoverReset         Recovery = "reset"
	RecoverReboot        Recovery = "reboot"
	RecoverDrainPeers    Recovery = "drain_p2p"
	RecoverDrainAndReset Recovery = "drain_and_reset"
	RecoverIMEX          Recovery = "recover_imex_domain"
	RecoverBusReset      Recovery = "bus_reset"
	RecoverUnknown       Recovery = "unknown" // an action of a newer driver
)

// Loss is why the driver cannot speak to a processor.
type Loss string

// The losses.
const (
	FellOff    Loss = "fell_off"    // it is not reached over the bus
	NeedsReset Loss = "needs_reset" // it answers nothing until it is reset
	Unlisted   Loss = "unlisted"    // the driver lists it no more
)

// Why clocks are low, as far as health depends on it. Others have names of their own, such as "idle".
const (
	ThrottleThermal    = "thermal"
	ThrottlePowerBrake = "power_brake"
	ThrottleHardware   = "hardware_slowdown" // one of the two above, of processors that do not say which
)

// Peer is the way from one processor to another.
type Peer struct {
	UUID string `json:"uuid"`
	Path string `json:"path"` // what both hang on, as `nvidia-smi topo` writes it: PIX, PXB, PHB, NODE, SYS; empty where it is not known
	// NVLinks are the direct links between the two. Those that lead to a switch lead to all processors at it and are not counted here.
	NVLinks int `json:"nvlinks"`
}

// Sample is what a source says of one processor.
type Sample struct {
	GPU

	Readings Readings
	Peers    []Peer
}

// GPUStatus is a processor and what it reported last.
type GPUStatus struct {
	GPU

	Readings Readings `json:"readings"`
	Peers    []Peer   `json:"peers"`
	// XIDs are the last of each code, in the order of codes: since the daemon started, and those that say something about the processor until they are cleared.
	XIDs []XID `json:"xids"`
}

// XID is an error of a processor that its driver reported.
type XID struct {
	GPU   string    `json:"-"` // the UUID of the processor, not of an instance; empty where the driver did not say
	Code  uint64    `json:"code"`
	Count int       `json:"count"`
	At    time.Time `json:"at"` // the last one
}
