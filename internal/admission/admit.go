package admission

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net/http"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/avgpipe/avgpipe/internal/access"
	"github.com/avgpipe/avgpipe/internal/api"
	"github.com/avgpipe/avgpipe/internal/data"
	"github.com/avgpipe/avgpipe/internal/export"
	"github.com/avgpipe/avgpipe/internal/feed"
	"github.com/avgpipe/avgpipe/internal/footprint"
	"github.com/avgpipe/avgpipe/internal/gpu"
	"github.com/avgpipe/avgpipe/internal/jobfile"
	"github.com/avgpipe/avgpipe/internal/modeldir"
	"github.com/avgpipe/avgpipe/internal/outputdir"
	"github.com/avgpipe/avgpipe/internal/pinned"
	"github.com/avgpipe/avgpipe/internal/spec"
	"github.com/avgpipe/avgpipe/internal/strictyaml"
	"github.com/avgpipe/avgpipe/job"
	"github.com/avgpipe/avgpipe/schedule"
	"github.com/avgpipe/avgpipe/stage"
	"github.com/avgpipe/avgpipe/stage/device"
	"github.com/avgpipe/avgpipe/stage/device/pick"
	"github.com/avgpipe/avgpipe/stage/foreign"
	"github.com/avgpipe/avgpipe/stage/model"
)

// admission checks one submitted job file. Every step that can run runs, so that its author sees all problems at once.
type admission struct {
	access        *access.Opener // opens what the job file names
	job           *job.Job
	at            *strictyaml.Document // knows where each key stands, and collects problems
	model         *model.Model         // nil when it cannot be built
	weights       map[string]string    // digests of the files that it starts from
	program       string               // digest of the file of the user's modules
	found         data.Pinned
	remote        []pinned.Object // what its URLs stand for
	why, warnings []string

	open func(kind string) (device.Device, error) // a device of a kind, to be asked what it has
}

// Admit parses, checks, resolves and prices a job file for a node, with the rights of the user who submits it. A refused one is an
// *api.Error with every problem. Nothing is stored. It opens what users name, so it runs in an inspect process; opens is told each path
// beforehand.
func Admit(ctx context.Context, q Request, opens func(path string)) (*spec.Spec, error) {
	r := q.Submit
	if !filepath.IsAbs(r.Base) {
		return nil, api.Errorf(http.StatusBadRequest, "submit %s: base %q is not an absolute path", r.File, r.Base)
	}
	j, m, at := jobfile.Parse(r.File, []byte(r.Source), r.Set, func(name string) (string, bool) { // never the daemon's variables
		value, ok := r.Env[name]
		return value, ok
	})
	if j == nil {
		return nil, refusal(r.File, at.Err())
	}
	j.Absolute(r.Base)
	urls := urlsOf(j)
	switch {
	case len(urls) > maxURLs:
		at.Refuse("data.files", "", "data.files and data.validation have %d URLs; at most %d: a prefix of a bucket stands for all that is below it", len(urls), maxURLs)
		return nil, refusal(r.File, at.Err())
	case len(urls) > 0 && q.Remote == nil:
		return nil, &wantsError{urls}
	}
	a := &admission{access: &access.Opener{User: &q.User, OnOpen: opens}, job: j, at: at, model: m, open: pick.Asked}
	switch {
	case j.ModulesOnGPUs() && len(gpu.Usable(q.Host.GPUs)) == 0:
		a.at.Refuse("devices.kind", "cpu", "devices.kind is gpu, and this node has no GPU that jobs may use%s", because(q.Host.NoGPU))
	case j.Model.Python != "":
		a.checkPython(ctx)
	case j.Model.From != "":
		a.checkFrom(r.Base)
	}
	facts := spec.Facts{Cores: q.Host.Cores, MemoryBytes: q.Host.MemoryBytes, Model: a.model, GPUs: q.Host.GPUs, NoGPU: q.Host.NoGPU, Hosts: q.Host.Hosts, Unread: j.Train.Epochs > 0}
	if j.Devices.Kind == job.KindAuto && facts.NoGPU == "" && len(gpu.Usable(facts.GPUs)) > 0 && a.model != nil && a.model.Family != model.Python {
		if lacks := a.missing(job.KindGPU); lacks != nil {
			facts.NoGPU = lacks.Error()
		}
	}
	found := a.resolve(facts)
	output := a.checkOutput(&q)
	if a.checkURLs(q.Remote); at.Err() == nil || len(urls) == 0 {
		epoch, err := a.checkData(ctx)
		if err != nil {
			return nil, err
		}
		if facts.Unread && at.Err() == nil { // how long rounds are may follow from it
			facts.Epoch, facts.Unread = epoch, false
			a.job = j
			found = a.resolve(facts)
		}
		a.checkBudget(epoch)
	}
	if err := at.Err(); err != nil {
		return nil, refusal(r.File, err)
	}
	found.Why, found.Warnings = append(a.why, found.Why...), append(found.Warnings, a.warnings...)
	s, err := spec.New(found, a.model, &q.User, r.Retune)
	if err != nil {
		return nil, err
	}
	s.Output, s.Weights, s.Program, s.Tokenizer, s.Files, s.Remote = output, a.weights, a.program, a.found.Tokenizer, a.found.Files, a.remote
	return s, nil
}

