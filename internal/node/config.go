package node

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strconv"
	"time"

	"go.uber.org/zap"
	"golang.org/x/sys/unix"

	"github.com/avgpipe/avgpipe/internal/agent"
	"github.com/avgpipe/avgpipe/internal/coordinator"
	"github.com/avgpipe/avgpipe/internal/gpu"
	"github.com/avgpipe/avgpipe/internal/mux"
	"github.com/avgpipe/avgpipe/internal/objectstore"
	"github.com/avgpipe/avgpipe/internal/remotedata"
	"github.com/avgpipe/avgpipe/internal/server"
	"github.com/avgpipe/avgpipe/internal/worker/control"
)

// Config configures a node.
type Config struct {
	// StateDir holds everything that outlives a restart. It is made when it is missing. Its path must be short: each job's
	// worker has a unix socket below it.
	StateDir string
	// Socket is where the API listens.
	Socket string
	// Group may use the socket when it exists. Default avgpipe.
	Group string
	// AdminGroup may do everything with the jobs of everybody. Default avgpipe-admin.
	AdminGroup string
	// MetricsAddress, host:port, serves metrics and health over TCP, without a check of who asks. Empty: nothing does.
	MetricsAddress string
	// Listen, host:port, is where the other nodes and clients with certificates reach a node that is one of several. Required of those, and empty
	// of a node that is alone.
	Listen string
	// Advertise is the address that the others are told. Default: Listen.
	Advertise string
	// UCXDevices names the network devices on which links between workers may go over UCX, commas between them: it does not encrypt. Empty: none.
	UCXDevices string
	// NodeID names the node for good; the first start writes it down. Default: the host's name.
	NodeID string
	// Cores are the processor cores that jobs compute on. Default: all that the process may use.
	Cores []int
	// MemoryBytes is what jobs may take of this host's memory. Default: all but a reserve.
	MemoryBytes int64
	// OpenGPUs opens what knows the graphics processors of this host. Nil: nothing does, and there are none.
	OpenGPUs func() (gpu.Source, error)
	// SelectGPUs says which of them jobs may use. Default: all.
	SelectGPUs gpu.Selection
	// BootID names this boot of the host. Nil: the kernel does.
	BootID func() (string, error)
	// NoGPU says why this program can use none of them, whichever there are; empty: it can. Nil: it can.
	NoGPU func() string
	// Graphics is asked before a worker or a tuning that uses GPUs starts, for flags of its command. An error that is an obstacle (obstacle.Of) may pass. Nil: there are none.
	Graphics func(ctx context.Context) ([]string, error)
	// WorkerCommand starts a worker; --assignment FILE is appended. Required.
	WorkerCommand []string
	// TuneCommand starts a tune process; --request FILE is appended. Required.
	TuneCommand []string
	// InspectCommand starts a process that runs Inspect. Required.
	InspectCommand []string
	// ExportCommand starts a process that runs outputdir.Receive. Required.
	ExportCommand []string
	// SpeedCommand prints a Speed: how fast a core of this host is. Nil: nobody knows, and all hosts are taken to be as fast.
	SpeedCommand []string
	// Buckets says where the server of buckets is that jobs may copy their rounds to. Nil: there is none.
	Buckets *objectstore.Config
	// Sources are what jobs may read from elsewhere; they are valid. Empty: nothing.
	Sources remotedata.Sources
	// DataCache is what copies of that may take. Zero: there is no bound.
	DataCache Room
	// Limits returns what may change while the daemon runs. It is asked whenever a limit is needed and may be called
	// concurrently. Default: the defaults of Limits.
	Limits func() Limits
	// DriftHold is how long the batch times of a tuned job must be beyond their bound, or back within half of it, before that
	// is told. Default 10 s: what workers observe is the mean of as long.
	DriftHold time.Duration
	// Version is the program's, for people.
	Version string
	// Protocols are the versions of the protocols between nodes that this program speaks. Default: mux.Spoken; tests pretend to be other programs.
	Protocols mux.Versions
	// ProbeEvery is membership.Config's. Default: its own.
	ProbeEvery time.Duration
	// Log is the daemon's log. Required.
	Log *zap.Logger
	// Processes are those of jobs. Nil: the operating system's.
	Processes agent.Processes
	// OnReady is called when the API answers. Nil: nobody waits for it.
	OnReady func()
}

// Room is an amount of disk: bytes, or a share of the file system.
type Room struct {
	Bytes int64
	Share float64
}

// Limits are the part of the configuration that may change while the daemon runs.
type Limits struct {
	Agent agent.Limits
	Jobs  coordinator.Limits
}

