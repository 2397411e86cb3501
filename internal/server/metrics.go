package server

import (
	"context"
	"net/http"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"go.uber.org/zap"

	"github.com/avgpipe/avgpipe/internal/api"
)

// collectTimeout bounds one scrape's look at the jobs.
const collectTimeout = 5 * time.Second

// jobGauge is one gauge of a job. ok is false while the value is not known.
type jobGauge struct {
	desc  *prometheus.Desc
	value func(*api.JobStatus) (v float64, ok bool)
}

// stageGauge is one share of a stage's time.
type stageGauge struct {
	kind  string
	value func(*api.StageStatus) float64
}

// collector makes metrics of the jobs' statuses when it is asked, so a job that has ended leaves none behind.
type collector struct {
	backend Backend
	log     *zap.Logger
	state   *prometheus.Desc
	share   *prometheus.Desc
	jobs    []jobGauge
	stages  []stageGauge
}

// metricsHandler serves the jobs' gauges and those of the process.
func metricsHandler(b Backend, log *zap.Logger) http.Handler {
	registry := prometheus.NewRegistry()
	registry.MustRegister(
		newCollector(b, log),
		newNodeCollector(b),
		collectors.NewGoCollector(),
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}),
	)
	return promhttp.HandlerFor(registry, promhttp.HandlerOpts{ErrorLog: zap.NewStdLog(log), Timeout: 2 * collectTimeout})
}

func newCollector(b Backend, log *zap.Logger) *collector {
	perJob := func(name, help string, value func(*api.JobStatus) (float64, bool)) jobGauge {
		return jobGauge{prometheus.NewDesc("avgpipe_job_"+name, help, []string{"job_id", "name"}, nil), value}
	}
	count := func(f func(*api.JobStatus) uint64) func(*api.JobStatus) (float64, bool) {
		return func(s *api.JobStatus) (float64, bool) { return float64(f(s)), true }
	}
	known := func(f func(*api.JobStatus) *float64) func(*api.JobStatus) (float64, bool) {
		return func(s *api.JobStatus) (float64, bool) {
			if v := f(s); v != nil {
				return *v, true
			}
			return 0, false
		}
	}
	return &collector{
		backend: b, log: log,
		state: prometheus.NewDesc("avgpipe_job_state", "1 for the state that the job is in.", []string{"job_id", "name", "state"}, nil),
		share: prometheus.NewDesc("avgpipe_stage_time_ratio", "Share of the last window that the stage's device spent on a kind of work.",
			[]string{"job_id", "name", "stage", "kind"}, nil),
		jobs: []jobGauge{
			perJob("generation", "How often the job was placed.", count(func(s *api.JobStatus) uint64 { return s.Generation })),
			perJob("step", "Optimizer steps of the slowest pipeline.", count(func(s *api.JobStatus) uint64 { return s.Step })),
			perJob("steps", "Optimizer steps that the job asks for.", count(func(s *api.JobStatus) uint64 { return s.Steps })),
			perJob("round", "Round of the center.", count(func(s *api.JobStatus) uint64 { return s.Round })),
			perJob("committed_round", "The last durable round.", count(func(s *api.JobStatus) uint64 { return s.CommittedRound })),
			perJob("samples", "Samples consumed by all pipelines.", count(func(s *api.JobStatus) uint64 { return s.SamplesSeen })),
			perJob("loss_nats", "Mean training loss per target of the last window.", known(func(s *api.JobStatus) *float64 { return s.Loss })),
			perJob("eval_loss_nats", "Loss per target of the center on held-out data.", known(func(s *api.JobStatus) *float64 { return s.EvalLoss })),
			perJob("eval_perplexity", "Perplexity of the center on held-out data.", known(func(s *api.JobStatus) *float64 { return s.Perplexity })),
			perJob("eval_accuracy_ratio", "Share of right predictions of the center on held-out data.", known(func(s *api.JobStatus) *float64 { return s.Accuracy })),
			perJob("eval_f1_ratio", "F1 of the center on held-out data.", known(func(s *api.JobStatus) *float64 { return s.F1 })),
			perJob("tokens_per_second", "Tokens per second of all pipelines over the last window.",
				func(s *api.JobStatus) (float64, bool) { return s.TokensPerS, true }),
			perJob("batch_seconds", "From one step of a pipeline to its next, over the last window.", known(func(s *api.JobStatus) *float64 { return s.BatchS })),
			perJob("predicted_batch_seconds", "What tuning leads to expect of it.", known(func(s *api.JobStatus) *float64 { return s.PredictedBatchS })),
			perJob("drift_ratio", "How far the batch time has left its prediction for good, 0.25 being 25% longer; 0 while it keeps to it.", drift),
			perJob("tuning_ratio", "How much of its tuning is done.", tuningDone),
			perJob("elapsed_seconds", "Training time.", func(s *api.JobStatus) (float64, bool) { return s.ElapsedS, true }),
		},
		stages: []stageGauge{
			{"busy", func(s *api.StageStatus) float64 { return s.Busy }},
			{"wait_upstream", func(s *api.StageStatus) float64 { return s.WaitUpstream }},
			{"wait_downstream", func(s *api.StageStatus) float64 { return s.WaitDownstream }},
			{"average", func(s *api.StageStatus) float64 { return s.Average }},
			{"optimizer", func(s *api.StageStatus) float64 { return s.Optimizer }},
			{"commit", func(s *api.StageStatus) float64 { return s.Commit }},
		},
	}
}

// drift is known of jobs that were tuned, while they train.
func drift(s *api.JobStatus) (float64, bool) {
	if s.Drift != nil {
		return s.Drift.Relative, true
	}
	return 0, s.PredictedBatchS != nil && s.State == api.Running
}

func tuningDone(s *api.JobStatus) (float64, bool) {
	if s.Tuning == nil || s.Tuning.Total == 0 {
		return 0, false
	}
	return min(float64(s.Tuning.Done)/float64(s.Tuning.Total), 1), true
}

// Describe implements prometheus.Collector.
func (c *collector) Describe(out chan<- *prometheus.Desc) {
	out <- c.state
	out <- c.share
	for _, g := range c.jobs {
		out <- g.desc
	}
}

// Collect implements prometheus.Collector.
func (c *collector) Collect(out chan<- prometheus.Metric) {
	ctx, cancel := context.WithTimeout(context.Background(), collectTimeout) // the interface passes none
	defer cancel()
	jobs, err := c.backend.Jobs(ctx)
	if err != nil {
		c.log.Warn("collect metrics of jobs", zap.Error(err))
		out <- prometheus.NewInvalidMetric(c.state, err)
		return
	}
	for i := range jobs {
		if !jobs[i].State.Ended() { // their number grows for ever
			c.collectJob(&jobs[i], out)
		}
	}
}

func (c *collector) collectJob(s *api.JobStatus, out chan<- prometheus.Metric) {
	gauge := func(d *prometheus.Desc, v float64, labels ...string) {
		out <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, append([]string{s.ID, s.Name}, labels...)...)
	}
	gauge(c.state, 1, string(s.State))
	for _, g := range c.jobs {
		if v, ok := g.value(s); ok {
			gauge(g.desc, v)
		}
	}
	if s.State != api.Running {
		return
	}
	for i := range s.StageStatus {
		stage := &s.StageStatus[i]
		for _, g := range c.stages {
			gauge(c.share, g.value(stage), strconv.Itoa(stage.Stage), g.kind)
		}
	}
}