// because is the end of a sentence that says why.
func because(why string) string {
	if why == "" {
		return ""
	}
	return ": " + why
}

// refusal is the answer to a job file with problems.
func refusal(file string, err error) error {
	if problems, ok := errors.AsType[strictyaml.Problems](err); ok {
		return api.Refused(problems)
	}
	return fmt.Errorf("submit %s: %w", file, err)
}

// resolve resolves the job, once its model and its plan are there; what is wrong gets its place in the file.
func (a *admission) resolve(f spec.Facts) *spec.Resolution {
	if path := a.job.PlanFile(); f.Model == nil || path != "" && !a.readPlan(path, &f) {
		return nil
	}
	found, problems := spec.Resolve(a.job, f, nil)
	for _, p := range problems {
		if !a.at.Refused(p.Key) { // it has a problem already
			a.at.Refuse(p.Key, p.Nearest, "%s", p.Message)
		}
	}
	a.job = &found.Job
	if len(problems) == 0 {
		a.checkOperations()
	}
	return found
}

// checkOperations refuses a model with an operation that the job's devices lack, and names the kinds that lack none.
func (a *admission) checkOperations() {
	computes := a.job.Devices.Kind
	if a.job.Devices.Emulated.Compute || a.job.ModulesOnGPUs() { // all but a user's modules
		computes = "cpu"
	}
	problem := a.missing(computes)
	if problem == nil {
		return
	}
	var able []string
	for _, kind := range pick.Kinds() {
		if kind != computes && kind != job.KindEmulated && (kind != job.KindGPU || a.model.Family != model.Python) && a.missing(kind) == nil {
			able = append(able, kind)
		}
	}
	if len(able) == 0 {
		a.at.Refuse("devices.kind", "", "devices.kind: %v; no other kind of device has all that the model needs", problem)
		return
	}
	a.at.Refuse("devices.kind", able[0], "devices.kind: %v; %s has all that the model needs", problem, strings.Join(able, " or "))
}

// missing is what a kind of device lacks.
func (a *admission) missing(kind string) error {
	dev, err := a.open(kind)
	if err != nil {
		return err
	}
	if a.model.Family == model.Python {
		dev = foreign.Asked(dev)
	}
	size, o := footprint.Size(a.model, a.job, 1), a.job.Optimizer
	err = stage.Config{
		Device: dev, Model: a.model, Samples: size.B, Sequence: size.T, Compute: size.Compute, Slots: 1,
		Optimizer: stage.Optimizer{Name: o.Name, Momentum: o.Momentum},
	}.CheckOperations()
	if lacks, ok := errors.AsType[*stage.MissingError](err); ok {
		err = lacks // there are no stages yet
	}
	return errors.Join(err, dev.Close())
}

