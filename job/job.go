package job

import (
	"strings"
	"time"

	"github.com/avgpipe/avgpipe/internal/strictyaml"
)

// Version is the only version of the job file that this program reads.
const Version = 1

// Job is a job file: one training run. Every field is documented here, once: docs/job-file.md and the JSON Schema are
// generated from these comments and tags, and the parser obeys the same tags, which strictyaml.Schema explains.
type Job struct {
	// The version of this file's format.
	Version int `yaml:"version" json:"version" rule:"required min=1 max=1"`
	// What people call the run. Default: the job file's name without its extension.
	Name string `yaml:"name" json:"name" pattern:"^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$" form:"1 to 63 letters, digits, dots, dashes and underscores, the first a letter or a digit"`
	// What is trained.
	Model Model `yaml:"model" json:"model" rule:"required"`
	// What it is trained on.
	Data Data `yaml:"data" json:"data" rule:"required"`
	// How the weights are updated.
	Optimizer Optimizer `yaml:"optimizer" json:"optimizer" rule:"required"`
	// How long, and in what portions.
	Train Train `yaml:"train" json:"train" rule:"required"`
	// Low-rank adapters (LoRA): what is trained instead of the model's own weights.
	LoRA LoRA `yaml:"lora" json:"lora"`
	// Devices that each pipeline is laid over, a stage on each; with `chunks` several. The model has a layer or more for every
	// stage. `auto`: see `tuning`.
	Stages Count `yaml:"stages" json:"stages" default:"auto" rule:"min=1 max=1024 word=auto" also:"pipeline_parallel_size pp_size num_stages"`
	// The fewest stages that the job goes on with after a host is lost for good while no other has room: the model is then split anew, over the hosts
	// that are left, and back once there is room. As many as `stages` (or a number above what `auto` comes out with): it keeps its stages and waits.
	// 0: as few as it takes.
	MinStages int `yaml:"min_stages" json:"min_stages,omitempty" default:"0" rule:"min=0 max=1024" also:"min_nodes min_np min_replicas"`
	// Stages on each device, for the schedules interleaved and zb-v; the model is cut into stages times chunks. `auto`: what the
	// schedule takes by default, 2 for those two and else 1.
	Chunks Count `yaml:"chunks" json:"chunks" default:"auto" rule:"min=1 max=64 word=auto" also:"virtual_stages num_virtual_stages"`
	// Parallel pipelines, each a replica of the model that consumes batches of its own. `auto`: see `tuning`.
	Pipelines Count `yaml:"pipelines" json:"pipelines" default:"auto" rule:"min=1 max=1024 word=auto"`
	// Groups that the pipelines are divided into, evenly: the pipelines of a group share devices, and each group has all stages on nodes of its own, with a copy of
	// the center. Once a round each pipeline sends what it has learned to the other groups, to each its share, and gets sums back. With 1 all pipelines share devices, as AvgPipe's do. More
	// groups need as many nodes, and counts that are given or `tuning: rules`.
	Groups int `yaml:"groups" json:"groups,omitempty" default:"1" rule:"min=1 max=64" also:"data_parallel_size dp_size"`
	// Portions that a batch is cut into; a divisor of train.batch. More of them shrink the bubble and make each matrix
	// product smaller. `auto`: see `tuning`.
	MicroBatches Count `yaml:"micro_batches" json:"micro_batches" default:"auto" rule:"min=1 max=65536 word=auto" also:"microbatches gradient_accumulation_steps num_microbatches"`
	// The order of forward and backward work on the stages, by name: gpipe, 1f1b, afp (advance forward propagation), interleaved,
	// zb-h1, zb-h2, zb-v, pipedream or pipedream-2bw; docs/schedules.md says what each is for, and `avgpipectl plan show`
	// draws them. pipedream and pipedream-2bw step the optimizer inside of a batch. Or `file:` and the path of a plan that
	// you wrote: a line a device, as `avgpipectl plan check` proves it; stages, chunks and micro_batches follow from it,
	// and what else is open is set by rule. `auto`: see `tuning`.
	Schedule string `yaml:"schedule" json:"schedule" default:"afp"`
	// How counts and a schedule that are `auto` are decided. `profile`: the job is measured on its devices for some batches
	// before it starts, candidates are predicted from that, the best are run for a few batches, and the measured best is taken;
	// `avgpipectl explain` says why. `rules`: at once, without a measurement: a stage for each device (devices.cpu.count, or of
	// GPUs devices.gpu.count, of emulated ones devices.emulated.count; else the node's cores), at most the model's layers; 2 pipelines when there are
	// several stages, so that a device has other work while one pipeline waits for a message, else 1; the divisor of the batch
	// nearest to twice the stages as micro-batches, the larger of two equally near; the schedule afp; and no recomputation, but
	// where devices have memory of their own, the least that fits.
	Tuning string `yaml:"tuning" json:"tuning" default:"profile" rule:"oneof=profile|rules"`
	// The most that measuring may cost, as a share of the job's training time, which is estimated after the first reading; 2 seconds in
	// any case. What would cost more is spared: first the short runs of the best candidates, then the measurement, so that the
	// rules decide. 0: no bound. `--retune` and `avgpipectl tune` have none.
	TuningShare float64 `yaml:"tuning_share" json:"tuning_share" default:"0.1" rule:"min=0 max=1000"`
	// The type that products, those of convolutions and LSTMs among them, compute in: f32, or bf16 with sums in f32. On CPUs bf16 takes half
	// the memory for what products keep; it is faster than f32 where the processor has fast bf16 units (AMD's since Zen 4, Intel's with AMX),
	// else as fast.
	// Weights, optimizer state, losses, norms and averages are f32 either way.
	Precision string `yaml:"precision" json:"precision" default:"f32" rule:"oneof=f32|bf16" also:"dtype torch_dtype fp32=f32 float32=f32 float=f32 bfloat16=bf16 fp16=bf16 float16=bf16 half=bf16"`
	// The type in which activations and their gradients cross from stage to stage: f32, or bf16, rounded, in half the bytes. With f32
	// stages of equal devices.cpu.threads, whatever their number and their cut, compute the same bits; with bf16 what is computed depends on where they are cut, so
	// `auto` counts of stages may give other bits on other hosts. Inside of a stage nothing changes. bf16 pays on slow links.
	BoundaryPrecision string `yaml:"boundary_precision" json:"boundary_precision" default:"f32" rule:"oneof=f32|bf16" also:"fp32=f32 float32=f32 float=f32 bfloat16=bf16 fp16=bf16 float16=bf16 half=bf16"`
	// What a stage computes again instead of keeping it between the forward and the backward of a micro-batch: nothing
	// (none), what is inside of each layer, of which the input is kept (block), or everything, with only the stage's
	// input kept (full). Either costs one more forward and gives the same results. A list says it for each stage (of which
	// there are stages times chunks): the first ones hold the most micro-batches. `auto`: as little as the memory allows, stage
	// by stage; see `tuning`.
	Recompute []string `yaml:"recompute" json:"recompute" default:"none" rule:"oneof=none|block|full alone=auto items=1+ each=stage" also:"activation_checkpointing gradient_checkpointing"`
	// How the pipelines share what they learn.
	Averaging Averaging `yaml:"averaging" json:"averaging"`
	// How rounds of the center become durable.
	Center Center `yaml:"center" json:"center"`
	// What the stages run on.
	Devices Devices `yaml:"devices" json:"devices"`
	// Where the stages go in a cluster of several nodes. `pack`: to one node where that has room and no other way is predicted to be faster by a tenth,
	// else to as few as possible, over few and fast links. `spread`: over as many as possible, for the memory of all of them.
	Placement string `yaml:"placement" json:"placement" default:"pack" rule:"oneof=pack|spread"`
	// The job's turn among those that wait for room: the highest first, then in the order of submission. A job that has waited for a day
	// goes before all later ones. One that runs is never stopped for another.
	Priority int `yaml:"priority" json:"priority" default:"0" rule:"min=-100 max=100"`
	// Where the trained model goes.
	Output Output `yaml:"output" json:"output"`
	// Determines the initial weights and the order of the samples. What is held out depends on the data alone, so runs
	// with different seeds compare.
	Seed uint64 `yaml:"seed" json:"seed" default:"0"`
}

