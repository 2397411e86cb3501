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

	"go.uber.org/zap/zapcore"
	"golang.org/x/sync/errgroup"

	"go.uber.org/zap"

	"github.com/avgpipe/avgpipe/internal/agent"
	"github.com/avgpipe/avgpipe/internal/agent/agenttest"
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
	c.DriftHold = 0
	c.Log = zap.New(zapcore.NewCore(logging.Encoder(), zapcore.Lock(zapcore.AddSync(log)), zap.InfoLevel))
	return c
}

// runNode is a node until SIGTERM. On SIGUSR1 it writes profiles to a directory.
func runNode(arguments []string) error {
	var p place
	if err := json.Unmarshal([]byte(arguments[0]), &p); err != nil {
		return fmt.Errorf("read the node to be: %w", err)
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	var profiles sync.WaitGroup
	defer profiles.Wait()
	wanted := make(chan os.Signal, 1)
	signal.Notify(wanted, syscall.SIGUSR1)
	profiles.Go(func() {
		select {
		case <-wanted:
			if err := writeProfiles(ctx, filepath.Join(p.Dir, "profiles")); err != nil {
				fmt.Fprintln(os.Stderr, "profile:", err)
			}
		case <-ctx.Done():
		}
	})
	return node.Run(ctx, p.configured(os.Stderr))
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

// joins is how many nodes of a herd join at once.
const joins = 4

// runHerd is many nodes with pretended workers until SIGTERM.
func runHerd(arguments []string) error {
	text, err := os.ReadFile(arguments[0])
	if err != nil {
		return err
	}
	var all []place
	if err := json.Unmarshal(text, &all); err != nil {
		return fmt.Errorf("read the nodes to be: %w", err)
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	run, ctx := errgroup.WithContext(ctx)
	join, joining := errgroup.WithContext(ctx)
	join.SetLimit(joins)
	for _, p := range all {
		join.Go(func() error {
			if err := p.join(joining); err != nil {
				return err
			}
			run.Go(func() error { return p.run(ctx) })
			return nil
		})
	}
	return errors.Join(join.Wait(), run.Wait())
}

// join makes the node a member, once somebody leads.
func (p *place) join(ctx context.Context) error {
	for {
		_, err := node.Join(ctx, p.Dir, p.Name, p.Address, version, p.Token, p.Ask)
		if err == nil {
			return nil
		}
		if pause(ctx, time.Second); ctx.Err() != nil {
			return fmt.Errorf("join as %s: %w", p.Name, err)
		}
	}
}

// run is the node, whose workers are goroutines.
func (p *place) run(ctx context.Context) error {
	log, err := os.Create(p.Dir + ".log")
	if err != nil {
		return err
	}
	defer log.Close() //nolint:errcheck // only a log
	workers := agenttest.Pretend(roundTime)
	defer workers.KillAll()
	c := p.configured(log)
	c.Processes = workers
	if err := node.Run(ctx, c); err != nil {
		return fmt.Errorf("node %s: %w", p.Name, err)
	}
	return nil
}
