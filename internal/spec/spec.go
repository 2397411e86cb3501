package spec

import (
	"cmp"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"sync"

	"github.com/avgpipe/avgpipe/elastic"
	"github.com/avgpipe/avgpipe/internal/access"
	"github.com/avgpipe/avgpipe/internal/footprint"
	"github.com/avgpipe/avgpipe/internal/jobfile"
	"github.com/avgpipe/avgpipe/internal/pinned"
	"github.com/avgpipe/avgpipe/job"
	"github.com/avgpipe/avgpipe/schedule"
	"github.com/avgpipe/avgpipe/stage/model"
	"github.com/avgpipe/avgpipe/tuner"
)

// Spec is an admitted job: what the replicated state keeps of it beside the file that it was read from. Every value is resolved, at
// the latest by a tuning, so a newer program runs the job as the one that admitted it meant it. It is not changed once it is built.
type Spec struct {
	Version    int             `json:"version"`
	Job        job.Job         `json:"job"`               // while it is open, what is to be chosen is 0, a schedule "auto"
	Model      json.RawMessage `json:"model"`             // its config.json, every field written out
	Task       string          `json:"task"`              // of the model
	Parameters int             `json:"parameters"`        // values, tied copies counted once
	Trained    int             `json:"trained,omitempty"` // of Parameters, those that are trained; 0: all
	Why        []string        `json:"why"`               // the automatic choices and their reasons
	Warnings   []string        `json:"warnings"`
	// Weights and Tokenizer are digests of what model.from and data.tokenizer named when the job was submitted: of the files of weights, by
	// name (export.Check), and of tokenizer.json (SHA-256). Empty: of none, or not known, as of specs before version 6.
	Weights   map[string]string `json:"weights,omitempty"`
	Tokenizer string            `json:"tokenizer,omitempty"`
	Program   string            `json:"program,omitempty"` // the same of the file of model.python
	// Files is the SHA-256 of the names and lengths of the files of data when the job was submitted (data.Pin). Empty: not known, as of specs
	// before version 9.
	Files string `json:"files,omitempty"`

	// Remote are the objects that URLs of data.files and data.validation stood for when the job was submitted: what it reads, wherever it runs.
	Remote []pinned.Object `json:"remote,omitempty"`

	User     *access.User `json:"user,omitempty"`   // whose rights open what the job names; nil: the daemon's
	Retune   bool         `json:"retune,omitempty"` // measure even when a plan is cached
	Layout   *Layout      `json:"layout,omitempty"`
	UserPlan []string     `json:"plan,omitempty"` // that the user wrote, as it was when the job was submitted; a line a device
	// Output is how the model gets to output.dir. Nil: the user exports it.
	Output *Output `json:"output,omitempty"`
	// Budget is how much the job trains on. Nil: the pipelines are to be measured first, or the worker finds out how long an epoch is.
	Budget *job.Budget `json:"budget,omitempty"`

	// Before is the spec that the job was submitted with, encoded, while it runs with fewer stages since a loss (Fewer). Nil: it does not, as of specs before version 10.
	Before json.RawMessage `json:"before,omitempty"`

	Report *tuner.Report `json:"-"` // of a tuned job; it lies beside the spec in the replicated state

	base      *Spec                 // that this one is laid over nodes, or has late layers or a tau for; nil: it is the one that was admitted
	late      *Late                 // that were chosen; nil: the file says how many, or none were yet
	laid      bool                  // over nodes
	placement func() []int          // once
	memory    func() []tuner.Memory // once
}

// Output is how a job's model gets to its output.dir, as judged when the job was submitted.
type Output struct {
	Force   bool   `json:"force,omitempty"`   // an earlier export there is replaced
	Refused string `json:"refused,omitempty"` // why the daemon cannot write there, so that the user has to; empty: it writes
}

// Layout is what has no key in the job file and shapes the plan and its stages.
type Layout struct {
	Costs         schedule.Costs `json:"costs"` // that the plan is generated from; without Forward: none
	InFlightLimit []int          `json:"pinned_limit,omitempty"`
	Split         [][2]int       `json:"split"` // of each stage, its first layer and the one after its last; nil (before version 4): by operations
}

// New is the spec of a job that was resolved, or is left open for a tuning.
func New(r *Resolution, m *model.Model, user *access.User, retune bool) (*Spec, error) {
	config, err := json.Marshal(m.Config())
	if err != nil {
		return nil, fmt.Errorf("the config of the model of job %s cannot be written: %w", r.Job.Name, err)
	}
	s := &Spec{Version: Version, Model: config, Task: string(m.Task), Parameters: m.Weights(), User: user, Retune: retune}
	if n := m.Trained(); n < s.Parameters {
		s.Trained = n
	}
	s.take(r)
	if r.userPlan {
		s.UserPlan = r.Plan.Lines()
	}
	return s, nil
}

// take makes what was resolved the spec's.
func (s *Spec) take(r *Resolution) {
	s.Job, s.Layout, s.Budget = r.Job, r.Layout, r.Budget
	s.Why, s.Warnings = union(s.Why, r.Why), union(s.Warnings, r.Warnings)
	s.placement, s.memory = sync.OnceValue(s.place), sync.OnceValue(s.predict)
}

