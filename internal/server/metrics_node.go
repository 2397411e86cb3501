package server

import (
	"context"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/avgpipe/avgpipe/internal/api"
)

// NodeMetrics are what a node says of itself for metrics.
type NodeMetrics struct {
	Cores, CoresFree      int
	StateFree, StateSize  int64 // bytes of the file system that holds the state directory; negative: not known
	Leader                bool
	RaftApplied           uint64 // index of the last log entry that is applied
	LastTick              time.Time
	Ended                 map[api.State]uint64 // jobs, since the daemon started
	Commits, WorkerDeaths uint64               // since then
}

// states are the states of a job, in their order.
var states = []api.State{api.Queued, api.Tuning, api.Starting, api.Running, api.Waiting, api.Done, api.Failed, api.Cancelled}

// nodeMetric is one number of a node.
type nodeMetric struct {
	desc  *prometheus.Desc
	kind  prometheus.ValueType
	value func(*NodeMetrics) (v float64, ok bool)
}

// nodeCollector makes metrics of the node and of its queue when it is asked.
type nodeCollector struct {
	backend Backend
	metrics []nodeMetric
	info    *prometheus.Desc
	jobs    *prometheus.Desc
	waiting *prometheus.Desc
	ended   *prometheus.Desc
}

func newNodeCollector(b Backend) *nodeCollector {
	desc := func(name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc("avgpipe_"+name, help, labels, nil)
	}
	const gauge, counter = prometheus.GaugeValue, prometheus.CounterValue
	whole := func(f func(*NodeMetrics) int) func(*NodeMetrics) (float64, bool) {
		return func(m *NodeMetrics) (float64, bool) { return float64(f(m)), true }
	}
	bytes := func(f func(*NodeMetrics) int64) func(*NodeMetrics) (float64, bool) {
		return func(m *NodeMetrics) (float64, bool) { return float64(f(m)), f(m) >= 0 }
	}
	count := func(f func(*NodeMetrics) uint64) func(*NodeMetrics) (float64, bool) {
		return func(m *NodeMetrics) (float64, bool) { return float64(f(m)), true }
	}
	return &nodeCollector{
		backend: b,
		info:    desc("build_info", "1, with the program's version and the node's name.", "version", "goversion", "node"),
		jobs:    desc("jobs", "Jobs that are listed, by state.", "state"),
		waiting: desc("queue_oldest_seconds", "How long the oldest job that waits for cores has been waiting; 0 without one."),
		ended:   desc("jobs_ended_total", "Jobs that ended since the daemon started, by how.", "state"),
		metrics: []nodeMetric{
			{desc("node_cores", "Processor cores that jobs compute on."), gauge, whole(func(m *NodeMetrics) int { return m.Cores })},
			{desc("node_cores_free", "Those that no job has."), gauge, whole(func(m *NodeMetrics) int { return m.CoresFree })},
			{desc("state_free_bytes", "Free space of the file system that holds the state directory."), gauge, bytes(func(m *NodeMetrics) int64 { return m.StateFree })},
			{desc("state_size_bytes", "Size of that file system."), gauge, bytes(func(m *NodeMetrics) int64 { return m.StateSize })},
			{desc("raft_leader", "1 while this node leads."), gauge, whole(func(m *NodeMetrics) int {
				if m.Leader {
					return 1
				}
				return 0
			})},
			{desc("raft_applied_index", "Index of the last log entry that is applied."), gauge, count(func(m *NodeMetrics) uint64 { return m.RaftApplied })},
			{
				desc("coordinator_last_tick_timestamp_seconds", "When the coordinator last looked at the jobs, Unix time."), gauge,
				func(m *NodeMetrics) (float64, bool) {
					return float64(m.LastTick.UnixMilli()) / 1000, !m.LastTick.IsZero()
				},
			},
			{desc("rounds_committed_total", "Rounds that were made durable since the daemon started."), counter, count(func(m *NodeMetrics) uint64 { return m.Commits })},
			{desc("worker_failures_total", "Workers and tunings that died since the daemon started."), counter, count(func(m *NodeMetrics) uint64 { return m.WorkerDeaths })},
		},
	}
}

// Describe implements prometheus.Collector.
func (c *nodeCollector) Describe(out chan<- *prometheus.Desc) {
	out <- c.info
	out <- c.jobs
	out <- c.waiting
	out <- c.ended
	for _, m := range c.metrics {
		out <- m.desc
	}
}

// Collect implements prometheus.Collector.
func (c *nodeCollector) Collect(out chan<- prometheus.Metric) {
	send := func(d *prometheus.Desc, kind prometheus.ValueType, v float64, labels ...string) {
		out <- prometheus.MustNewConstMetric(d, kind, v, labels...)
	}
	version := c.backend.Version()
	send(c.info, prometheus.GaugeValue, 1, version.Version, version.Go, version.Node)
	m := c.backend.NodeMetrics()
	for _, one := range c.metrics {
		if v, ok := one.value(&m); ok {
			send(one.desc, one.kind, v)
		}
	}
	for _, s := range states {
		if s.Ended() {
			send(c.ended, prometheus.CounterValue, float64(m.Ended[s]), string(s))
		}
	}
	ctx, cancel := context.WithTimeout(context.Background(), collectTimeout) // the interface passes none
	defer cancel()
	jobs, err := c.backend.Jobs(ctx)
	if err != nil {
		out <- prometheus.NewInvalidMetric(c.jobs, err)
		return
	}
	by, waiting := map[api.State]int{}, 0.0
	for i := range jobs {
		by[jobs[i].State]++
		if jobs[i].State == api.Queued {
			waiting = max(waiting, time.Since(jobs[i].Submitted).Seconds())
		}
	}
	for _, s := range states {
		send(c.jobs, prometheus.GaugeValue, float64(by[s]), string(s))
	}
	send(c.waiting, prometheus.GaugeValue, waiting)
}