// Count is a positive number or `auto` (0).
type Count int

// Auto is the value of a Count that the program chooses.
const Auto Count = 0

// AutoTau is averaging.tau where the program chooses it as the job is placed; 0 is what the method takes by default.
const AutoTau = -1

// AutoCriticalBatch is train.critical_batch where a tuning takes what was measured.
const AutoCriticalBatch = -1

// Factor is a positive number or `auto` (0).
type Factor float64

// AutoFactor is the value of a Factor that the program chooses.
const AutoFactor Factor = 0

// AutoSchedule is the schedule that the program chooses.
const AutoSchedule = "auto"

// AutoRecompute is, alone, the recomputation that the program chooses.
const AutoRecompute = "auto"

// RecomputeOpen reports whether the program chooses what is computed again.
func (j *Job) RecomputeOpen() bool { return len(j.Recompute) == 1 && j.Recompute[0] == AutoRecompute }

// The values of Job.Tuning.
const (
	TuneByProfile = "profile"
	TuneByRules   = "rules"
)

// planFile is how a schedule starts that is a file's.
const planFile = "file:"

// PlanFile is the path of the file that the job's schedule is read from; empty when a schedule is named.
func (j *Job) PlanFile() string {
	path, ok := strings.CutPrefix(j.Schedule, planFile)
	if !ok {
		return ""
	}
	return path
}

// Shared is how many pipelines share devices: those of one group. 0: not known yet.
func (j *Job) Shared() int { return int(j.Pipelines) / max(1, j.Groups) }