// union is a new list of what is in a, and what is in b besides: a job that was left open is resolved twice.
func union(a, b []string) []string {
	all := slices.Clone(a)
	for _, s := range b {
		if !slices.Contains(all, s) {
			all = append(all, s)
		}
	}
	return all
}

// Tuned is the spec with what a tuning chose, or the rules where that says so, for a node with so many cores.
func (s *Spec) Tuned(r *tuner.Report, cores int) (*Spec, error) {
	m, err := s.BuildModel()
	if err != nil {
		return nil, fmt.Errorf("resolve job %s: %w", s.Job.Name, err)
	}
	found, problems := Resolve(&s.Job, Facts{Cores: cores, Model: m}, r)
	switch {
	case len(problems) > 0 && r.Ruled != "":
		return nil, fmt.Errorf("resolve job %s by the rules: %w", s.Job.Name, problems)
	case len(problems) > 0:
		return nil, fmt.Errorf("resolve job %s: %s", s.Job.Name, problems[0].Message)
	}
	out := *s
	if r.Ruled == "" {
		out.Report = r
	}
	out.take(found)
	return &out, nil
}

// BuildModel makes the model that the job trains.
func (s *Spec) BuildModel() (*model.Model, error) {
	m, err := model.FromHuggingFace(s.Model)
	if err != nil {
		return nil, err
	}
	return m.Train(jobfile.Training(&s.Job))
}

// Bounded reports whether measuring the job is bounded by its tuning_share.
func (s *Spec) Bounded() bool { return !s.Retune }

// Plan is the plan that the user wrote, or generates the job's, which a proof precedes (schedule.Generate). That one is not kept: it
// grows with stages times micro-batches, and Raft's log is for small things.
func (s *Spec) Plan() (schedule.Plan, string, error) {
	if s.UserPlan != nil {
		plan, err := schedule.Parse(strings.Join(s.UserPlan, "\n"))
		return plan, userPlan, err
	}
	return generate(&s.Job, s.Layout)
}

// userPlan says where a plan comes from that nobody generates.
const userPlan = "as the file has it"

// generate generates the plan of a job of known counts.
func generate(j *job.Job, l *Layout) (schedule.Plan, string, error) {
	r := schedule.Request{Devices: int(j.Stages), Chunks: int(j.Chunks), MicroBatches: int(j.MicroBatches), RoundBatches: j.Averaging.Tau}
	if l != nil {
		r.InFlightLimit = l.InFlightLimit
		if l.Costs.Forward != nil {
			r.Costs = &l.Costs
		}
	}
	return schedule.Generate(j.Schedule, r)
}

// Stages is how many the model is cut into.
func (s *Spec) Stages() int { return stages(&s.Job) }

// Shards is how many a round consists of: one for each stage of each group.
func (s *Spec) Shards() int { return s.Stages() * s.Groups() }

// Groups is how many groups of pipelines there are, each on nodes of its own.
func (s *Spec) Groups() int { return max(1, s.Job.Groups) }

func stages(j *job.Job) int { return int(j.Stages) * max(1, int(j.Chunks)) }

// Placement is the device of each stage; nil where there is no plan.
func (s *Spec) Placement() []int {
	if s.placement == nil {
		return s.place()
	}
	return s.placement()
}

func (s *Spec) place() []int {
	plan, _, err := s.Plan()
	if err != nil {
		return nil
	}
	return plan.Placement()
}

// HostBytes is the memory of its hosts that the job's workers take, as predicted; 0 while the job is open, or where it cannot be told.
func (s *Spec) HostBytes() (bytes int64) {
	for _, stage := range s.StageBytes() {
		bytes += stage
	}
	return bytes * int64(s.Groups())
}

// WorkersBytes is HostBytes and what so many worker processes take beside their stages: what people see of them as taken. Jobs are promised HostBytes alone:
// most of the rest is shared by the workers of a host.
func (s *Spec) WorkersBytes(workers int) int64 {
	bytes := s.HostBytes()
	if bytes > 0 {
		bytes += int64(workers) * footprint.ProcessBytes
	}
	return bytes
}

// Memory is what each stage takes, as predicted; nil while the job is open, or where it cannot be told. It is shared and must not be changed.
func (s *Spec) Memory() []tuner.Memory {
	if s.memory == nil {
		return s.predict()
	}
	return s.memory()
}

func (s *Spec) predict() []tuner.Memory {
	if s.Job.Open() {
		return nil
	}
	plan, _, err := s.Plan()
	if err != nil {
		return nil
	}
	m, err := s.BuildModel()
	if err != nil {
		return nil
	}
	f, split := Facts{Model: m}, s.Split()
	if split == nil {
		if split, err = f.cut(&s.Job); err != nil {
			return nil
		}
	}
	z, err := f.sizer(&s.Job)
	if err != nil {
		return nil
	}
	_, in := Memories(&s.Job, len(plan))
	all, _ := tuner.Memories(z, plan, in, split, samples(&s.Job), s.Job.Shared(), s.Job.Recompute) // nil with an error
	return all
}

