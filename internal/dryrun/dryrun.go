// Package dryrun finds out what modules of a user's program are: it starts his interpreter, has them built, and runs each by itself on made-up
// inputs. What comes out is the config of a model like any other, so whoever prices, places or commits the job needs no interpreter.
package dryrun

import (
	"context"
	"errors"
	"fmt"
	"os/user"
	"path/filepath"
	"strconv"

	"github.com/avgpipe/avgpipe/internal/access"
	"github.com/avgpipe/avgpipe/internal/checkpoint"
	"github.com/avgpipe/avgpipe/job"
	"github.com/avgpipe/avgpipe/stage/foreign"
	"github.com/avgpipe/avgpipe/stage/model"
)

// mostSamples is how many samples the modules are tried with: enough for norms over a batch.
const mostSamples = 4

// Program is the user's program that a job names.
func Program(j *job.Job) foreign.Program {
	path, function := j.Model.Program()
	p := foreign.Program{Path: path, Function: function, Args: j.Model.Args, Loss: j.Model.Loss, Cut: j.Model.Cut, Inputs: inputs(j, of(j))}
	if d := j.Data; d.Samples != "" {
		p.Samples = &foreign.Samples{Function: d.Samples, Args: d.Args, Collate: d.Collate}
	}
	return p
}

// samples is how many samples the modules of a job are tried with.
func samples(j *job.Job) int { return min(mostSamples, j.Train.Batch) }

// inputs are those that the first module of a job is tried with.
func inputs(j *job.Job, config *model.ModulesConfig) (all []foreign.ProbeInput) {
	names, shape, t := config.ModuleInputs(samples(j))
	for _, name := range names {
		input := foreign.ProbeInput{Shape: shape, Type: t.String(), Limit: config.Vocabulary}
		if name == "mask" || name == "token_types" {
			input.Limit = 2
		}
		all = append(all, input)
	}
	return all
}

// targets are those that the user's loss of a job is tried with; none where it has none. Those of some tasks do not all count.
func targets(j *job.Job, config *model.ModulesConfig) (all []foreign.ProbeInput, ignores bool) {
	if !config.UserLoss {
		return nil, false
	}
	shape := []int{samples(j)}
	if config.Task != model.Images && config.Task != model.Classification && config.Task != model.Samples {
		shape = append(shape, config.Sequence)
	}
	return []foreign.ProbeInput{{Shape: shape, Type: "i32", Limit: config.Vocabulary}}, config.Task == model.MaskedLanguage || config.Task == model.Translation
}

// maxProgramBytes bounds the file of a user's modules.
const maxProgramBytes = 16 << 20

// Digest is that of the file of a job's program; "" where it has none.
func Digest(opener *access.Opener, j *job.Job) (string, error) {
	path, _ := j.Model.Program()
	if path == "" {
		return "", nil
	}
	text, err := opener.ReadFile(path, maxProgramBytes)
	if err != nil {
		return "", err
	}
	return checkpoint.ObjectDigest(text), nil
}

// Config is how the interpreter of a job is started for a user: where his program lies, with an environment of his own, since that of this process is not
// for him. It sees no GPU, and where the modules are to compute on one, that they could is all that is looked at.
func Config(j *job.Job, uid uint32) foreign.Config {
	path, _ := j.Model.Program()
	c := foreign.Config{Interpreter: Interpreter(j), Dir: filepath.Dir(path), Env: []string{"PATH=/usr/local/bin:/usr/bin:/bin", "LANG=C.UTF-8"}}
	if j.ModulesOnGPUs() {
		c.Device = "cuda"
	}
	if u, err := user.LookupId(strconv.FormatUint(uint64(uid), 10)); err == nil {
		c.Env = append(c.Env, "HOME="+u.HomeDir, "USER="+u.Username, "LOGNAME="+u.Username)
	}
	return c
}

// Interpreter is the one that a job names.
func Interpreter(j *job.Job) string {
	if j.Model.Interpreter != "" {
		return j.Model.Interpreter
	}
	return job.DefaultInterpreter
}

// Run tries the modules of a job, in an interpreter that is started so. The config is that of its model.
func Run(ctx context.Context, j *job.Job, c foreign.Config) (config *model.ModulesConfig, err error) {
	p, err := foreign.Start(ctx, c)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, p.Close()) }()
	built, err := p.Build(Program(j), j.Seed)
	if err != nil {
		return nil, err
	}
	config = of(j)
	config.Framework, config.Samples = built.Framework, model.SampleCounts(built.Samples)
	probe := foreign.Probe{Inputs: inputs(j, config), Seed: j.Seed}
	probe.Targets, probe.Ignores = targets(j, config)
	probed, err := p.Probe(probe)
	if err != nil {
		of := ""
		if shape := probe.Inputs[0].Shape[1:]; len(shape) > 0 {
			of = fmt.Sprintf(" of %v", shape)
		}
		return nil, fmt.Errorf("a dry run on %d samples%s: %w", samples(j), of, err)
	}
	config.Modules, err = foreign.Modules(built, probed, samples(j))
	return config, err
}

// bytesVocabulary is how many ids texts have whose tokens are bytes.
const bytesVocabulary = 256

// of is what a job says of its model.
func of(j *job.Job) *model.ModulesConfig {
	c := &model.ModulesConfig{ModelType: model.Python, Task: model.Task(j.ModuleTask()), Sequence: max(1, j.Data.Sequence), Vocabulary: j.Model.Vocabulary, UserLoss: j.Model.Loss != ""}
	switch {
	case c.Task == model.Samples:
	case c.Task == model.Images:
		c.Sequence = 1
		c.Image = model.Image{Channels: j.Model.Image[0], Height: j.Model.Image[1], Width: j.Model.Image[2]}
	case c.Vocabulary == 0:
		c.Vocabulary = bytesVocabulary
	}
	return c
}