// Model says what is trained.
type Model struct {
	// The model family, by name: each has a section with its config below. Default: with `from`, the family that its
	// config.json names; required beside `config`.
	Family string `yaml:"family" json:"family" rule:"optional"`
	// The family's own fields, with the names and defaults of its Hugging Face config.json; those of each family
	// are below. Required unless `from` is there, and refused beside it.
	Config map[string]any `yaml:"config" json:"config"`
	// A directory to start from, with config.json and model.safetensors, or several such files with an index, as
	// `avgpipectl export` and Hugging Face's transformers write it. Default: fresh random weights.
	From string `yaml:"from" json:"from" rule:"path"`
	// Modules of your own, of PyTorch, JAX or TensorFlow, in the place of a family, or, beside `family` and `config` or a `from` of a family, in the place of its head: a file of Python and, behind a colon, a function in it that returns a list
	// of modules, or one, as an `nn.Sequential`. docs/python-models.md says what they may be. They run in your interpreter, with your rights.
	Python string `yaml:"python" json:"python,omitempty" rule:"path"`
	// What the function is given, by name, as Python has it: `1` is an int, `1.0` and `1e3` are floats, nothing is None.
	Args strictyaml.JSON `yaml:"args" json:"args,omitempty"`
	// Where the one module that the function returns is cut: names of modules within it, as of `named_modules()`, in front of each of which a part ends. Its program stays as it
	// is. Default: it is not cut, and runs on one stage.
	Cut []string `yaml:"cut" json:"cut,omitempty" rule:"items=1+"`
	// A function of the file of `python` that gives the loss of logits and targets in training, a tensor with one number. Default: the cross-entropy.
	Loss string `yaml:"loss" json:"loss,omitempty" rule:"optional"`
	// The interpreter that `python` runs in, which has the framework of the modules. Default: /usr/bin/python3.
	Interpreter string `yaml:"interpreter" json:"interpreter,omitempty" rule:"path"`
	// What the modules learn, which says what the first one is given and how the last one's logits are judged; docs/python-models.md has a table. Default:
	// images where data.format is idx or images, else language.
	Task string `yaml:"task" json:"task,omitempty" rule:"optional oneof=language|masked-language|classification|translation|images"`
	// How many ids of tokens the modules know: they are below it. Default: 256, those of data.tokenizer bytes. Not of images.
	Vocabulary int `yaml:"vocabulary" json:"vocabulary,omitempty" rule:"optional min=1 max=16777216"`
	// Channels, rows and columns of an image; of the task images alone.
	Image []int `yaml:"image" json:"image,omitempty" rule:"items=3 min=1 max=65536"`
}

// Data says what it is trained on. What a sample is, the model's family says: docs/data.md lists the formats and keys of each.
type Data struct {
	// Files, directories or glob patterns. A directory stands for every file below it, a pattern (`*`, `?`, `[a-z]`,
	// `{a,b}`, and `**` across directories) for the files it matches; names that start with a dot are skipped unless the
	// pattern says them. Relative paths start at the job file's directory. Or URLs, where the daemon's data_sources allow them:
	// `s3://BUCKET/KEY`, of an object, a prefix or such a pattern, and `https://HOST/PATH`, which may end in `#sha256=DIGEST`. What they are
	// is fixed when the job is submitted; docs/data.md says how.
	// Required unless `samples` is there.
	Files []string `yaml:"files" json:"files" rule:"items=1+ path"`
	// A function of the file of `model.python`, in the place of files, that returns the samples to train on: an object with `len` and an element for each number, as a `Dataset` of PyTorch, or a pair of two such,
	// of which the second is evaluated on. docs/python-models.md says what a sample is. Needs `model.loss`.
	Samples string `yaml:"samples" json:"samples,omitempty" rule:"optional"`
	// What that function is given, by name, like `model.args`.
	Args strictyaml.JSON `yaml:"args" json:"args,omitempty"`
	// A function of the same file that makes a micro-batch of a list of samples: inputs and targets. Default: tensors and numbers are stacked.
	Collate string `yaml:"collate" json:"collate,omitempty" rule:"optional"`
	// Files to evaluate on, like `files`; nothing else is held out then. Default: a share of `files`, see `holdout`.
	Validation []string `yaml:"validation" json:"validation" rule:"path number=data.holdout"`
	// What the files hold: `text`, a document per file; a table of rows, as `jsonl` (JSON Lines), `csv`, `tsv` or `parquet`;
	// images, as `idx` (MNIST's files) or `images` (PNG and JPEG files, the directory of each its class); or `tokens`,
	// as `avgpipectl tokenize` writes them.
	Format string `yaml:"format" json:"format" default:"text" rule:"oneof=text|jsonl|csv|tsv|parquet|idx|images|tokens"`
	// Which column of a table holds what.
	Columns Columns `yaml:"columns" json:"columns"`
	// Whether the first line of a csv or tsv file names the columns. Without names, they are called 1, 2, 3 and so on.
	Header bool `yaml:"header" json:"header" default:"true"`
	// What turns text into tokens: `bytes`, a vocabulary of 256 with a zero byte between documents; or the path of a
	// tokenizer.json in Hugging Face's format, or of a directory with one (write ./bytes for a file of that name). When the
	// key is absent and `model.from` is there, the model's own tokenizer is taken.
	Tokenizer string `yaml:"tokenizer" json:"tokenizer" default:"bytes" rule:"path"`
	// Tokens in a sample. 0: the model's longest.
	Sequence int `yaml:"sequence" json:"sequence" default:"0" rule:"min=0 max=1048576" also:"seq_length max_length max_seq_length sequence_length"`
	// The share of the data that is kept for evaluation and never trained on. Of a language model's data it is whole files,
	// by a hash of their names, or the end of the largest where these do not make it up; else it is samples, chosen evenly. Either
	// way the seed plays no part.
	Holdout float64 `yaml:"holdout" json:"holdout" default:"0.05" rule:"above=0 max=0.5"`
	// The classes, in the order of their numbers. Default: the labels that the data have, in order: as numbers when all
	// of them are, else as text. An image's class is its directory.
	Labels []string `yaml:"labels" json:"labels"`
	// The share of tokens that a masked language model has to guess.
	Masked float64 `yaml:"masked" json:"masked" default:"0.15" rule:"above=0 below=1"`
	// What is subtracted from the values of an image, which are 0 to 1; one number, or one for each channel. Default: 0.
	Mean []float64 `yaml:"mean" json:"mean" rule:"min=0 max=1"`
	// What the values of an image are then divided by; one number, or one for each channel. Default: 1.
	Std []float64 `yaml:"std" json:"std" rule:"above=0"`
}

