package spec

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"path/filepath"
	"slices"
	"strconv"

	"github.com/avgpipe/avgpipe/elastic"
	"github.com/avgpipe/avgpipe/internal/access"
	"github.com/avgpipe/avgpipe/internal/api"
	"github.com/avgpipe/avgpipe/internal/data"
	"github.com/avgpipe/avgpipe/internal/export"
	"github.com/avgpipe/avgpipe/internal/feed"
	"github.com/avgpipe/avgpipe/job"
	"github.com/avgpipe/avgpipe/schedule"
	"github.com/avgpipe/avgpipe/stage/device"
	"github.com/avgpipe/avgpipe/stage/model"
)

// admission checks one submitted job file. Every step that can run runs, so that its author sees all problems at once.
type admission struct {
	cores    int            // of the node
	access   *access.Opener // opens what the job file names
	job      *job.Job
	at       *job.Positions
	memory   int64        // of the node, that jobs may take; 0: not known
	model    *model.Model // nil when it cannot be built
	problems job.Problems
	Spec     Spec
}

// Admit parses, checks and resolves a job file for a node, with the rights of the user who submits it. A refused one is an
// *api.Error with every problem. Nothing is stored. It opens what users name, so it runs in an inspect process; opens is told each path
// beforehand.
func Admit(ctx context.Context, q Inspection, opens func(path string)) (*Spec, error) {
	r := q.Request
	if !filepath.IsAbs(r.Base) {
		return nil, api.Errorf(http.StatusBadRequest, "submit %s: base %q is not an absolute path", r.File, r.Base)
	}
	j, at, err := job.Parse(r.File, []byte(r.Source), r.Set, environment(r.Env))
	if err != nil {
		if problems, ok := errors.AsType[job.Problems](err); ok {
			return nil, api.Refused(problems)
		}
		return nil, fmt.Errorf("submit %s: %w", r.File, err)
	}
	j.Absolute(r.Base)
	a := &admission{
		cores: q.Host.Cores, memory: q.Host.MemoryBytes, access: &access.Opener{User: &q.User, OnOpen: opens}, job: j, at: at,
		Spec: Spec{Version: Version, Retune: r.Retune, User: &q.User},
	}
	a.checkModel()
	if a.model != nil {
		a.checkCounts()
		a.checkSequence()
		a.checkBudget()
	}
	if err := a.checkData(ctx); err != nil {
		return nil, err
	}
	if len(a.problems) > 0 {
		slices.SortStableFunc(a.problems, func(p, q job.Problem) int {
			return cmp.Or(cmp.Compare(p.Line, q.Line), cmp.Compare(p.Column, q.Column))
		})
		return nil, api.Refused(a.problems)
	}
	a.Spec.Job = *j
	if why := a.Spec.setBudget(); why != "" && !j.Open() {
		a.Spec.Why = append(a.Spec.Why, why)
	}
	a.Spec.warnOfRounds()
	return &a.Spec, nil
}

// environment is what a job file may refer to: the submitter's variables, never the daemon's.
func environment(variables map[string]string) job.Environment {
	return job.Environment{
		Lookup: func(name string) (string, bool) {
			v, ok := variables[name]
			return v, ok
		},
		Families: model.Families(), Schedules: schedule.Names(), Methods: elastic.Methods(),
	}
}

func (a *admission) refuse(key, nearest, format string, args ...any) {
	a.problems = append(a.problems, a.at.Problem(key, fmt.Sprintf(format, args...), nearest))
}

func (a *admission) warn(format string, args ...any) {
	a.Spec.Warnings = append(a.Spec.Warnings, fmt.Sprintf(format, args...))
}

// checkModel builds the model, from the file or from the directory to start from.
func (a *admission) checkModel() {
	if a.job.Model.From != "" {
		a.checkFrom()
		return
	}
	m, err := model.Build(a.job.Model.Family, a.job.Model.Config)
	var field *model.FieldError
	switch {
	case err == nil:
		a.built(m)
	case !errors.As(err, &field):
		a.refuse("model.config", "", "%v", err)
	case field.Unknown:
		a.problems = append(a.problems, a.at.UnknownKey("model.config."+field.Field, fieldNames(a.job.Model.Family)))
	default:
		a.refuse("model.config."+field.Field, field.Nearest, "model.config.%s is %v; allowed is %s", field.Field, field.Found, field.Allowed)
	}
}

func fieldNames(family string) []string {
	var names []string
	for _, f := range model.Fields(family) {
		names = append(names, f.Name)
	}
	return names
}

// checkFrom reads the config of the model to start from, and holds its weights against it.
func (a *admission) checkFrom() {
	from := a.job.Model.From
	path := filepath.Join(from, export.ConfigFile)
	config, err := a.access.ReadFile(path, export.MaxConfigBytes)
	if err != nil {
		a.refuse("model.from", "", "model.from: %v; it is a directory with config.json and model.safetensors, or its index", err)
		return
	}
	m, err := model.FromHuggingFace(config)
	if err != nil {
		a.refuse("model.from", "", "model.from: %s: %v", path, err)
		return
	}
	if family := a.job.Model.Family; family != "" && family != m.Family {
		a.refuse("model.family", m.Family, "model.family is %s, but %s holds a %s", family, from, m.Family)
		return
	}
	if err := export.Check(a.access, from, m); err != nil {
		a.refuse("model.from", "", "model.from: %v", err)
		return
	}
	a.job.Model.Family = m.Family
	if a.built(m) {
		a.takeTokenizer()
	}
}

