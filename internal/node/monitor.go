package node

import (
	"context"
	"errors"
	"fmt"
	"net"
	"time"

	"github.com/coreos/go-systemd/v22/daemon"
	"go.uber.org/zap"
	"golang.org/x/sys/unix"

	"github.com/avgpipe/avgpipe/internal/api"
	"github.com/avgpipe/avgpipe/internal/server"
)

// tickBound is how long the coordinator may take from one look at the jobs to the next while the daemon is ready. It looks ten times
// a second.
const tickBound = 5 * time.Second

func (n *node) Ready(ctx context.Context) []server.Check {
	tick := tickError(n.coordinator().Published().Tick, n.started, time.Now())
	return []server.Check{{Name: "raft", Err: n.raft.Ready()}, {Name: "coordinator", Err: tick}, {Name: "socket", Err: n.answers(ctx)}}
}

// tickError says why a coordinator that last looked at the jobs at tick, or never if that is zero, is not ready.
func tickError(tick, started, now time.Time) error {
	switch {
	case tick.IsZero():
		return fmt.Errorf("it has not looked at the jobs yet, %v after the daemon's start; it does so once Raft is ready", now.Sub(started).Round(time.Millisecond))
	case now.Sub(tick) > tickBound:
		return fmt.Errorf("it last looked at the jobs %v ago; it does so ten times a second", now.Sub(tick).Round(time.Millisecond))
	}
	return nil
}

// answers asks the daemon's own socket.
func (n *node) answers(ctx context.Context) error {
	client := api.NewClient(n.config.Socket)
	defer client.Close()
	v, err := client.Version(ctx)
	if err == nil && v.Node != n.id {
		err = fmt.Errorf("the daemon that answers at %s is of node %s", n.config.Socket, v.Node)
	}
	return err
}

func (n *node) NodeMetrics() server.NodeMetrics {
	p, counts := n.coordinator().Published(), &n.coordinator().Counts
	m := server.NodeMetrics{
		Cores: len(n.config.Cores), CoresFree: p.FreeCores, Leader: n.raft.IsLeader(), RaftApplied: n.raft.Applied(), StateFree: -1, StateSize: -1,
		Ended:   map[api.State]uint64{api.Done: counts.Done.Load(), api.Failed: counts.Failed.Load(), api.Cancelled: counts.Cancelled.Load()},
		Commits: counts.Commits.Load(), WorkerDeaths: counts.Deaths.Load(), LastTick: p.Tick, GPUs: n.gpus.Status(),
	}
	if free, size, err := n.agent.Disk(context.Background()); err == nil { // else not known
		m.StateFree, m.StateSize = free, size
	}
	return m
}

// listen binds the socket of the API and the address for metrics, if there is one, or neither.
func (n *node) listen(ctx context.Context) (socket, monitoring net.Listener, err error) {
	socket, err = server.Listen(ctx, n.config.Socket, n.config.Group)
	if err != nil || n.config.MetricsAddress == "" {
		return socket, nil, keyError("socket", err, unix.ENOTSOCK, unix.ENOTDIR)
	}
	var c net.ListenConfig
	monitoring, err = c.Listen(ctx, "tcp", n.config.MetricsAddress)
	if err != nil {
		err = keyError("metrics_address", fmt.Errorf("listen for metrics (metrics_address): %w", err), unix.EADDRNOTAVAIL, unix.EACCES)
		return nil, nil, errors.Join(err, socket.Close())
	}
	n.log.Info("metrics", zap.Stringer("address", monitoring.Addr()))
	return socket, monitoring, nil
}

// notify tells systemd how the daemon is, if systemd started it.
func (n *node) notify(state string) {
	if _, err := daemon.SdNotify(false, state); err != nil {
		n.log.Warn("notify systemd", zap.String("state", state), zap.Error(err))
	}
}

// watchdog tells systemd that the daemon lives for as long as the coordinator ticks.
func (n *node) watchdog(ctx context.Context) {
	interval, err := daemon.SdWatchdogEnabled(false)
	if err != nil {
		n.log.Warn("ask for systemd's watchdog", zap.Error(err))
		return
	}
	if interval == 0 {
		return
	}
	ticker := time.NewTicker(interval / 3)
	defer ticker.Stop()
	for {
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return
		}
		last := n.coordinator().Published().Tick
		if last.IsZero() { // it has not looked at the jobs yet
			last = n.started
		}
		if age := time.Since(last); age < interval/2 {
			n.notify(daemon.SdNotifyWatchdog)
		} else {
			n.log.Error("the coordinator hangs", zap.Duration("since", age))
		}
	}
}

// notifyStop tells systemd that the daemon ends, and how long that may take.
func (n *node) notifyStop(bound time.Duration) {
	n.notify(fmt.Sprintf("%s\nEXTEND_TIMEOUT_USEC=%d", daemon.SdNotifyStopping, (bound + 10*time.Second).Microseconds()))
}