// Columns says which column of a table, or which key of a JSON object, holds what. A key that the model's task does not read is
// refused.
type Columns struct {
	// The text of a language model, or that is classified. Default: text.
	Text string `yaml:"text" json:"text" rule:"optional"`
	// The second text, where pairs are classified. Default: none, so that single texts are.
	TextPair string `yaml:"text_pair" json:"text_pair" rule:"optional"`
	// The class. Default: label.
	Label string `yaml:"label" json:"label" rule:"optional"`
	// The text that is translated. Default: source.
	Source string `yaml:"source" json:"source" rule:"optional"`
	// Its translation. Default: target.
	Target string `yaml:"target" json:"target" rule:"optional"`
}

// Optimizer says how weights are updated.
type Optimizer struct {
	// The update rule. asgd is sgd whose weights are averaged from t0 on: the average is evaluated, committed and exported.
	Name string `yaml:"name" json:"name" default:"adamw" rule:"oneof=sgd|asgd|adam|adamw"`
	// The learning rate, before the schedule.
	LearningRate float64 `yaml:"lr" json:"lr" rule:"required above=0 max=1e4" also:"learning_rate"`
	// The decay of the first and second moment (adam, adamw).
	Betas []float64 `yaml:"betas" json:"betas" default:"[0.9, 0.999]" rule:"items=2 min=0 max=0.9999999 of=adam|adamw" also:"beta1 beta2 adam_beta1 adam_beta2"`
	// Added to the root of the second moment (adam, adamw). Moments below 1e-30 count as 0, which a smaller epsilon would show.
	Epsilon float64 `yaml:"epsilon" json:"epsilon" default:"1e-8" rule:"min=1e-15 max=1 of=adam|adamw" also:"eps adam_epsilon"`
	// The momentum (sgd).
	Momentum float64 `yaml:"momentum" json:"momentum" default:"0" rule:"min=0 below=1 of=sgd"`
	// Look ahead along the momentum (sgd, momentum above 0).
	Nesterov bool `yaml:"nesterov" json:"nesterov" default:"false" rule:"of=sgd"`
	// The step from which on weights are averaged (asgd), counted as those of warmup: as where the loss of evaluations stops
	// falling without it.
	T0 int `yaml:"t0" json:"t0" default:"0" rule:"min=0 max=1e9 of=asgd"`
	// Weight decay: decoupled for adamw, added to the gradient for sgd, asgd and adam. It applies to parameters of two dimensions
	// and more; biases and the weights of norms do not decay. The default is none for every optimizer, so that changing
	// `name` changes one thing; PyTorch's AdamW has 0.01, and decays every parameter.
	WeightDecay float64 `yaml:"weight_decay" json:"weight_decay" default:"0" rule:"min=0 max=1e4"`
	// The largest norm of a batch's gradient over all stages; a longer one is scaled down to it. 0: no clipping.
	ClipNorm float64 `yaml:"clip_norm" json:"clip_norm" default:"0" rule:"min=0" also:"max_grad_norm grad_clip gradient_clipping"`
	// How the learning rate moves after the warm-up: it stays (constant), or falls to min_lr_ratio along a line (linear)
	// or half a cosine (cosine) until the budget of `train` is used up.
	Schedule string `yaml:"schedule" json:"schedule" default:"constant" rule:"oneof=constant|linear|cosine"`
	// Steps in which the learning rate rises to lr, counted as those of train.steps whatever key gives the budget: they consume
	// warmup times train.batch samples of all pipelines together, at most the budget. Each of N pipelines has warmup/N of
	// them, rounded up. Step s of W, counted from 0, has lr (s+1)/W, so that the first step already moves the weights; Hugging
	// Face's schedules have lr s/W.
	Warmup int `yaml:"warmup" json:"warmup" default:"0" rule:"min=0 max=1e9" also:"warmup_steps"`
	// The final learning rate over lr, for linear and cosine.
	MinimumRatio float64 `yaml:"min_lr_ratio" json:"min_lr_ratio" default:"0.1" rule:"min=0 max=1"`
}

