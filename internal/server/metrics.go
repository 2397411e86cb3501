package server

import (
	"context"
	"net/http"
	"slices"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"go.uber.org/zap"

	"github.com/avgpipe/avgpipe/internal/api"
	"github.com/avgpipe/avgpipe/internal/gpu"
)

// collectTimeout bounds one scrape's look at the jobs.
const collectTimeout = 5 * time.Second

// NodeMetrics are what a node says of itself for metrics.
type NodeMetrics struct {
	Cores, CoresFree      int
	StateFree, StateSize  int64 // bytes of the file system that holds the state directory; negative: not known
	Leader                bool
	RaftApplied           uint64 // index of the last log entry that is applied
	LastTick              time.Time
	Ended                 map[api.State]uint64 // jobs, since the daemon started
	Commits, WorkerDeaths uint64               // since then
	GPUs                  []gpu.GPUStatus      // that jobs may use
}

// metricsHandler serves the metrics of the jobs, of the node and of the process.
func metricsHandler(b Backend, log *zap.Logger) http.Handler {
	registry := prometheus.NewRegistry()
	registry.MustRegister(
		collector{b, log}, collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}),
	)
	return promhttp.HandlerFor(registry, promhttp.HandlerOpts{ErrorLog: zap.NewStdLog(log), Timeout: 2 * collectTimeout})
}

// collector makes metrics of what the backend says when it is asked, so a job that has ended leaves none behind.
type collector struct {
	backend Backend
	log     *zap.Logger
}

// Describe implements prometheus.Collector. It names nothing: which metrics there are depends on the jobs.
func (collector) Describe(chan<- *prometheus.Desc) {}

// send sends a metric: its name after avgpipe_, its help, its value, nil where it is not known, and the names and values of its labels in turn.
type send func(name, help string, value *float64, labels ...string)

func sender(out chan<- prometheus.Metric, kind prometheus.ValueType) send {
	return func(name, help string, value *float64, labels ...string) {
		if value == nil {
			return
		}
		with := prometheus.Labels{}
		for pair := range slices.Chunk(labels, 2) {
			with[pair[0]] = pair[1]
		}
		out <- prometheus.MustNewConstMetric(prometheus.NewDesc("avgpipe_"+name, help, nil, with), kind, *value)
	}
}

// known is a value that is known.
func known[N int | int64 | uint64 | float64](n N) *float64 {
	v := float64(n)
	return &v
}

// when is a value that is known if ok.
func when[N int | int64 | uint64 | float64](ok bool, n N) *float64 {
	if !ok {
		return nil
	}
	return known(n)
}

func (c collector) Collect(out chan<- prometheus.Metric) {
	gauge, counter := sender(out, prometheus.GaugeValue), sender(out, prometheus.CounterValue)
	c.collectNode(gauge, counter)
	ctx, cancel := context.WithTimeout(context.Background(), collectTimeout) // the interface passes none
	defer cancel()
	jobs, err := c.backend.Jobs(ctx)
	if err != nil {
		c.log.Warn("collect metrics of jobs", zap.Error(err))
		out <- prometheus.NewInvalidMetric(prometheus.NewInvalidDesc(err), err)
		return
	}
	by, waiting := map[api.State]int{}, 0.0
	for i := range jobs {
		by[jobs[i].State]++
		if jobs[i].State == api.Queued {
			waiting = max(waiting, time.Since(jobs[i].Submitted).Seconds())
		}
		if !jobs[i].State.Ended() { // their number grows for ever
			collectJob(&jobs[i], gauge)
		}
	}
	for _, s := range api.States {
		gauge("jobs", "Jobs that are listed, by state.", known(by[s]), "state", string(s))
	}
	gauge("queue_oldest_seconds", "How long the oldest job that waits for cores has been waiting; 0 without one.", &waiting)
}

func (c collector) collectNode(gauge, counter send) {
	v, n := c.backend.Version(), c.backend.NodeMetrics()
	gauge("build_info", "1, with the program's version and the node's name.", known(1), "version", v.Version, "goversion", v.Go, "node", v.Node)
	leader := 0
	if n.Leader {
		leader = 1
	}
	gauge("node_cores", "Processor cores that jobs compute on.", known(n.Cores))
	gauge("node_cores_free", "Those that no job has.", known(n.CoresFree))
	gauge("state_free_bytes", "Free space of the file system that holds the state directory.", when(n.StateFree >= 0, n.StateFree))
	gauge("state_size_bytes", "Size of that file system.", when(n.StateSize >= 0, n.StateSize))
	gauge("raft_leader", "1 while this node leads.", known(leader))
	gauge("raft_applied_index", "Index of the last log entry that is applied.", known(n.RaftApplied))
	gauge("coordinator_last_tick_timestamp_seconds", "When the coordinator last looked at the jobs, Unix time.", when(!n.LastTick.IsZero(), float64(n.LastTick.UnixMilli())/1000))
	counter("rounds_committed_total", "Rounds that were made durable since the daemon started.", known(n.Commits))
	counter("worker_failures_total", "Workers and tunings that died since the daemon started.", known(n.WorkerDeaths))
	for i := range n.GPUs {
		collectGPU(&n.GPUs[i], gauge, counter)
	}
	for _, s := range api.States {
		if s.Ended() {
			counter("jobs_ended_total", "Jobs that ended since the daemon started, by how.", known(n.Ended[s]), "state", string(s))
		}
	}
}