// maxPlanFileBytes bounds a plan that a user wrote: the replicated log keeps it. 64 stages of 512 micro-batches fit.
const maxPlanFileBytes = 1 << 19

// readPlan reads the plan that the user wrote, and proves it.
func (a *admission) readPlan(path string, f *spec.Facts) bool {
	text, err := a.access.ReadFile(path, maxPlanFileBytes)
	if err != nil {
		near := ""
		if found := data.Nearest(a.access, path); found != "" && errors.Is(err, fs.ErrNotExist) {
			near = "file:" + found
		}
		a.at.Refuse("schedule", near, "schedule: %v", err)
		return false
	}
	if f.UserPlan, err = schedule.Prove(string(text)); err != nil {
		a.at.Refuse("schedule", "", "%s: %v", path, err)
	}
	return err == nil
}

// hubName is what names a model of the Hugging Face hub.
var hubName = regexp.MustCompile(`^([\w.-]+/)?[\w-][\w.-]*$`)

// checkFrom reads the config of the model to start from, and holds its weights against it. Relative paths start at base.
func (a *admission) checkFrom(base string) {
	from := a.job.Model.From
	m, err := export.ReadModel(a.access, from)
	if errors.Is(err, fs.ErrNotExist) {
		hint := ""
		if name, outside := filepath.Rel(base, from); outside == nil && hubName.MatchString(name) {
			hint = fmt.Sprintf("; is %s a model of the Hugging Face hub? download it first: `hf download %[1]s --local-dir %[2]s`", name, from)
		}
		a.at.Refuse("model.from", data.Nearest(a.access, from), "model.from: %v%s", err, hint)
		return
	}
	if err != nil {
		a.at.Refuse("model.from", "", "model.from: %v", err)
		return
	}
	if m.Family == model.Python {
		a.at.Refuse("model.from", "", "model.from: %s holds the weights of modules in Python; name the program that builds them with model.python beside it", from)
		return
	}
	if family := a.job.Model.Family; family != "" && family != m.Family {
		a.at.Refuse("model.family", m.Family, "model.family is %s, but %s holds a %s", family, from, m.Family)
		return
	}
	if a.weights, err = export.Check(a.access, from, m); err != nil {
		a.at.Refuse("model.from", "", "model.from: %v", err)
		return
	}
	a.job.Model.Family, a.model = m.Family, m
	a.takeTokenizer()
	a.model = jobfile.Train(a.at, a.job, m)
}

// takeTokenizer takes the tokenizer of the model to start from, unless the file names one: tokens of another mean nothing to it.
func (a *admission) takeTokenizer() {
	if a.model.Task == model.Images || a.at.Has("data.tokenizer") {
		return
	}
	tokenizer, err := export.TokenizerOf(a.access, a.job.Model.From, a.model)
	if err != nil {
		a.at.Refuse("data.tokenizer", "", "data.tokenizer: %v; or name the tokenizer of the model", err)
		return
	}
	a.job.Data.Tokenizer = tokenizer
	a.why = append(a.why, fmt.Sprintf("data.tokenizer is %s, that of model.from", tokenizer))
}

// checkBudget refuses what does not fit into the budget, now that it is known in samples, as far as the data tell the samples of an epoch; 0 is not known.
func (a *admission) checkBudget(epoch uint64) {
	for _, check := range []func(uint64) (key, nearest, problem string){a.job.CheckWarmup, a.job.CheckRound} {
		if key, nearest, problem := check(epoch); key != "" && !a.at.Refused(key) {
			a.at.Refuse(key, nearest, "%s", problem)
		}
	}
	round := uint64(a.job.Train.Batch) * uint64(a.job.Pipelines) * uint64(max(0, a.job.Averaging.Tau))
	if epoch > 0 && epoch < round {
		a.warnings = append(a.warnings, fmt.Sprintf("the data has %d samples, fewer than the %d of one round: samples repeat within it", epoch, round))
	}
}

