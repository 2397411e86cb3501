package node

import (
	"context"
	"fmt"
	"time"

	"github.com/coreos/go-systemd/v22/daemon"
	"go.uber.org/zap"
)

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
		if age := time.Since(n.coordinator.Published().Tick); age < interval/2 {
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
