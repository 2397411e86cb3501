// Package api is the HTTP API of avgpiped: its types, paths and client. It links neither Raft nor devices.
package api

import (
	"time"

	"github.com/avgpipe/avgpipe/internal/gpu"
	"github.com/avgpipe/avgpipe/internal/strictyaml"
	"github.com/avgpipe/avgpipe/tuner"
)

// State is where a job stands.
type State string

// The states of a job. Queued -> Starting -> Running -> Done | Failed | Cancelled; a lost worker takes a Running job back
// to Starting with the next generation. A job whose counts are to be measured goes from Queued to Tuning and back first.
const (
	Queued    State = "queued"
	Tuning    State = "tuning"
	Starting  State = "starting"
	Running   State = "running"
	Waiting   State = "waiting" // for a full disk, a missing file or the like; Reason says for what. It goes on by itself
	Done      State = "done"
	Failed    State = "failed"
	Cancelled State = "cancelled"
)

// States are the states of a job, in their order.
var States = []State{Queued, Tuning, Starting, Running, Waiting, Done, Failed, Cancelled}

// Ended reports whether a job in this state is over.
func (s State) Ended() bool { return s == Done || s == Failed || s == Cancelled }

// JobStatus is what `avgpipectl status JOB -o json` prints.
type JobStatus struct {
	ID             string    `json:"id"`
	Name           string    `json:"name"`
	State          State     `json:"state"`
	Reason         string    `json:"reason"` // why it is in this state, for people
	Generation     uint64    `json:"generation"`
	Submitted      time.Time `json:"submitted"`
	Step           uint64    `json:"step"`  // of the slowest pipeline
	Steps          uint64    `json:"steps"` // of each pipeline; 0 while they are not known
	Round          uint64    `json:"round"` // of the center
	CommittedRound uint64    `json:"committed_round"`
	Loss           *float64  `json:"loss"`      // mean training loss of each pipeline's last 10 steps, nats per target; null before the first
	EvalLoss       *float64  `json:"eval_loss"` // of the center on held-out data; null before the first
	EvalRound      uint64    `json:"eval_round"`
	Metrics                  // of that evaluation
	InitialLoss    *float64  `json:"initial_eval_loss"` // of the untrained center
	TokensPerS     float64   `json:"tokens_per_s"`      // over the last window, all pipelines
	SamplesSeen    uint64    `json:"samples_seen"`
	ETAS           *float64  `json:"eta_s"` // seconds; null when unknown
	ElapsedS       float64   `json:"elapsed_s"`
	Pipelines      int       `json:"pipelines"`
	Groups         int       `json:"groups,omitempty"` // of pipelines, each with devices of its own; left out while it is not known
	Stages         int       `json:"stages"`
	MicroBatches   int       `json:"micro_batches"`
	Schedule       string    `json:"schedule"`
	Averaging      string    `json:"averaging"` // "elastic pull=predicted alpha=1 horizon=1.5 tau=1 lr x1.41"
	// Ages says how old what pipelines apply is: "layers 0-2: gradients of the step before; layers 3-9: gradients of this step"; empty of a single pipeline.
	Ages string `json:"ages"`
	// StaleLayers is how many layers are late, as it was chosen when the job was placed last; left out where the job file says it, or there is nothing to choose.
	StaleLayers *StaleLayers `json:"stale_layers,omitempty"`
	// Tau is how many steps a round has, as it was chosen when the job was placed; left out where the job file says it.
	Tau *Tau `json:"tau,omitempty"`
	// CriticalBatch is how large a batch is worth its samples, as it is measured while the job trains; left out of a job that never measured it.
	CriticalBatch *CriticalBatch `json:"critical_batch,omitempty"`

	Staleness *Staleness `json:"staleness"` // of the last committed round; null of a single pipeline, or where rounds have the center alone
	Device    string     `json:"device"`    // what computes, and why
	// DeviceWhy says why devices.kind: auto took GPUs, or did not; empty where the file names the kind, or the node has no GPU.
	DeviceWhy string `json:"device_why"`
	// HostBytes is the most that the job's workers have held of their hosts' memory, PredictedHostBytes what they are expected to; 0 while it
	// is not known. A device without memory of its own takes it of the host's.
	HostBytes          int64         `json:"host_bytes"`
	PredictedHostBytes int64         `json:"predicted_host_bytes"`
	Family             string        `json:"family"` // of the model
	Task               string        `json:"task"`   // "language", "classification", ...: what its samples are
	Parameters         int           `json:"parameters"`
	Trained            int           `json:"trained"`    // of Parameters
	Precision          string        `json:"precision"`  // that products compute in: f32, tf32 (f32 that GPUs round) or bf16
	Recompute          []string      `json:"recompute"`  // none, block or full: one for all stages, or one for each
	OutputDir          string        `json:"output_dir"` // where the job file wants the exported model; empty: nowhere
	Warnings           []string      `json:"warnings"`
	StageStatus        []StageStatus `json:"stage_status"`
	// Placement is where the stages are, or were last; left out of a job that was never placed.
	Placement  []StageNode  `json:"placement,omitempty"`
	Export     *Export      `json:"export"`      // of the model to output_dir; null where that is up to the client
	LinkStatus []LinkStatus `json:"link_status"` // of each boundary between two stages
	Store      *StoreStatus `json:"store"`       // of the job file's center.store; null without
	// Budget is what the job file asks for: "1000 steps of 16 samples", "2 epochs".
	Budget string `json:"budget"`
	// BudgetSamples is how many samples all pipelines are to see: what Budget asks for, rounded up to whole rounds once the number of
	// pipelines is known. It is 0 while nobody knows how many samples that is.
	BudgetSamples uint64 `json:"budget_samples"`
	// BatchS is the seconds from one step of a pipeline to its next, over the last window; null before the first.
	BatchS *float64 `json:"batch_s"`
	// PredictedBatchS is what tuning leads to expect; null of a job that was not tuned.
	PredictedBatchS *float64      `json:"predicted_batch_s"`
	Drift           *Drift        `json:"drift"`  // null while BatchS keeps to it
	Tuning          *TuneProgress `json:"tuning"` // while the job is being tuned; else null
	// Owner is who submitted the job: the user's name, or the number where the name is not known.
	Owner    string     `json:"owner"`
	OwnerUID uint32     `json:"owner_uid"`
	Ended    *time.Time `json:"ended"` // null until then
	// Restricted says that the rest is withheld: the job belongs to somebody else.
	Restricted bool `json:"restricted,omitempty"`
}