// Train says how long. The budget is a number of samples that all pipelines consume together, however many there are: exactly one of
// steps, samples, tokens and epochs gives it. Each of N pipelines takes samples/(N*batch) optimizer steps, rounded up to whole
// rounds of averaging.tau.
type Train struct {
	// The budget in batches: steps times batch samples, of all pipelines together. Each of N pipelines takes steps/N optimizer
	// steps, rounded up to whole rounds.
	Steps int `yaml:"steps" json:"steps" rule:"optional min=1 max=1e9" also:"max_steps train_steps"`
	// The budget in samples.
	Samples int `yaml:"samples" json:"samples" rule:"optional min=1 max=1e15"`
	// The budget in tokens, of a model that reads them; a sample has data.sequence, padding included.
	Tokens int `yaml:"tokens" json:"tokens" rule:"optional min=1 max=1e15"`
	// The budget in passes over the training data, such as 1 or 0.5. How many samples that is, is known once the data are open.
	Epochs float64 `yaml:"epochs" json:"epochs" rule:"optional above=0 max=1e6" also:"num_epochs num_train_epochs"`
	// Samples that one pipeline consumes per optimizer step.
	Batch int `yaml:"batch" json:"batch" rule:"required min=1 max=1048576" also:"batch_size per_device_train_batch_size"`
	// The samples in a batch with which training needs twice as many samples to a target as with small ones. With it `pipelines: auto` weighs the samples that further pipelines cost
	// against the speed that they gain: a round of all of them is as a batch of their samples together. docs/tuning.md says how two short runs measure it. auto: what the
	// newest job of the same name, model and data has measured while it trained, and until there is one, as 0: nobody knows, and speed alone decides.
	CriticalBatch float64 `yaml:"critical_batch" json:"critical_batch,omitempty" default:"0" rule:"min=0 max=1e12 word=auto stands=-1" also:"noise_scale gradient_noise_scale"`
	// Which parameters are trained: patterns over their names, as in the model's files, such as `classifier.*` or `*.bias`. A pattern
	// (`*`, which also stands for dots, `?`, `[a-z]`) matches a whole name, or what follows any dot of it. All other parameters are frozen:
	// they stay as they are, and take neither gradients nor optimizer state. Default: all are trained.
	Only []string `yaml:"only" json:"only,omitempty" rule:"items=1+" also:"trainable unfrozen_parameters"`
	// End after this much training time even if some of the budget remains; a schedule of the learning rate still counts on all
	// of it. 0: no bound.
	MaxTime time.Duration `yaml:"max_time" json:"max_time" default:"0"`
	// Rounds between evaluations of the center on held-out data. 0: only before the first and after the last.
	EvalEvery int `yaml:"eval_every" json:"eval_every" default:"0" rule:"min=0 max=1e9"`
	// Held-out samples in an evaluation, always the same ones; all of them when there are fewer.
	EvalSamples int `yaml:"eval_samples" json:"eval_samples" default:"64" rule:"min=1 max=1048576"`
}

// LoRA adds a product of two small matrices A and B to linear layers: y = x W + alpha/rank (x A) B (Hu et al. 2021). A and B are trained, with
// what train.only names; everything else is frozen. An exported model has W + alpha/rank A B. Without the section there are none.
type LoRA struct {
	// The linear layers that get one: patterns over their names, which match as those of train.only do, such as `[q_proj, v_proj]`, `[c_attn]` or
	// `[query, value]`. Those of a transformer's blocks and of heads can be named, unless the weight is tied to an embedding.
	Targets []string `yaml:"targets" json:"targets,omitempty" rule:"required items=1+" also:"target_modules lora_target_modules"`
	// Columns of A and rows of B.
	Rank int `yaml:"rank" json:"rank" default:"8" rule:"min=1 max=65536" also:"r lora_r"`
	// The product of A and B is multiplied by alpha/rank.
	Alpha float64 `yaml:"alpha" json:"alpha" default:"16" rule:"above=0 max=1e6" also:"lora_alpha"`
	// The probability with which an element of x is dropped on its way to A.
	Dropout float64 `yaml:"dropout" json:"dropout" default:"0" rule:"min=0 below=1" also:"lora_dropout"`
}

