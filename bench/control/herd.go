package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime/debug"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/avgpipe/avgpipe/internal/agent/agenttest"
	"github.com/avgpipe/avgpipe/internal/api"
	"github.com/avgpipe/avgpipe/internal/node"
)

// batch is how many nodes of the herd join at once. Each that joins is told of to all others a dozen times, and learns of all of them: with too many at once, on few
// cores, some are late, count as suspect, and that has to be told to all others too.
const batch = 8

// startHerd starts the process of the herd and has its nodes join, some after the others, each time once those before answer.
func (c *testbed) startHerd(ctx context.Context, count int, say func(string)) (err error) {
	read, write, err := os.Pipe()
	if err != nil {
		return err
	}
	c.places = write
	c.herd, err = launch(filepath.Join(c.dir, "herd.log"), "herd", filepath.Join(c.dir, "herd"), read)
	if err = errors.Join(err, read.Close()); err != nil {
		return err
	}
	told := time.Now()
	for from := 0; from < count; from += batch {
		to := min(from+batch, count)
		for i := from; i < to; i++ {
			p, err := c.invite(ctx, fmt.Sprintf("n%03d", i+1), c.memory, address(1+i/200, i%200))
			if err == nil {
				err = json.NewEncoder(write).Encode(p)
			}
			if err != nil {
				return err
			}
		}
		if err := c.until(ctx, formBound, "all nodes answer", func(n api.NodeStatus) bool { return n.State == api.NodeAlive }, to); err != nil {
			return err
		}
		if time.Since(told) > sayEvery {
			say(fmt.Sprintf("%d of %d nodes answer", to, count))
			told = time.Now()
		}
	}
	return nil
}

// runHerd is many nodes with pretended workers until SIGTERM: those that it reads from standard input, a line each.
func runHerd(arguments []string) error {
	debug.SetGCPercent(herdGC)
	return untilTerminated(arguments[0], func(ctx context.Context) error {
		run, ctx := errgroup.WithContext(ctx)
		for in := json.NewDecoder(os.Stdin); ; {
			var p place
			if err := in.Decode(&p); errors.Is(err, io.EOF) {
				return run.Wait()
			} else if err != nil {
				return fmt.Errorf("read the nodes to be: %w", err)
			}
			run.Go(func() error {
				if err := p.join(ctx); err != nil {
					return err
				}
				return p.run(ctx)
			})
		}
	})
}

// probeEvery is how often a node of the herd probes another one by gossip, which is a tenth as often as others do, and how long it waits for the answer. With the times
// of others, which allow 0.1 s, one that waits for its turn of a core finds another one suspect, which all have to be told, and so on.
const probeEvery = 2 * time.Second

// pretendedSight answers what of that a job reads is missing on a host of the herd: nothing. On a host of its own a node starts a process of the daemon for that, which takes it some
// 50 milliseconds of a core; here those of all hosts would share the cores with the node that is measured.
var pretendedSight = []string{"/bin/sh", "-c", `cat >/dev/null; echo '{"sight":{}}'`}

// herdGC lets the herd's heap grow to several times of what is alive: that is memory, which there is enough of, for processor time, which others need.
const herdGC = 400

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
	c.Processes, c.ProbeEvery, c.InspectCommand = workers, probeEvery, pretendedSight
	if err := node.Run(ctx, c); err != nil {
		return fmt.Errorf("node %s: %w", p.Name, err)
	}
	return nil
}