// Tau is how many steps a round of a job has, and what a step is expected to take, in seconds.
type Tau struct {
	Steps     int     `json:"steps"`
	StepS     float64 `json:"step_s"`
	LeastS    float64 `json:"least_step_s"` // with the fewest steps that may be chosen
	ComputeS  float64 `json:"compute_s"`    // of a step without rounds
	AverageS  float64 `json:"average_s"`    // that the arithmetic of a round takes
	ExchangeS float64 `json:"exchange_s"`   // that the busiest link takes to carry what a round exchanges
	Why       string  `json:"why"`
}

// CriticalBatch is the number of samples in a batch with which training needs twice as many of them to a target as with small batches, found by the noise in gradients (docs/tuning.md).
type CriticalBatch struct {
	Samples float64 `json:"samples"`        // 0 while it is not known
	Error   float64 `json:"error"`          // the standard error of Samples, relative
	Step    uint64  `json:"step"`           // up to which it was measured
	Moves   int     `json:"moves"`          // samples that the job moves the model by in a step: those of all pipelines
	Text    string  `json:"text"`           // for people; while Samples is 0 it says why
	Note    string  `json:"note,omitempty"` // of a job that moves the model by far more, what may change that
}

// StaleLayers is how many layers of a job take the gradients of the step before, and what a step is expected to take, in seconds.
type StaleLayers struct {
	Layers    int     `json:"layers"` // from the input
	StepS     float64 `json:"step_s"`
	NoneS     float64 `json:"none_step_s"` // if no layer were late
	AllS      float64 `json:"all_step_s"`  // if all were
	ComputeS  float64 `json:"compute_s"`   // of a step without exchanges
	ExchangeS float64 `json:"exchange_s"`  // that the busiest link takes to carry the gradients of all layers
	Why       string  `json:"why"`
}

// Staleness is how far pipelines are from the center of a committed round.
type Staleness struct {
	Round     uint64    `json:"round"`
	Distances []float64 `json:"distances"` // of each pipeline's weights from the center, over the center's length
	Predicted []float64 `json:"predicted"` // of the weights that its next batch is computed with from its own; 0 where a method predicts none
}

// StageNode says on which node a stage is.
type StageNode struct {
	Group int    `json:"group,omitempty"` // of pipelines, where there are several
	Stage int    `json:"stage"`
	Node  string `json:"node"`
}

// Public is what users see of a job of somebody else: that it is there, in which state, whose it is and since when.
func (s *JobStatus) Public() JobStatus {
	return JobStatus{
		ID: s.ID, Name: s.Name, State: s.State, Submitted: s.Submitted, Ended: s.Ended, Owner: s.Owner, OwnerUID: s.OwnerUID, Restricted: true,
		Recompute: []string{}, Warnings: []string{}, StageStatus: []StageStatus{}, LinkStatus: []LinkStatus{},
	}
}