// DeviceWhy says why the job got its kind of device, where its file leaves that open and GPUs came into question; else "".
func (s *Spec) DeviceWhy() string {
	if i := slices.IndexFunc(s.Why, func(why string) bool { return strings.HasPrefix(why, autoTook) }); i >= 0 {
		return s.Why[i]
	}
	return ""
}

// Split is, of each stage, its first layer and the one after its last; nil: by operations.
func (s *Spec) Split() [][2]int {
	if s.Layout == nil {
		return nil
	}
	return s.Layout.Split
}

// Cores is how many of a node's cores the job computes on: a device for each stage. While it is not known how many that will
// be, tuning tries all that the job may have.
func (s *Spec) Cores(node int) int {
	if !s.Job.Open() {
		return s.Groups() * int(s.Job.Stages) * int(s.Job.Devices.CPU.Threads)
	}
	devices := s.Job.Stages
	if devices == job.Auto {
		devices = s.Job.Offered()
	}
	if devices == job.Auto || s.Job.Devices.CPU.Threads == job.Auto {
		return node
	}
	return min(int(devices)*int(s.Job.Devices.CPU.Threads), node)
}

// Averaging describes the averaging method for people: "elastic pull=predicted alpha=1 horizon=1.5 tau=1 lr
// x1.41". Where the number of pipelines decides and is not known yet, it says auto. A single pipeline is the center.
func (s *Spec) Averaging() string {
	a := s.Job.Averaging
	rate := fmt.Sprintf("lr x%.3g", a.RateScale)
	if a.RateScale == job.AutoFactor {
		rate = "lr x auto"
	}
	if s.Job.Pipelines == 1 {
		alone := fmt.Sprintf("%s tau=%d, one pipeline: nothing is averaged", a.Method, a.Tau)
		if a.RateScale == 1 || a.RateScale == job.AutoFactor {
			return alone
		}
		return alone + ", " + rate
	}
	said := []string{a.Method}
	for _, setting := range elastic.Settings()[a.Method] {
		text := describeSetting(&a, setting)
		if setting == "stale_layers" && s.LateOpen() {
			text = "stale_layers=auto"
		}
		if text != "" {
			said = append(said, text)
		}
	}
	if s.Groups() > 1 && a.Precision != "" && a.Precision != string(elastic.Float32) {
		said = append(said, "precision="+a.Precision)
	}
	tau := fmt.Sprintf("tau=%d", a.Tau)
	if s.TauOpen() {
		tau = fmt.Sprintf("tau=auto, %d to %d,", a.Tau, max(a.Tau, a.TauMost))
	}
	return strings.Join(append(said, tau, rate), " ")
}

// Ages says how old what pipelines apply is, for people; empty of a single pipeline, or where their number, the cut, or how many layers are late is not known.
func (s *Spec) Ages() string {
	split := s.Split()
	if s.Job.Pipelines < 2 || len(split) == 0 || s.LateOpen() {
		return ""
	}
	method, err := jobfile.Averaging(&s.Job.Averaging, int(s.Job.Pipelines))
	if err != nil {
		return ""
	}
	return elastic.AgesText(method, split[len(split)-1][1])
}

// describeSetting says what a setting of averaging is.
func describeSetting(a *job.Averaging, setting string) string {
	switch setting {
	case "pull":
		return "pull=" + a.Pull
	case "alpha":
		if a.Alpha == 0 {
			return "alpha=auto"
		}
		return fmt.Sprintf("alpha=%.3g", a.Alpha)
	case "horizon":
		if elastic.PullRule(a.Pull) != elastic.PullPredicted {
			return ""
		}
		if a.Horizon == 0 && a.TauMost > 0 {
			return "horizon=auto"
		}
		return fmt.Sprintf("horizon=%.3g", cmp.Or(a.Horizon, elastic.DefaultHorizon(a.Tau)))
	case "max_drift":
		if a.MaxDrift == 0 {
			return ""
		}
		return fmt.Sprintf("max_drift=%.3g", a.MaxDrift)
	case "outer_lr":
		return fmt.Sprintf("outer_lr=%.3g", cmp.Or(a.OuterRate, elastic.DefaultOuterRate))
	case "outer_momentum":
		return fmt.Sprintf("outer_momentum=%.3g", a.OuterMomentum)
	case "fragments":
		return fmt.Sprintf("fragments=%d", cmp.Or(a.Fragments, elastic.DefaultFragments))
	case "mix":
		return fmt.Sprintf("mix=%.3g", a.Mix)
	case "stale_layers": // auto: LateOpen
		return fmt.Sprintf("stale_layers=%d", a.StaleLayers)
	case "prediction":
		return "prediction=" + cmp.Or(a.Prediction, string(elastic.PredictLocal))
	case "compensation":
		if a.Compensation == "" || a.Compensation == string(elastic.CompensateNothing) {
			return ""
		}
		return fmt.Sprintf("compensation=%s lambda=%.3g", a.Compensation, cmp.Or(a.Lambda, elastic.DefaultLambda))
	case "warmup":
		return fmt.Sprintf("warmup=%d", a.Warmup)
	}
	return ""
}