// Averaging says how pipelines share what they learn.
type Averaging struct {
	// The averaging method. `elastic`: pipelines are pulled toward a center that takes the mean of their updates (AvgPipe; see `pull`). `easgd-async`: asynchronous EASGD, whose pipelines visit the center in turn, one in each round, where both move
	// toward each other by `alpha`, while the others go on; nobody waits. `localsgd`: after
	// `tau` steps of its own every pipeline is set to the mean of all. `diloco`: after `tau` steps the center takes a step of SGD with Nesterov's momentum by
	// the mean of their updates, and all go on from it. `streaming-diloco`: the same for one of `fragments` parts of the model after another, while training goes on: pipelines mix what they have with
	// the result a round later, by `mix`, and nobody waits. `allreduce`: synchronous data parallelism; every step applies the mean of the pipelines' gradients. `pipesgd`:
	// the same with the gradients of the step before, so that no pipeline waits for an exchange. `sapipe`: the first `stale_layers` layers, whose gradients are ready last and whose
	// weights are needed first, take those of the step before and compute with predicted weights (SAPipe); the others are synchronous. A single pipeline has nobody to average with: whatever the method, it
	// trains as without averaging.
	Method string `yaml:"method" json:"method" default:"elastic"`
	// With `elastic`, what a pipeline is pulled toward in a round. `predicted`: where the
	// center will be, as its own update tells: the center before the update plus `horizon` times that update; nobody waits. `new`: the
	// weights after the update are pulled toward the center after it took this round's updates, which waits for the slowest pipeline.
	// `old`: the weights after the update are pulled toward the center before it, without a wait, and stay one update behind.
	// `elastic` is EASGD: center and pipelines are pulled toward each other by the same amount.
	Pull string `yaml:"pull" json:"pull" default:"predicted" rule:"oneof=predicted|new|old|elastic"`
	// How far a pipeline is pulled in a round: 1 is all the way. `auto`, or 0: 1 for `predicted` and `new`; for the others
	// 1/pipelines, and 0.25 for fewer than four. With `easgd-async` below 1, and by default 0.9/pipelines.
	Alpha float64 `yaml:"alpha" json:"alpha" default:"0" rule:"min=0 max=1 word=auto" zero:"1, or with pull old or elastic 1/pipelines, with easgd-async 0.9/pipelines"`
	// With `pull: predicted`, how many of its own updates a pipeline adds to the center to predict where that will be. 1: where this
	// round's updates take it. More: ahead of that, where the next gradients arrive. 0: 1.5, and 1 with a tau above 1.
	Horizon float64 `yaml:"horizon" json:"horizon" default:"0" rule:"min=0 max=4" zero:"1.5, or 1 with a tau above 1"`
	// With `elastic`, how far pipelines may move away from the center of a stage, as a share of the length of its weights: the root of the mean of their squared distances. While they are farther at the end
	// of a round, the rounds after it are synchronous: each pipeline waits for all and is set to the center, until they move at most half as far within a round. The job's log and status say so. 0: there is no bound.
	MaxDrift float64 `yaml:"max_drift" json:"max_drift,omitempty" default:"0" rule:"min=0 max=1" zero:"no bound"`
	// With `diloco` and `streaming-diloco`, the learning rate of the step that the center takes. 0: 0.7.
	OuterRate float64 `yaml:"outer_lr" json:"outer_lr,omitempty" default:"0" rule:"min=0 max=2" zero:"0.7"`
	// With `diloco` and `streaming-diloco`, the momentum of that step.
	OuterMomentum float64 `yaml:"outer_momentum" json:"outer_momentum,omitempty" default:"0.9" rule:"min=0 below=1"`
	// With `streaming-diloco`, into how many fragments the model is divided, of which one is exchanged in each round, so each every `fragments` times `tau` steps: of layers that are trained the first, the second and so on
	// are in fragments of their own, and then again from the first fragment. 2 or more, and at most as many as there are such layers. 0: 4, or as many as there are layers. The model that is evaluated and written has of each
	// fragment its last exchange.
	Fragments int `yaml:"fragments" json:"fragments,omitempty" default:"0" rule:"min=0 max=1e6" zero:"4, or the number of layers that are trained"`
	// With `streaming-diloco`, the part of its own weights that a pipeline keeps when it mixes them with an exchange of the round before. 0: it goes on from the exchange alone, and loses the steps that it has taken since.
	Mix float64 `yaml:"mix" json:"mix,omitempty" default:"0.5" rule:"min=0 below=1"`
	// With `sapipe`, how many layers of the model, counted from the input, apply the mean gradient of the step before; the others wait for that of this step. As many as the model has,
	// or more: all of them. `auto`: as many as make a step short by the links between the groups of pipelines, chosen each time that the job is placed; none where `groups` is 1, since
	// nothing is exchanged over a network then. To have none of them late is method `allreduce`.
	StaleLayers Count `yaml:"stale_layers" json:"stale_layers,omitempty" default:"auto" rule:"min=1 max=1e9 word=auto"`
	// With `sapipe`, the gradient that stands for the one that late layers have not got yet: they compute the next step with the weights that another step of the optimizer with it would
	// give. `local`: the pipeline's own gradient of this step. `prev_sync`: the mean of the step before. `local_prev_sync`: that mean, with this step's gradient in the place of the pipeline's part. `none`:
	// they compute with the weights as they are.
	Prediction string `yaml:"prediction" json:"prediction,omitempty" default:"local" rule:"oneof=local|prev_sync|local_prev_sync|none"`
	// With `sapipe` and `prediction: prev_sync` or `local_prev_sync`, how the mean of the step before is corrected for what the weights moved by since: by the squares of the gradient's elements (`diag`), or by its
	// product with the move (`outer`), tensor by tensor; the adaptive ones divide by the gradient's size.
	Compensation string `yaml:"compensation" json:"compensation,omitempty" default:"none" rule:"oneof=none|diag|diag_adaptive|outer|outer_adaptive"`
	// What the correction is multiplied by. 0: 0.04.
	Lambda float64 `yaml:"lambda" json:"lambda,omitempty" default:"0" rule:"min=0 max=10" zero:"0.04"`
	// With `pipesgd` and `sapipe`, how many of the first steps apply the gradients of their own step, as with allreduce. In the step after them what is late applies none.
	Warmup int `yaml:"warmup" json:"warmup,omitempty" default:"0" rule:"min=0 max=1e9"`
	// With `groups` above 1, what the elements of messages between groups are rounded to. `bf16` halves what the network carries. `int8` sends a byte for an element, scaled by the largest of 256, and adds
	// what rounding left out to the next message; sums, which are sent back, are bf16.
	Precision string `yaml:"precision" json:"precision,omitempty" default:"f32" rule:"oneof=f32|bf16|int8"`
	// What the learning rate is multiplied by, at every step. `auto`: with elastic, easgd-async and localsgd the root of the number of pipelines for adam and adamw, whose
	// updates shrink when they are averaged, else 1. The budget of `train` is that of all pipelines, so each of N takes an
	// Nth of the steps, at this rate.
	RateScale Factor `yaml:"lr_scale" json:"lr_scale" default:"auto" rule:"above=0 max=1e6 word=auto"`
	// Optimizer steps of each pipeline between rounds; 1 with allreduce, pipesgd and sapipe. 0: 8 with localsgd and streaming-diloco, 32 with diloco, and with elastic and easgd-async 1; less where the budget is so small that
	// a pipeline, or a fragment, would have fewer than 4 rounds. The schedules pipedream and pipedream-2bw, which step
	// inside of batches, count these, and run on across them: a pipeline drains where a round ends, also one that has nobody to average with. The budget of `train` is rounded up to whole rounds, so one that takes twice the
	// budget or more is refused. `auto`: the fewest, up to `tau_most`, behind which the exchange with the other groups of pipelines is hidden, or takes a twentieth of a round where everybody waits for it; chosen where the
	// job is placed, by what its steps take and by the links between its groups, and kept from the first commit on. With one group that is 1; diloco and streaming-diloco take no fewer than by default.
	Tau int `yaml:"tau" json:"tau" default:"0" rule:"min=0 max=1e9 word=auto stands=-1" zero:"1, or with localsgd and streaming-diloco 8, with diloco 32"`
	// With `tau: auto`, the most steps that it chooses. 0: 64. No more than a quarter of the steps of a pipeline are chosen either, so that it has 4 rounds.
	TauMost int `yaml:"tau_most" json:"tau_most,omitempty" default:"0" rule:"min=0 max=1e9" zero:"64"`
}