// checkData finds what is wrong with the data, as far as data.Check reads them, and how many samples an epoch has; 0 where it does not tell. An error is of the daemon or of ctx, not of
// the file.
func (a *admission) checkData(ctx context.Context) (epoch uint64, err error) {
	if a.model == nil { // only the files can be looked for
		_, _, err := data.List(ctx, data.Config{Files: a.job.Data.Files, Access: a.access, Remote: a.remote})
		return 0, a.dataProblem(err)
	}
	c := feed.ConfigOf(a.job, a.model)
	c.Access, c.Remote = a.access, a.remote
	if unread := c.Unread(a.at.Has); len(unread) > 0 {
		for _, u := range unread {
			a.at.Refuse(u.Key, "", "%v", u)
		}
		return 0, nil
	}
	summary, err := data.Check(ctx, c)
	if err != nil {
		return 0, a.dataProblem(err)
	}
	a.found, a.warnings = summary.Pinned, append(a.warnings, summary.Notes...)
	return summary.Samples, nil
}

// dataProblem notes what is wrong with the data. Another error comes back.
func (a *admission) dataProblem(err error) error {
	var problem *data.Error
	switch {
	case err == nil:
		return nil
	case errors.As(err, &problem):
		a.at.Refuse(problem.Key, problem.Nearest, "%s: %v", problem.Key, problem.Err)
		return nil
	}
	return fmt.Errorf("submit: %w", err)
}

// checkOutput judges whether the daemon can write the model to output.dir, and refuses one that no model can be written to. A right
// that is missing does not refuse the job: the user can give it, or export the model. Nil: the daemon is not to.
func (a *admission) checkOutput(q *Request) *spec.Output {
	r := q.Submit
	if a.job.Output.Dir == "" || !a.outputIsFree(q) || r.ClientExports {
		return nil
	}
	o := &spec.Output{Force: r.Force}
	err := outputdir.Target{Dir: a.job.Output.Dir, User: q.User, Force: r.Force}.Check()
	if _, never := errors.AsType[*modeldir.Refusal](err); never {
		a.at.Refuse("output.dir", "", "output.dir: %v", err)
	} else if err != nil {
		o.Refused = err.Error()
	}
	return o
}

// outputIsFree refuses an output.dir where the daemon keeps files of its own, and one that another job's model is still to be written to,
// or into, or around: one of the two would be lost.
func (a *admission) outputIsFree(q *Request) bool {
	dir := resolved(a.job.Output.Dir)
	for _, own := range q.Host.Reserved {
		if within(dir, resolved(own)) {
			a.at.Refuse("output.dir", "", "output.dir: %s is in %s, which is the daemon's own; name another directory", a.job.Output.Dir, own)
			return false
		}
	}
	for _, other := range slices.Sorted(maps.Keys(q.Host.Pending)) {
		at := resolved(other)
		switch id := q.Host.Pending[other]; {
		case dir == at && q.Submit.Force: // his decision
		case dir == at:
			a.at.Refuse("output.dir", "", "output.dir: %s is that of job %s, whose model is still to be written; name another directory, or replace that model with --force",
				a.job.Output.Dir, id)
			return false
		case within(dir, at) || within(at, dir):
			a.at.Refuse("output.dir", "", "output.dir: one of %s and %s of job %s, whose model is still to be written, lies in the other; name another directory",
				a.job.Output.Dir, other, id)
			return false
		}
	}
	return true
}

// resolved is a path without the links of that part of it that exists.
func resolved(path string) string {
	for there, rest := path, ""; ; there, rest = filepath.Dir(there), filepath.Join(filepath.Base(there), rest) {
		if plain, err := filepath.EvalSymlinks(there); err == nil {
			return filepath.Join(plain, rest)
		}
		if there == filepath.Dir(there) {
			return filepath.Clean(path)
		}
	}
}

// within reports whether a path is a directory or lies in it.
func within(path, dir string) bool {
	rest, err := filepath.Rel(dir, path)
	return err == nil && rest != ".." && !strings.HasPrefix(rest, "../")
}
