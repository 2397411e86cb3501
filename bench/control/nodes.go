package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"runtime/pprof"
	"sync"
	"syscall"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"

	"github.com/avgpipe/avgpipe/internal/agent"
	"github.com/avgpipe/avgpipe/internal/coordinator"
	"github.com/avgpipe/avgpipe/internal/logging"
	"github.com/avgpipe/avgpipe/internal/node"
	"github.com/avgpipe/avgpipe/internal/node/nodetest"
)

// place is a node of the cluster: its name, its state directory and where it listens. One that joins has a token and who to ask.
type place struct {
	Name    string   `json:"name"`
	Dir     string   `json:"dir"`
	Address string   `json:"address"`
	Token   string   `json:"token,omitempty"`
	Ask     []string `json:"ask,omitempty"`
}

// version is what all nodes say that their program is.
const version = "bench"

// roundTime is how long a pretended round takes: that of a job of some size.
const roundTime = time.Second

// profiled is how long a profile covers.
const profiled = 15 * time.Second

// configured is the configuration of a node, with the limits of a daemon.
func (p *place) configured(log io.Writer) node.Config {
	c := nodetest.Config(p.Dir, log)
	c.NodeID, c.Listen, c.Version, c.Cores = p.Name, p.Address, version, []int{0}
	c.SpeedCommand = []string{"echo", `{"gflops": 50}`}
	c.Limits = func() node.Limits { return node.Limits{Agent: agent.Limits{}, Jobs: coordinator.Limits{}} }
	c.InspectCommand = append([]string{"nice"}, c.InspectCommand...) // jobs are looked at in processes that are to wait where cores are few
	c.DriftHold = 0
	c.Log = zap.New(zapcore.NewCore(logging.Encoder(), zapcore.Lock(zapcore.AddSync(log)), zap.InfoLevel))
	return c
}

// runNode is a node until SIGTERM.
func runNode(arguments []string) error {
	var p place
	if err := json.Unmarshal([]byte(arguments[0]), &p); err != nil {
		return fmt.Errorf("read the node to be: %w", err)
	}
	return untilTerminated(filepath.Join(p.Dir, "profiles"), func(ctx context.Context) error { return node.Run(ctx, p.configured(os.Stderr)) })
}

// untilTerminated runs until SIGTERM. On each SIGUSR1 it writes profiles to files whose names begin so.
func untilTerminated(profiles string, run func(ctx context.Context) error) error {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	var profiling sync.WaitGroup
	defer profiling.Wait()
	wanted := make(chan os.Signal, 1)
	signal.Notify(wanted, syscall.SIGUSR1)
	profiling.Go(func() {
		for {
			select {
			case <-wanted:
				if err := writeProfiles(ctx, profiles); err != nil {
					fmt.Fprintln(os.Stderr, "profile:", err)
				}
			case <-ctx.Done():
				return
			}
		}
	})
	return run(ctx)
}

// writeProfiles writes what this process does for a while, and what it has allocated.
func writeProfiles(ctx context.Context, dir string) error {
	cpu, err := os.Create(dir + ".cpu")
	if err != nil {
		return err
	}
	err = pprof.StartCPUProfile(cpu)
	if err == nil {
		pause(ctx, profiled)
		pprof.StopCPUProfile()
	}
	if err = errors.Join(err, cpu.Close()); err != nil {
		return err
	}
	heap, err := os.Create(dir + ".heap")
	if err != nil {
		return err
	}
	return errors.Join(pprof.WriteHeapProfile(heap), heap.Close())
}

func pause(ctx context.Context, d time.Duration) {
	select {
	case <-time.After(d):
	case <-ctx.Done():
	}
}