// Center says how rounds become durable.
type Center struct {
	// Rounds between commits. A crash costs at most the rounds since the last one.
	CommitEvery int `yaml:"commit_every" json:"commit_every" default:"20" rule:"min=1 max=1e9"`
	// Nodes that keep a copy of each committed shard. 1: only the node that computes it, which survives the death of any
	// process but not of the host.
	Replicas int `yaml:"replicas" json:"replicas" default:"1" rule:"min=1 max=64"`
	// Committed rounds kept on disk.
	Keep int `yaml:"keep" json:"keep" default:"2" rule:"min=1 max=1000"`
	// A place in a bucket, s3://BUCKET/PREFIX, that committed rounds are copied to as well, the last `keep` of them, and from which the job
	// can be resumed when its nodes have lost them. The daemon's configuration has the server and the credentials. Empty: none.
	Store string `yaml:"store" json:"store,omitempty" pattern:"^s3://[a-z0-9][a-z0-9.-]{1,61}[a-z0-9](/.*)?$" form:"s3://BUCKET/PREFIX, the BUCKET of 3 to 63 lower-case letters, digits, dots and dashes"`
	// What a commit holds: `full`, the center with the weights and optimizer state of every pipeline, from which the run
	// goes on as if it had not been interrupted; `center`, the center alone, which is smaller, and every pipeline
	// restarts from it with a fresh optimizer.
	State string `yaml:"state" json:"state" default:"full" rule:"oneof=full|center"`
}

// Devices says what the stages run on.
type Devices struct {
	// The kind of device. `auto`: GPUs where the program and the node have them, the job fits them, nothing is said of `cpu` and
	// the model is none of modules in Python, else the node's cores; `gpu`: GPUs of NVIDIA; `ref` is plain Go, slow, the one that every other is
	// tested against; `emulated` takes the time and the memory that `emulated` says, and computes only where that says so.
	Kind string `yaml:"kind" json:"kind" default:"auto" rule:"oneof=auto|gpu|cpu|ref|emulated" also:"device_type cuda=gpu nvidia=gpu"`
	// The GPUs of a node; with the kinds gpu and auto.
	GPU GPU `yaml:"gpu" json:"gpu"`
	// The CPU devices of a node.
	CPU CPU `yaml:"cpu" json:"cpu"`
	// Devices that take the times they are told to, to measure a pipeline on a machine that does not have them; only with the
	// kind emulated, which needs flops or forward at least. docs/emulation.md says how.
	Emulated Emulated `yaml:"emulated" json:"emulated"`
}