// Metrics are what an evaluation says beside its loss. A figure that the model's task does not have is null.
type Metrics struct {
	Perplexity *float64 `json:"perplexity"` // e to the loss, of models that predict tokens
	Accuracy   *float64 `json:"accuracy"`   // share of right predictions; not of language models
	F1         *float64 `json:"f1"`         // of classifiers: of class 1 when there are two, else the mean over the classes
}

// LagBound is the StageStatus.Lag up to which the times of a job count as those of the devices that it emulates.
const LagBound = 0.02

// StageStatus says what one stage's device did in the last window, as fractions of its time. They add up to 1 but for
// idle time between batches.
type StageStatus struct {
	Group          int     `json:"group,omitempty"` // of pipelines, where there are several
	Stage          int     `json:"stage"`
	Node           string  `json:"node,omitempty"` // that it is on
	Device         string  `json:"device"`
	GPU            string  `json:"gpu,omitempty"` // that the stage is on: its UUID
	Layers         string  `json:"layers"`        // "0-3"
	Busy           float64 `json:"busy"`          // forward and backward
	WaitUpstream   float64 `json:"wait_upstream"`
	WaitDownstream float64 `json:"wait_downstream"`
	Average        float64 `json:"average"`
	Optimizer      float64 `json:"optimizer"`
	Commit         float64 `json:"commit"`
	Evaluate       float64 `json:"evaluate"` // of the center on held-out data
	// Synchronous: the pipelines of the stage are farther from its center than averaging.max_drift, so that each round waits for all of them and sets them to the center.
	Synchronous bool `json:"synchronous,omitempty"`
	// Lag is of an emulated device alone: what its passes, and the messages to it, were later than the job dictates, added up since the
	// worker began to train, as a fraction of that time. Where it is more than LagBound, the times are not those of the devices.
	Lag *float64 `json:"lag,omitempty"`
	// MemoryBytes is what the stage has taken of the device's memory, for all pipelines; 0 while it is not known.
	MemoryBytes int64 `json:"memory_bytes"`
	// PredictedBytes is what it is expected to take of it; 0 where it cannot be told.
	PredictedBytes int64 `json:"predicted_bytes"`
	// Memory says what for; null while the stage is being made. The boundaries are not in it: messages lie in the host's memory,
	// and nobody counts them.
	Memory *tuner.Memory `json:"memory"`
}

// LinkStatus says how long one message takes between a stage and the one after it: from the end of the op that made it to the
// moment at which the other side has it. Of the messages of the last window for which the other side waited before they were
// made, it is that of the fastest quarter. A time is null where there was none, and inside of a device. Between two nodes it is off by at most
// Network.OffsetErrorS: a clock that is seen wrong makes one way seem longer and the other shorter.
type LinkStatus struct {
	Group        int      `json:"group,omitempty"` // of pipelines, where there are several
	Link         int      `json:"link"`            // between stage Link and Link+1
	MessageBytes int64    `json:"message_bytes"`
	DownS        *float64 `json:"down_s"` // activations, in seconds
	UpS          *float64 `json:"up_s"`   // gradients
	// DownBy and UpBy are what copies between two GPUs of one worker; they are left out elsewhere.
	DownBy *TransportStatus `json:"down_by,omitempty"`
	UpBy   *TransportStatus `json:"up_by,omitempty"`
	// Network is of a link between two nodes, as the node of stage Link sees it; it is left out elsewhere.
	Network *NetworkStatus `json:"network,omitempty"`
}

// NetworkStatus is the state of a link between two nodes: of the pipeline whose other end has been silent for the longest time.
type NetworkStatus struct {
	Peer string `json:"peer"` // the other node and its address
	// RoundTripS is the shortest of the last half minute, and OffsetS how far the other host's clock is ahead, within OffsetErrorS; seconds.
	RoundTripS   float64 `json:"round_trip_s"`
	OffsetS      float64 `json:"offset_s"`
	OffsetErrorS float64 `json:"offset_error_s"`
	// SilentS is for how many seconds nothing has come, and BoundS after how many the other end counts as lost.
	SilentS float64 `json:"silent_s"`
	BoundS  float64 `json:"bound_s"`
	// SentBytes and ReceivedBytes are of all pipelines, since the generation began.
	SentBytes     int64 `json:"sent_bytes"`
	ReceivedBytes int64 `json:"received_bytes"`
	// Over is what carries the messages: "tls", "tcp" or "ucx".
	Over string `json:"over"`
	// Choice is left out where the configuration of this node allows no other way.
	Choice *LinkChoice `json:"choice,omitempty"`
}

