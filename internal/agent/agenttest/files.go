package agenttest

import (
	"context"
	"fmt"

	"github.com/avgpipe/avgpipe/internal/agent"
	"github.com/avgpipe/avgpipe/internal/cluster"
	"github.com/avgpipe/avgpipe/internal/shard"
	"github.com/avgpipe/avgpipe/internal/worker/control"
)

// own refuses the record of another job. The caller holds the lock.
func (m *Memory) own(j *cluster.Job) error {
	if old := m.records[j.ID]; old != nil && !old.Submitted.Equal(j.Submitted) {
		return fmt.Errorf("job %s: the directory is of another job, %q", j.ID, old.Name)
	}
	return nil
}

// Record implements agent.Agent.
func (m *Memory) Record(_ context.Context, j *cluster.Job, _ bool) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if err := m.own(j); err != nil {
		return err
	}
	m.records[j.ID] = j
	return nil
}

// Retire implements agent.Agent.
func (m *Memory) Retire(_ context.Context, j *cluster.Job, _ string) (bool, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.records[j.ID] == nil {
		return false, nil
	}
	m.retired[j.ID] = true
	return true, m.own(j)
}

// Delete implements agent.Agent.
func (m *Memory) Delete(_ context.Context, job string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if !m.retired[job] {
		return fmt.Errorf("job %s is not retired", job)
	}
	delete(m.records, job)
	delete(m.stores, job)
	delete(m.statuses, job)
	return nil
}

// sized is a store that finds the length of a shard by reading it.
type sized struct{ *shard.MemStore }

func (s sized) Size(ctx context.Context, d shard.Digest) (int64, error) { return s.Verify(ctx, d) }

// Shards implements agent.Agent.
func (m *Memory) Shards(job string) agent.Shards { return sized{m.Store(job)} }

// KeepStatus implements agent.Agent.
func (m *Memory) KeepStatus(_ context.Context, job string, s *control.Status) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.statuses[job] = s
	return nil
}

// KeptStatus implements agent.Agent.
func (m *Memory) KeptStatus(_ context.Context, job string) *control.Status {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.statuses[job]
}

// Usage implements agent.Agent.
func (m *Memory) Usage(_ context.Context, job string) (int64, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.records[job] == nil {
		return 0, nil
	}
	return int64(len(m.records[job].Source)) + 1, nil
}

// Disk implements agent.Agent.
func (m *Memory) Disk(context.Context) (int64, error) { return 1 << 40, nil }