// Emulated describes emulated devices.
type Emulated struct {
	// Devices that a node offers, of which a job takes one for each of `stages`. `auto`: as many as the lists below have entries
	// for devices, else one for each stage.
	Count Count `yaml:"count" json:"count" default:"auto" rule:"min=1 max=1024 word=auto"`
	// Whether the devices also compute, on the node's cores, so that losses and weights are those of training while times stay those that
	// are said here: of a model so small that the cores need less. Where they need more, `avgpipectl status` warns. `false`: no values are kept, and losses are 0.
	Compute bool `yaml:"compute" json:"compute,omitempty" default:"false"`
	// Floating-point operations of products that a device does in a second. 0: they take no time.
	FLOPs []float64 `yaml:"flops" json:"flops" default:"0" rule:"min=0 items=1+ each=device"`
	// Bytes that a device's other operations move in a second. 0: they take no time.
	Bandwidth []float64 `yaml:"bandwidth" json:"bandwidth" default:"0" rule:"min=0 items=1+ each=device"`
	// The time that each operation takes besides.
	Launch time.Duration `yaml:"launch" json:"launch" default:"0"`
	// Bytes of a device's memory. 0: as much as is asked for.
	Memory []float64 `yaml:"memory" json:"memory" default:"0" rule:"min=0 max=1e18 items=1+ each=device"`
	// The time of a stage's forward of one micro-batch. 0: what its operations take.
	Forward []time.Duration `yaml:"forward" json:"forward" default:"0" rule:"items=1+ each=stage"`
	// The time of a stage's backward of one micro-batch. 0: twice the forward, where that is given.
	Backward []time.Duration `yaml:"backward" json:"backward" default:"0" rule:"items=1+ each=stage"`
	// The time of a stage's optimizer step, where forward is given.
	Step []time.Duration `yaml:"step" json:"step" default:"0" rule:"items=1+ each=stage"`
	// The links between the devices.
	Link Link `yaml:"link" json:"link"`
}

// Link describes the links between emulated devices: entry k of a list is that between device k and the next one, the last
// that between the last and the first. All pipelines share it; each direction carries one frame at a time.
type Link struct {
	// The time from the moment a frame has left to its arrival.
	Latency []time.Duration `yaml:"latency" json:"latency" default:"0" rule:"items=1+ each=device"`
	// Bytes that leave in a second. 0: no limit.
	Bandwidth []float64 `yaml:"bandwidth" json:"bandwidth" default:"0" rule:"min=0 items=1+ each=device"`
}

// GPU describes what a job takes of a node's GPUs. No other job computes on them meanwhile.
type GPU struct {
	// GPUs that the job takes; where there are fewer than stages, neighbouring stages share one. `auto`: all that the node has, at
	// most one for each stage; 1 where jobs may use instances of divided GPUs (MIG), of which a process sees one.
	Count Count `yaml:"count" json:"count" default:"auto" rule:"min=1 max=1024 word=auto" also:"num_gpus"`
	// What the job may take of the memory of each: bytes, or up to 1 a share. `auto`: all but a twentieth. The CUDA context of the
	// worker, or of each interpreter of modules in Python, 512 MiB, is a part of it.
	Memory Factor `yaml:"memory" json:"memory" default:"auto" rule:"above=0 max=1e18 word=auto" also:"gpu_memory_utilization"`
	// Whether products and convolutions of f32 may round what they multiply to TF32, which has 10 bits behind the point in place of 23: several
	// times as fast, and as far from f32 as allow_tf32 of PyTorch. It governs convolutions by cuDNN too. `false` is PyTorch's default for products; for
	// convolutions its default is TF32. Sums stay f32, and so does attention.
	TF32 bool `yaml:"tf32" json:"tf32" default:"false" also:"allow_tf32"`
}

// Of is the GPU of row r of a plan of so many rows, counted from 0: neighbouring rows share one where there are fewer.
func (g GPU) Of(r, rows int) int { return r * min(int(g.Count), rows) / rows }

// CPU describes the CPU devices of a node.
type CPU struct {
	// Devices that a node offers. `auto`: one for each stage.
	Count Count `yaml:"count" json:"count" default:"auto" rule:"min=1 max=1024 word=auto"`
	// Threads of each device. `auto`: the node's cores shared evenly by its devices, at least 1; with GPUs, and with emulated devices, 1.
	Threads Count `yaml:"threads" json:"threads" default:"auto" rule:"min=1 max=1024 word=auto"`
}

// Output says where the trained model goes.
type Output struct {
	// The directory that the trained model is written to when the job is done: by `avgpipectl submit --watch`, else by the daemon where
	// its user may write there, else by `avgpipectl export` without a directory.
	// Default: it stays with the daemon until it is exported.
	Dir string `yaml:"dir" json:"dir" rule:"path"`
}