// LinkChoice says how it was chosen what carries the messages of a link, when it opened.
type LinkChoice struct {
	Reason string `json:"reason"`
	// MessageBytes is how long the messages were that were measured. From one until its answer it took ConnectionS seconds over the connection and PathS over the
	// other way, at best. They are left out where nothing was measured.
	MessageBytes int64   `json:"message_bytes,omitempty"`
	ConnectionS  float64 `json:"connection_s,omitempty"`
	PathS        float64 `json:"path_s,omitempty"`
}

// TransportStatus is a way to copy from the memory of a GPU to that of another.
type TransportStatus struct {
	Name string `json:"name"` // "peer copies"
	// BytesPerS is how fast it copied a message when the link opened.
	BytesPerS float64 `json:"bytes_per_s"`
}

// NodeStatus is a line of `avgpipectl nodes`.
type NodeStatus struct {
	ID      string   `json:"id"`
	Address string   `json:"address"`
	Leader  bool     `json:"leader"`
	Version string   `json:"version"`
	Cores   int      `json:"cores"` // 0: not known: the node that leads asks the others, and has not yet
	Devices []string `json:"devices"`
	// GPUs are the graphics processors that jobs may use, and how they are.
	GPUs []gpu.GPUStatus `json:"gpus"`
	// HiddenGPUs says which others there are, and why jobs may not use them: CUDA_VISIBLE_DEVICES of the daemon, or a GPU that is too old.
	HiddenGPUs string   `json:"hidden_gpus,omitempty"`
	Jobs       []string `json:"jobs"` // running here
	UptimeS    float64  `json:"uptime_s"`
	// Role is what the node is in the cluster, and State how it is, as the node that leads sees it.
	Role  NodeRole  `json:"role"`
	State NodeState `json:"state"`
	// AgeS is how long ago the node last answered the one that says this, in seconds; of another node 0: it never did, as far as that one knows.
	AgeS float64 `json:"age_s"`
	// RoundTripS is that of the last probe of gossip which it answered, in seconds; 0: there was none.
	RoundTripS float64 `json:"round_trip_s,omitempty"`
	// Reason is why it is drained; else why it is down or suspect, as far as the node that leads knows.
	Reason string `json:"reason,omitempty"`
	// Alone are the jobs of whose last committed round only it has shards, where it is being drained. They are copied to other nodes.
	Alone []string `json:"alone,omitempty"`
	// GFLOPs is what a core does in a second, as measured; 0: that is not known.
	GFLOPs float64 `json:"gflops,omitempty"`
	// Links are those to other nodes that were measured.
	Links []NodeLink `json:"links,omitempty"`
}

// NodeLink is the link to another node, as it was measured. While it carries a job nobody measures it: then it is what the job's messages show.
type NodeLink struct {
	Node       string  `json:"node"`
	BitsPerS   float64 `json:"bits_per_s"`
	AtLeast    bool    `json:"at_least,omitempty"` // BitsPerS is what messages of a job reached
	RoundTripS float64 `json:"round_trip_s"`
	AgeS       float64 `json:"age_s"` // of BitsPerS
}

// NodeRole is what a node is in its cluster.
type NodeRole string

// The roles. A node that is alone leads.
const (
	RoleLeader   NodeRole = "leader"
	RoleVoter    NodeRole = "voter"
	RoleNonVoter NodeRole = "non-voter"
)

// NodeState is how a node is.
type NodeState string

// The states of nodes. Unknown is one of which nothing was heard.
const (
	NodeAlive    NodeState = "alive"
	NodeSuspect  NodeState = "suspect"  // it has not answered for a moment, or only some reach it
	NodeDown     NodeState = "down"     // the others do not reach it, and it does not answer
	NodeDraining NodeState = "draining" // nothing new is placed there
	NodeDrained  NodeState = "drained"  // and nothing runs there any more, nor is anything only there that another node could have
	NodeUnknown  NodeState = "unknown"
)

// TokenRequest asks for a token, with which somebody is let in once.
type TokenRequest struct {
	Role   string  `json:"role"`           // node, admin, submit or view
	User   string  `json:"user,omitempty"` // whom the certificate is for; not of a node
	UID    uint32  `json:"uid,omitempty"`  // on the hosts of the cluster
	ValidS float64 `json:"valid_s"`        // how long it can be used, in seconds
}

// TokenResponse answers it.
type TokenResponse struct {
	Token string `json:"token"`
}

