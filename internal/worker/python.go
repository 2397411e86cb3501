package worker

import (
	"context"
	"errors"
	"fmt"
	"os"
	"syscall"

	"go.uber.org/zap"

	"github.com/avgpipe/avgpipe/internal/dryrun"
	"github.com/avgpipe/avgpipe/internal/export"
	"github.com/avgpipe/avgpipe/internal/spec"
	"github.com/avgpipe/avgpipe/stage"
	"github.com/avgpipe/avgpipe/stage/device"
	"github.com/avgpipe/avgpipe/stage/foreign"
	"github.com/avgpipe/avgpipe/stage/model"
)

// checkProgram refuses a user's program that has changed since the job was submitted.
func (o *opened) checkProgram(s *spec.Spec) error {
	found, err := dryrun.Digest(o.access, &s.Job)
	if err != nil {
		return &permanentError{fmt.Errorf("model.python: %w", err)}
	}
	if path, _ := s.Job.Model.Program(); found != s.Program {
		return &permanentError{fmt.Errorf("model.python: %w", export.Changed(path, found, s.Program))}
	}
	return nil
}

// overInterpreter is what wraps the device of a row of the plan, for modules of the user's, which compute on a GPU or, "", on cores; nil where there are none, or
// nothing is computed.
func (h *host) overInterpreter(ctx context.Context, row int, gpu string, cores []int, to *stage.Lookup) func(device.Device) (device.Device, error) {
	if !h.hasModules(row) {
		return nil
	}
	return func(on device.Device) (device.Device, error) {
		j := &h.assignment.Spec.Job
		c := dryrun.Config(j, h.userID())
		c.Threads, c.Cores, c.As = max(1, int(j.Devices.CPU.Threads)), cores, h.credential()
		c.GPU, c.TF32 = gpu, j.Devices.GPU.TF32
		if h.log != nil {
			c.Log = func(stream, line string) {
				h.log.Info("the user's program wrote", zap.Int("device", row), zap.String("stream", stream), zap.String("line", line))
			}
			c.LeftOut = func(stream string, lines, bytes int) {
				h.log.Warn("the user's program writes more than its log takes, which is 64 KiB a second; lines are left out",
					zap.Int("device", row), zap.String("stream", stream), zap.Int("lines", lines), zap.Int("bytes", bytes))
			}
		}
		p, err := foreign.Start(ctx, c)
		if err != nil {
			return nil, err
		}
		built, err := h.buildModules(p)
		if err != nil {
			return nil, errors.Join(fmt.Errorf("model.python: %w", err), p.Close())
		}
		if found, want := model.SampleCounts(built.Samples), h.model.Samples; found != want {
			return nil, errors.Join(&permanentError{fmt.Errorf("data.samples: %s has %d samples to train on and %d to evaluate on; expected %d and %d, as when the job was submitted: submit it anew", j.Data.Samples,
				found.Train, found.HeldOut, want.Train, want.HeldOut)}, p.Close())
		}
		*to = p.Lookup(built)
		return foreign.Over(p, on), nil
	}
}

// hasModules reports whether a stage of a row of the plan has modules of the user's.
func (h *host) hasModules(row int) bool {
	for k, at := range h.plan.Placement() {
		if at == row && h.model.HasModules(h.ranges[k].From, h.ranges[k].To) {
			return true
		}
	}
	return false
}

// buildModules has the user's modules built, of which the interpreter uses those of its stages.
func (h *host) buildModules(p *foreign.Process) (foreign.Built, error) {
	c, err := h.model.Modules()
	if err != nil {
		return foreign.Built{}, err
	}
	inputs, err := c.Inputs()
	if err != nil {
		return foreign.Built{}, err
	}
	return p.Build(dryrun.Program(&h.assignment.Spec.Job, inputs), h.assignment.Spec.Job.Seed)
}

// userID is whose program it is.
func (h *host) userID() uint32 {
	if h.access.User == nil {
		return uint32(os.Geteuid()) //nolint:gosec // a user id fits
	}
	return h.access.User.UID
}

// credential is whom the interpreter runs as: the user whose program it is, where this process may choose.
func (h *host) credential() *syscall.Credential {
	user := h.access.User
	if user == nil || user.UID == 0 || os.Geteuid() != 0 {
		return nil
	}
	c := &syscall.Credential{Uid: user.UID, Gid: user.UID, Groups: user.GIDs}
	if len(user.GIDs) > 0 {
		c.Gid = user.GIDs[0]
	}
	return c
}
