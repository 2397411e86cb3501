package job

import "time"

// Version is the only version of the job file that this program reads.
const Version = 1

// Job is a job file: one training run. Every field is documented here, once; docs/job-file.md and the JSON Schema are
// generated from these comments and tags.
type Job struct {
	Version      int       `yaml:"version"`
	Name         string    `yaml:"name"`
	Model        Model     `yaml:"model"`
	Data         Data      `yaml:"data"`
	Optimizer    Optimizer `yaml:"optimizer"`
	Train        Train     `yaml:"train"`
	Stages       Count     `yaml:"stages"`
	Pipelines    Count     `yaml:"pipelines"`
	MicroBatches Count     `yaml:"micro_batches"`
	Schedule     string    `yaml:"schedule"`
	Averaging    Averaging `yaml:"averaging"`
	Center       Center    `yaml:"center"`
	Devices      Devices   `yaml:"devices"`
	Output       Output    `yaml:"output"`
	Seed         uint64    `yaml:"seed"`
}

// Count is a positive number or `auto` (0).
type Count int

// Auto is the value of a Count that the program chooses.
const Auto Count = 0

// Model says what is trained.
type Model struct {
	Family string         `yaml:"family"` // gpt2
	Config map[string]any `yaml:"config"` // the family's own fields, Hugging Face's names
	From   string         `yaml:"from"`   // a directory with config.json and model.safetensors to start from
}

// Data says what it is trained on.
type Data struct {
	Files     []string `yaml:"files"`     // paths, directories or globs (** crosses directories)
	Format    string   `yaml:"format"`    // text
	Tokenizer string   `yaml:"tokenizer"` // bytes
	Sequence  int      `yaml:"sequence"`  // tokens in a sample; default: the model's n_positions
	Holdout   float64  `yaml:"holdout"`   // fraction kept for evaluation
}

// Optimizer says how weights are updated.
type Optimizer struct {
	Name         string    `yaml:"name"` // sgd, adam, adamw
	LearningRate float64   `yaml:"lr"`
	Betas        []float64 `yaml:"betas"`
	Epsilon      float64   `yaml:"epsilon"`
	Momentum     float64   `yaml:"momentum"`
	Nesterov     bool      `yaml:"nesterov"`
	WeightDecay  float64   `yaml:"weight_decay"`
	ClipNorm     float64   `yaml:"clip_norm"`    // 0: no clipping
	Schedule     string    `yaml:"schedule"`     // constant, linear, cosine
	Warmup       int       `yaml:"warmup"`       // steps
	MinimumRatio float64   `yaml:"min_lr_ratio"` // the final learning rate over lr
}

// Train says how long.
type Train struct {
	Steps       int           `yaml:"steps"`        // optimizer steps of each pipeline
	Batch       int           `yaml:"batch"`        // samples that one pipeline consumes per step
	MaxTime     time.Duration `yaml:"max_time"`     // end after this much training time even if steps remain; 0: no bound
	EvalEvery   int           `yaml:"eval_every"`   // rounds between evaluations of the center; 0: only at the end
	EvalSamples int           `yaml:"eval_samples"` // held-out samples in an evaluation
}

// Averaging says how pipelines share what they learn.
type Averaging struct {
	Method string  `yaml:"method"` // elastic
	Pull   string  `yaml:"pull"`   // new, old, elastic
	Alpha  float64 `yaml:"alpha"`  // 0: 1/pipelines
	Tau    int     `yaml:"tau"`    // batches between rounds
}

// Center says how rounds become durable.
type Center struct {
	CommitEvery int    `yaml:"commit_every"` // rounds between commits
	Replicas    int    `yaml:"replicas"`
	Keep        int    `yaml:"keep"`  // committed rounds kept on disk
	State       string `yaml:"state"` // full: center, weights and optimizer state of every pipeline; center: the center alone
}

// Devices says what the stages run on.
type Devices struct {
	Kind string `yaml:"kind"` // auto, cpu, ref
	CPU  CPU    `yaml:"cpu"`
}

// CPU describes the CPU devices of a node.
type CPU struct {
	Count   Count `yaml:"count"`   // devices; auto: one a stage
	Threads Count `yaml:"threads"` // threads of each; auto: the node's cores shared evenly
}

// Output says where the trained model goes.
type Output struct {
	Dir string `yaml:"dir"` // `avgpipectl submit --watch` and `export` without a directory write the exported model here
}