// DrainRequest says why a node is drained.
type DrainRequest struct {
	Reason string `json:"reason,omitempty"`
}

// RestoreResponse says what was restored from a backup.
type RestoreResponse struct {
	Taken       time.Time `json:"taken"`       // when the backup was made, by the clock of the node that made it
	Node        string    `json:"node"`        // which that was
	Version     string    `json:"version"`     // of its program
	Jobs        int       `json:"jobs"`        // that are in the backup
	Back        []string  `json:"back"`        // the ids of those that were brought back; the others were there
	Interrupted []string  `json:"interrupted"` // the ids of those of them that had not ended then; they are failed, and can be resumed
}

// RenewRequest asks for another certificate of whoever asks with one.
type RenewRequest struct {
	CSR string `json:"csr"` // PEM
}

// RenewResponse answers it.
type RenewResponse struct {
	Certificate string   `json:"certificate"` // PEM
	Authority   string   `json:"authority"`   // PEM, the newest last
	Addresses   []string `json:"addresses"`   // of the nodes
}

// SubmitRequest is the body of POST /v1/jobs.
type SubmitRequest struct {
	File   string   `json:"file"`             // the job file's path, for messages
	Source string   `json:"source"`           // its text
	From   string   `json:"from,omitempty"`   // a job in a bucket, s3://BUCKET/PREFIX/JOB, to go on from in place of a file
	Set    []string `json:"set,omitempty"`    // overrides: "train.steps=50"
	Base   string   `json:"base"`             // absolute directory that relative paths start from
	Retune bool     `json:"retune,omitempty"` // measure what is open even when an earlier choice is cached
	// ClientExports says that the client writes the model to output.dir, so that the daemon does not.
	ClientExports bool `json:"client_exports,omitempty"`
	// Force lets the daemon replace an earlier export in output.dir.
	Force bool `json:"force,omitempty"`
	// Key is what the submitter calls this submission, 1 to 128 printable characters of ASCII. A request with a key that the same user has given before
	// submits nothing and is answered with the job of that time, as long as that is listed. So a request whose answer was lost can be sent again.
	Key string `json:"key,omitempty"`
	// Env holds the submitter's variables that the file's paths name; the daemon's own environment is never looked at.
	Env map[string]string `json:"env,omitempty"`
}

// SubmitResponse answers it.
type SubmitResponse struct {
	ID       string   `json:"id"`
	Warnings []string `json:"warnings"`
	Export   *Export  `json:"export"` // null where the daemon has nothing to do with output.dir
}

// Export says how a job's model gets to the job file's output.dir.
type Export struct {
	Dir    string      `json:"dir"`
	State  ExportState `json:"state"`
	Reason string      `json:"reason,omitempty"` // why the user does it, or why the daemon could not
}

// StoreStatus says how far a job's committed rounds are in its bucket.
type StoreStatus struct {
	URL     string `json:"url"`
	Round   uint64 `json:"round"`             // the newest round that this daemon has saved there, whole; 0: none yet
	Problem string `json:"problem,omitempty"` // why a newer one is not there; it is tried again
}

// ExportState says who writes a model to output.dir, and how far that is.
type ExportState string

// The states of an export.
const (
	ExportManual ExportState = "manual" // the user does, with avgpipectl export
	ExportDue    ExportState = "due"    // the daemon does when the job is done
	ExportDone   ExportState = "done"   // the daemon did
	ExportFailed ExportState = "failed" // the daemon could not
)

// ResumeRequest is the body of POST /v1/jobs/JOB/resume.
type ResumeRequest struct {
	FromRound uint64 `json:"from_round,omitempty"` // a committed round that is still kept; 0: the last one
	FromStart bool   `json:"from_start,omitempty"` // give every round up
	Stages    int    `json:"stages,omitempty"`     // go on with so many; 0: as before. The job must have ended
	Pipelines int    `json:"pipelines,omitempty"`  // likewise
	Groups    int    `json:"groups,omitempty"`     // likewise, of pipelines; 0: as before, or the most that divide other pipelines
	DryRun    bool   `json:"dry_run,omitempty"`    // check the counts and what they take, and that the round can be read, and change nothing
}

// Error is the body of every answer that is not 2xx.
type Error struct {
	Status   int                 `json:"-"` // of HTTP
	Code     Code                `json:"code"`
	Message  string              `json:"error"`              // for people; it may change
	Problems strictyaml.Problems `json:"problems,omitempty"` // of a refused job file

	RetryAfter time.Duration `json:"-"` // when to ask again what is unavailable or was asked too often; 0: nothing is said of it
}