func (l Limits) withDefaults() Limits {
	a, j := &l.Agent, &l.Jobs
	for of, initial := range map[*time.Duration]time.Duration{
		&a.OrphanAfter: time.Hour, &a.QuarantineFor: 24 * time.Hour,
		&j.ResponseTimeout: 30 * time.Second, &j.RetryFirst: 500 * time.Millisecond, &j.RetryLongest: time.Minute,
		&j.ResplitAfter: time.Minute,
	} {
		*of = cmp.Or(*of, initial)
	}
	j.RetryLimit, a.LogBytes, a.LogFiles = cmp.Or(j.RetryLimit, 10), cmp.Or(a.LogBytes, 16<<20), cmp.Or(a.LogFiles, 3)
	return l
}

// withDefaults fills in what is not set.
func (c Config) withDefaults() (Config, error) {
	c.Group, c.AdminGroup = cmp.Or(c.Group, "avgpipe"), cmp.Or(c.AdminGroup, "avgpipe-admin")
	if c.NoGPU == nil {
		c.NoGPU = func() string { return "" }
	}
	c.DriftHold, c.Protocols = cmp.Or(c.DriftHold, 10*time.Second), c.Protocols.Or(mux.Spoken)
	if c.BootID == nil {
		c.BootID = bootID
	}
	if c.OpenGPUs == nil {
		c.OpenGPUs = func() (gpu.Source, error) { return nil, gpu.ErrNone }
	}
	limits := c.Limits
	if limits == nil {
		limits = func() Limits { return Limits{} }
	}
	c.Limits = func() Limits { return limits().withDefaults() }
	var err error
	if len(c.Cores) == 0 {
		if c.Cores, err = AvailableCores(); err != nil {
			return c, err
		}
	}
	if c.StateDir, err = filepath.Abs(c.StateDir); err != nil {
		return c, fmt.Errorf("state directory %q: %w", c.StateDir, err)
	}
	return c, nil
}

// KeyError says that the value of a key of the daemon's configuration file does not fit this host, or what the state directory holds.
type KeyError struct {
	Key string
	Err error
}

func (e *KeyError) Error() string { return e.Err.Error() }

// Unwrap gives the cause.
func (e *KeyError) Unwrap() error { return e.Err }

// keyError makes an error that lasts until a key of the configuration is changed one of that key.
func keyError(key string, err error, lasting ...error) error {
	if slices.ContainsFunc(lasting, func(l error) bool { return errors.Is(err, l) }) {
		return &KeyError{key, err}
	}
	return err
}

// Validate reports the first field that does not fit.
func (c Config) Validate() error {
	longest := control.SocketPath(agent.JobDir(c.StateDir, strconv.Itoa(agent.MaxJobID)))
	switch {
	case c.StateDir == "":
		return errors.New("node: no state directory")
	case c.Socket == "":
		return errors.New("node: no socket")
	case len(c.Socket) > server.MaxSocketPath:
		return &KeyError{"socket", fmt.Errorf("socket %s: %d bytes are too long for the path of a socket; at most %d fit", c.Socket, len(c.Socket), server.MaxSocketPath)}
	case len(longest) > server.MaxSocketPath:
		return &KeyError{"state_dir", fmt.Errorf("state directory %s: %d bytes are too long for the workers' sockets below it; at most %d fit",
			c.StateDir, len(c.StateDir), len(c.StateDir)-(len(longest)-server.MaxSocketPath))}
	case len(c.WorkerCommand) == 0 || len(c.TuneCommand) == 0 || len(c.InspectCommand) == 0 || len(c.ExportCommand) == 0 || c.Log == nil:
		return errors.New("node: WorkerCommand, TuneCommand, InspectCommand, ExportCommand and Log are required")
	case c.Limits != nil && c.Limits().Agent.OrphanAfter < time.Second:
		return fmt.Errorf("node: OrphanAfter %v: a daemon takes up to a second to come back", c.Limits().Agent.OrphanAfter)
	}
	return nil
}

// raftDir holds Raft's log and snapshots.
func raftDir(state string) string { return filepath.Join(state, "raft") }

// auditPath is the record of changes and refusals.
func auditPath(state string) string { return filepath.Join(state, "audit.log") }

// AvailableCores lists the cores that this process may use.
func AvailableCores() ([]int, error) {
	var set unix.CPUSet
	if err := unix.SchedGetaffinity(0, &set); err != nil {
		return nil, fmt.Errorf("node: which cores may be used: %w", err)
	}
	var cores []int
	for i := range len(set) * strconv.IntSize {
		if set.IsSet(i) {
			cores = append(cores, i)
		}
	}
	return cores, nil
}