// takeTokenizer takes the tokenizer of the model to start from, unless the file names one: tokens of another mean nothing to it.
func (a *admission) takeTokenizer() {
	if a.model.Task == model.Images || a.at.Has("data.tokenizer") {
		return
	}
	tokenizer, err := export.TokenizerOf(a.access, a.job.Model.From, a.model)
	if err != nil {
		a.refuse("data.tokenizer", "", "data.tokenizer: %v; or name the tokenizer of the model", err)
		return
	}
	a.job.Data.Tokenizer = tokenizer
	a.Spec.Why = append(a.Spec.Why, fmt.Sprintf("data.tokenizer is %s, that of model.from", tokenizer))
}

// built takes the model, and reports whether it can be one of this node.
func (a *admission) built(m *model.Model) bool {
	if !a.checkSize(m) {
		return false
	}
	config, err := json.Marshal(m.Config())
	if err != nil {
		a.refuse("model", "", "model: its config cannot be written: %v", err)
		return false
	}
	a.model, a.Spec.Model, a.Spec.Parameters, a.Spec.Task = m, config, m.Weights(), string(m.Task)
	if a.job.Precision == device.BF16.String() {
		if err := m.CheckCompute(device.BF16); err != nil {
			a.refuse("precision", device.F32.String(), "precision: %v", err)
		}
	}
	return true
}

// checkCounts resolves what is automatic and proves the plan. What is to be measured stays open.
func (a *admission) checkCounts() {
	if !a.checkLayout() {
		return
	}
	if a.job.Center.Replicas > 1 {
		a.warn("center.replicas is %d and the cluster has 1 node: there is 1 copy of each shard", a.job.Center.Replicas)
	}
	if a.job.Open() {
		a.checkOpen()
		return
	}
	a.decideCounts()
}

// decideCounts resolves what is automatic by the rules, and proves the plan.
func (a *admission) decideCounts() {
	counts, why := job.Resolve(a.job, job.Facts{Cores: a.cores, Layers: len(a.model.Layers)})
	if n := int(a.job.Offered()); n > 0 && n < counts.Stages {
		a.refuseDevices(n, counts.Stages)
		return
	}
	a.job.Take(counts)
	resolveAveraging(a.job, counts.Pipelines)
	a.Spec.Why = append(a.Spec.Why, why)
	a.checkPlan(counts)
	if a.job.Devices.Kind != job.KindEmulated { // which need no cores
		a.Spec.Warnings = append(a.Spec.Warnings, sharedCores(counts, a.cores)...)
	}
}

// checkSequence resolves the length of a sample.
func (a *admission) checkSequence() {
	longest := a.model.Sequence()
	switch n := a.job.Data.Sequence; {
	case n == 0:
		a.job.Data.Sequence = longest
	case n > longest:
		a.refuse("data.sequence", strconv.Itoa(longest), "data.sequence is %d tokens; the model has %d positions", n, longest)
	}
}

// checkBudget checks what of the budget depends on the model: how many tokens a sample has.
func (a *admission) checkBudget() {
	if a.job.Train.Tokens == 0 {
		return
	}
	if a.model.Task == model.Images {
		a.refuse("train.tokens", "train.samples", "train.tokens counts what a %s does not read; say train.samples or train.epochs", a.model.Family)
		return
	}
	if key, nearest, problem := a.job.CheckWarmup(0); key != "" {
		a.refuse(key, nearest, "%s", problem)
	}
}

// checkData finds what is wrong with the data, as far as data.Check reads them. An error is of the daemon or of ctx, not of
// the file.
func (a *admission) checkData(ctx context.Context) error {
	// Without a model only the files can be looked for.
	c := data.Config{Files: a.job.Data.Files, Sequence: 1}
	if a.model != nil {
		c = data.ConfigOf(a.job, feed.ModelOf(a.model))
	}
	c.Access = a.access
	if a.model == nil {
		_, err := data.List(ctx, c)
		return a.dataProblem(err)
	}
	if unread := c.Unread(a.at.Has); len(unread) > 0 {
		for _, u := range unread {
			a.refuse(u.Key, "", "%v", u)
		}
		return nil
	}
	summary, err := data.Check(ctx, c)
	if err != nil {
		return a.dataProblem(err)
	}
	a.Spec.Warnings = append(a.Spec.Warnings, summary.Notes...)
	round := uint64(a.job.Train.Batch) * uint64(a.job.Pipelines) * uint64(a.job.Averaging.Tau)
	if n := summary.Samples; n > 0 && n < round {
		a.warn("the data has %d samples, fewer than the %d of one round: samples repeat within it", n, round)
	}
	return nil
}

// dataProblem notes what is wrong with the data. Another error comes back.
func (a *admission) dataProblem(err error) error {
	var problem *data.Error
	switch {
	case err == nil:
		return nil
	case errors.As(err, &problem):
		a.refuse(problem.Key, problem.Nearest, "%s: %v", problem.Key, problem.Err)
		return nil
	}
	return fmt.Errorf("submit: %w", err)
}