func collectJob(s *api.JobStatus, gauge send) {
	of := []string{"job_id", s.ID, "name", s.Name}
	gauge("job_state", "1 for the state that the job is in.", known(1), append(of, "state", string(s.State))...)
	drift := when(s.PredictedBatchS != nil && s.State == api.Running, 0) // of jobs that were tuned, while they train
	if s.Drift != nil {
		drift = &s.Drift.Relative
	}
	var tuned *float64
	if s.Tuning != nil && s.Tuning.Total > 0 {
		tuned = known(min(float64(s.Tuning.Done)/float64(s.Tuning.Total), 1))
	}
	gauge("job_generation", "How often the job was placed.", known(s.Generation), of...)
	gauge("job_step", "Optimizer steps of the slowest pipeline.", known(s.Step), of...)
	gauge("job_steps", "Optimizer steps that the job asks for.", known(s.Steps), of...)
	gauge("job_round", "Round of the center.", known(s.Round), of...)
	gauge("job_committed_round", "The last durable round.", known(s.CommittedRound), of...)
	gauge("job_samples", "Samples consumed by all pipelines.", known(s.SamplesSeen), of...)
	gauge("job_loss_nats", "Mean training loss per target of the last window.", s.Loss, of...)
	gauge("job_eval_loss_nats", "Loss per target of the center on held-out data.", s.EvalLoss, of...)
	gauge("job_eval_perplexity", "Perplexity of the center on held-out data.", s.Perplexity, of...)
	gauge("job_eval_accuracy_ratio", "Share of right predictions of the center on held-out data.", s.Accuracy, of...)
	gauge("job_eval_f1_ratio", "F1 of the center on held-out data.", s.F1, of...)
	gauge("job_tokens_per_second", "Tokens per second of all pipelines over the last window.", &s.TokensPerS, of...)
	gauge("job_batch_seconds", "From one step of a pipeline to its next, over the last window.", s.BatchS, of...)
	gauge("job_predicted_batch_seconds", "What tuning leads to expect of it.", s.PredictedBatchS, of...)
	gauge("job_drift_ratio", "How far the batch time has left its prediction for good, 0.25 being 25% longer; 0 while it keeps to it.", drift, of...)
	if b := s.CriticalBatch; b != nil {
		gauge("job_critical_batch_samples", "The batch with which training needs twice as many samples as with small ones, as measured by the noise in gradients.", when(b.Samples > 0, b.Samples), of...)
	}
	if st := s.Staleness; st != nil {
		for p, d := range st.Distances {
			pipeline := append(of, "pipeline", strconv.Itoa(p))
			gauge("job_distance_ratio", "How far a pipeline's weights were from the center in the last durable round, over the center's length.", &d, pipeline...)
			gauge("job_predicted_ratio", "How far the weights that its next batch was computed with were from its own, over the center's length.", &st.Predicted[p], pipeline...)
		}
	}
	gauge("job_tuning_ratio", "How much of its tuning is done.", tuned, of...)
	gauge("job_elapsed_seconds", "Training time.", &s.ElapsedS, of...)
	if s.State != api.Running {
		return
	}
	for _, stage := range s.StageStatus {
		if stage.Lag != nil {
			gauge("stage_lag_ratio", "Of emulated devices: by which share of the training time the stage's was later than the job dictates.", stage.Lag,
				append(of, "group", strconv.Itoa(stage.Group), "stage", strconv.Itoa(stage.Stage))...)
		}
		for kind, share := range map[string]float64{
			"busy": stage.Busy, "wait_upstream": stage.WaitUpstream, "wait_downstream": stage.WaitDownstream,
			"average": stage.Average, "optimizer": stage.Optimizer, "commit": stage.Commit,
		} {
			gauge("stage_time_ratio", "Share of the last window that the stage's device spent on a kind of work.", &share,
				append(of, "group", strconv.Itoa(stage.Group), "stage", strconv.Itoa(stage.Stage), "kind", kind)...)
		}
	}
}
