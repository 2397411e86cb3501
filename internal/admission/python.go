package admission

import (
	"context"
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/avgpipe/avgpipe/internal/data"
	"github.com/avgpipe/avgpipe/internal/dryrun"
	"github.com/avgpipe/avgpipe/internal/export"
	"github.com/avgpipe/avgpipe/internal/jobfile"
	"github.com/avgpipe/avgpipe/internal/words"
)

// dryRunLimit bounds each of the steps of a dry run: less than an inspect process has, so that the user learns which.
const dryRunLimit = inspectLimit * 2 / 5

// checkPython builds the user's modules in his interpreter, and tries them.
func (a *admission) checkPython(ctx context.Context) {
	path, _ := a.job.Model.Program()
	var err error
	if a.program, err = dryrun.Digest(a.access, a.job); err != nil {
		a.at.Refuse("model.python", data.Nearest(a.access, path), "model.python: %v", err)
		return
	}
	if err := unbound(); err != nil {
		a.at.Refuse("model.python", "", "model.python: %v", err)
		return
	}
	front, err := dryrun.Front(a.access, a.job)
	if err != nil {
		a.at.Refuse("model.from", "", "model.from: %v", err)
		return
	}
	if family := a.job.Model.Family; front != nil && family != "" && family != front.Family {
		a.at.Refuse("model.family", front.Family, "model.family is %s, but %s holds a %s", family, a.job.Model.From, front.Family)
		return
	}
	with := dryrun.Config(a.job, a.access.User.UID)
	with.StartTimeout = dryRunLimit
	c, err := dryrun.Run(ctx, a.job, front, with)
	if err != nil {
		a.at.Refuse("model.python", "", "model.python: %v", err)
		return
	}
	m, err := c.Build()
	if err != nil {
		a.at.Refuse("model.python", "", "model.python: %v", err)
		return
	}
	a.job.Model.Family = m.Family
	behind := ""
	if front != nil {
		behind = fmt.Sprintf(" behind %d layers of %s", len(m.Layers)-len(c.Modules), front.Family)
	}
	a.why = append(a.why, fmt.Sprintf("model.python: %s of %s%s", words.Count(len(c.Modules), "module"), c.Framework, behind))
	if a.job.ModulesOnGPUs() {
		a.why = append(a.why, "devices.kind gpu: the modules compute on GPUs, and all else on cores, in the memory of the host; the dry run was on cores, so the shares of stages are those of cores until a tuning measures them")
	}
	if from := a.job.Model.From; from != "" {
		if a.weights, err = export.Check(a.access, from, m); err != nil {
			a.at.Refuse("model.from", "", "model.from: %v", err)
			return
		}
		if front != nil {
			a.model = m
			a.takeTokenizer()
		}
	}
	a.model = jobfile.Train(a.at, a.job, m)
}

// unbound lifts the bounds of this process that the interpreter would have too, and that memory which both share counts against.
func unbound() error {
	for _, which := range []int{unix.RLIMIT_DATA, unix.RLIMIT_FSIZE} {
		var limit unix.Rlimit
		if err := unix.Getrlimit(which, &limit); err != nil {
			return fmt.Errorf("read a bound of this process: %w", err)
		}
		limit.Cur = limit.Max
		if err := unix.Setrlimit(which, &limit); err != nil {
			return fmt.Errorf("lift a bound of this process: %w", err)
		}
	}
	return nil
}
