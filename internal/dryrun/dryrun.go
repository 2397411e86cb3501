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

// Program is the user's program that a job names, whose modules are given these inputs.
func Program(j *job.Job, inputs []model.ModuleInput) foreign.Program {
	path, function := j.Model.Program()
	p := foreign.Program{Path: path, Function: function, Args: j.Model.Args, Loss: j.Model.Loss, Cut: j.Model.Cut, Inputs: examples(j, inputs)}
	if d := j.Data; d.Samples != "" {
		p.Samples = &foreign.Samples{Function: d.Samples, Args: d.Args, Collate: d.Collate}
	}
	return p
}

// samples is how many samples the modules of a job are tried with.
func samples(j *job.Job) int { return min(mostSamples, j.Train.Batch) }

// examples are the inputs that the modules of a job are tried with.
func examples(j *job.Job, inputs []model.ModuleInput) (all []foreign.ProbeInput) {
	for _, x := range inputs {
		all = append(all, foreign.ProbeInput{Shape: append([]int{samples(j)}, x.Shape...), Type: x.Type.String(), Limit: x.Limit, Gradient: x.Differentiable})
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

// Front is the model whose layers are in front of the modules of a job: that of the family and the config that it names, or that it starts from. Nil: none are.
func Front(opener *access.Opener, j *job.Job) (*model.Model, error) {
	if j.Model.Config != nil {
		return model.Build(j.Model.Family, j.Model.Config)
	}
	if j.Model.From == "" {
		return nil, nil //nolint:nilnil // as said
	}
	path := filepath.Join(j.Model.From, "config.json")
	config, err := opener.ReadFile(path, maxConfigBytes)
	if err != nil {
		return nil, fmt.Errorf("%w; expected the config.json of a directory with *.safetensors", err)
	}
	m, err := model.FromHuggingFace(config)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	if m.Family == model.Python {
		m = m.Front()
	}
	return m, nil
}

// maxConfigBytes bounds a config.json.
const maxConfigBytes = 16 << 20

// Run tries the modules of a job, behind a front, or none, in an interpreter that is started so. The config is that of its model.
func Run(ctx context.Context, j *job.Job, front *model.Model, c foreign.Config) (config *model.ModulesConfig, err error) {
	config, err = of(j, front)
	if err != nil {
		return nil, err
	}
	inputs, err := config.Inputs()
	if err != nil {
		return nil, err
	}
	p, err := foreign.Start(ctx, c)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, p.Close()) }()
	built, err := p.Build(Program(j, inputs), j.Seed)
	if err != nil {
		return nil, err
	}
	config.Framework, config.Samples = built.Framework, model.SampleCounts(built.Samples)
	probe := foreign.Probe{Inputs: examples(j, inputs), Seed: j.Seed}
	probe.Targets, probe.Ignores = targets(j, config)
	probed, err := p.Probe(probe)
	if err != nil {
		of := ""
		if shape := probe.Inputs[0].Shape[1:]; len(shape) > 0 {
			of = fmt.Sprintf(" of %v", shape)
		}
		return nil, fmt.Errorf("a dry run on %d samples%s: %w", samples(j), of, err)
	}
	config.Modules, err = foreign.Modules(built, probe.Inputs, probed, samples(j))
	return config, err
}

// bytesVocabulary is how many ids texts have whose tokens are bytes.
const bytesVocabulary = 256

// of is what a job says of its model, whose modules are behind a front, or none.
func of(j *job.Job, front *model.Model) (*model.ModulesConfig, error) {
	c := &model.ModulesConfig{ModelType: model.Python, Task: model.Task(j.ModuleTask()), Sequence: max(1, j.Data.Sequence), Vocabulary: j.Model.Vocabulary, UserLoss: j.Model.Loss != ""}
	if front != nil {
		if err := checkFront(j, front); err != nil {
			return nil, err
		}
		if c.Vocabulary, c.Front = front.Vocabulary(), front.Config(); j.Model.Task == "" {
			c.Task = front.Task
		}
		return c, nil
	}
	switch {
	case c.Task == model.Samples:
	case c.Task == model.Images:
		c.Sequence = 1
		c.Image = model.Image{Channels: j.Model.Image[0], Height: j.Model.Image[1], Width: j.Model.Image[2]}
	case c.Vocabulary == 0:
		c.Vocabulary = bytesVocabulary
	}
	return c, nil
}

// checkFront refuses what does not go with layers of ours in front of modules.
func checkFront(j *job.Job, front *model.Model) error {
	switch {
	case j.Data.Samples != "":
		return fmt.Errorf("data.samples makes what the first module is given, and the layers of a %s are in front of it; remove data.samples, or start from nothing of that family", front.Family)
	case len(j.Model.Image) > 0:
		return fmt.Errorf("model.image is of modules that learn from images, and the layers of a %s, which reads texts, are in front of these; remove it", front.Family)
	case j.Model.Vocabulary > 0 && j.Model.Vocabulary != front.Vocabulary():
		return fmt.Errorf("model.vocabulary is %d, and the %s in front of the modules has %d ids of tokens; remove it", j.Model.Vocabulary, front.Family, front.Vocabulary())
	case j.ModulesOnGPUs():
		return fmt.Errorf("devices.kind is gpu, and modules behind the layers of a %s compute on cores alone; say devices.kind: cpu", front.Family)
	}
	return nil
}
