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

// contactBound is how old the state of a node that does not lead may be while it is ready. Raft hears of the leader several times a second.
const contactBound = 5 * time.Second

// Ready implements server.Backend. The node that leads is ready while it looks at the jobs, another one while it knows who leads and hears of it.
func (n *node) Ready(ctx context.Context) []server.Check {
	checks := []server.Check{{Name: "raft", Err: n.raft.Ready()}}
	switch now := time.Now(); {
	case n.coordinates():
		tick := n.coordinator().Published().Tick
		checks = append(checks, server.Check{Name: "coordinator", Err: tickError(tick, now.Sub(n.begun()), now)})
	case n.raft.IsLeader():
		checks = append(checks, server.Check{Name: "coordinator", Err: errors.New("this node has begun to lead, and asks the others what runs there")})
	default:
		checks = append(checks, server.Check{Name: "leader", Err: n.contact()})
	}
	return append(checks, server.Check{Name: "socket", Err: n.answers(ctx)})
}

// coordinates reports whether the coordinator of this node is to look at the jobs.
func (n *node) coordinates() bool { return n.member == nil || n.leads.Load() }

// begun is when the coordinator of this node began.
func (n *node) begun() time.Time {
	if at := n.since.Load(); at != nil {
		return *at
	}
	return n.started
}

// tickError says why a coordinator that runs for so long and last looked at the jobs at tick, or never if that is zero, is not ready.
func tickError(tick time.Time, runs time.Duration, now time.Time) error {
	switch {
	case tick.IsZero():
		return fmt.Errorf("it has not looked at the jobs yet, %v after its start; it does so once Raft is ready", runs.Round(time.Millisecond))
	case now.Sub(tick) > tickBound:
		return fmt.Errorf("it last looked at the jobs %v ago; it does so ten times a second", now.Sub(tick).Round(time.Millisecond))
	}
	return nil
}

// contact says why a node that does not lead is not ready.
func (n *node) contact() error {
	leader, age := n.raft.Leader(), n.raft.Age()
	if leader == "" {
		return fmt.Errorf("%w; the state here is as of %v ago", n.leaderless(), age.Round(time.Millisecond))
	}
	return contactError(leader, age)
}

// contactError says why a node that heard of the leader so long ago is not ready.
func contactError(leader string, age time.Duration) error {
	switch {
	case age > contactBound:
		return fmt.Errorf("node %s leads, and was last heard of %v ago", leader, age.Round(time.Millisecond))
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

// hangs is how long ago the coordinator of this node last looked at the jobs. It is 0 on a node that does not lead: that one waits, for as long as
// it takes, and a restart would help nobody.
func (n *node) hangs(now time.Time) time.Duration {
	if !n.coordinates() {
		return 0
	}
	last := n.begun()
	if tick := n.coordinator().Published().Tick; tick.After(last) {
		last = tick
	}
	return now.Sub(last)
}

// watchdog tells systemd that the daemon lives, for as long as its coordinator ticks where it leads.
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
		if age := n.hangs(time.Now()); age < interval/2 {
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
