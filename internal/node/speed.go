package node

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"math"
	"os/exec"
	"time"

	"go.uber.org/zap"

	"github.com/avgpipe/avgpipe/internal/process"
)

// Speed is what Config.SpeedCommand prints.
type Speed struct {
	GFLOPs float64 `json:"gflops"` // that one core does in a second
	Device string  `json:"device"` // that did them, for people
}

// How the speed of this host's cores is measured.
const (
	speedBound = 30 * time.Second // of one measurement, which takes less than a second
	speedAgain = 10 * time.Second // between two looks whether the host is idle
)

// measureSpeed measures the host's cores once, as soon as no job works here, so that nodes can be compared. A lone node is compared with none.
func (n *node) measureSpeed(ctx context.Context) {
	if n.member == nil || len(n.config.SpeedCommand) == 0 {
		return
	}
	for ctx.Err() == nil {
		running, err := n.agent.Processes(ctx)
		if err == nil && len(running) == 0 {
			s, err := askSpeed(ctx, n.config.SpeedCommand)
			if err != nil {
				n.log.Warn("the speed of this host is not known; it is taken to be that of the others", zap.Error(err))
				return
			}
			n.speed.Store(math.Float64bits(s.GFLOPs))
			n.log.Info("the speed of a core was measured", zap.Float64("gflops", s.GFLOPs), zap.String("device", s.Device))
			return
		}
		sleep(ctx, speedAgain)
	}
}

// askSpeed has a process of its own measure.
func askSpeed(ctx context.Context, command []string) (s Speed, err error) {
	ctx, cancel := context.WithTimeout(ctx, speedBound)
	defer cancel()
	cmd := exec.CommandContext(ctx, command[0], command[1:]...)
	var messages bytes.Buffer
	cmd.Dir, cmd.Stderr, cmd.WaitDelay = "/", &messages, time.Second
	process.Isolate(cmd)
	text, err := cmd.Output()
	if err != nil {
		return s, fmt.Errorf("measure the speed of a core: %w: %.200s", err, messages.String())
	}
	if err := json.Unmarshal(text, &s); err != nil || s.GFLOPs <= 0 || math.IsInf(s.GFLOPs, 0) {
		return s, fmt.Errorf("measure the speed of a core: %s printed %.200q (%w)", command[0], text, err)
	}
	return s, nil
}
