package remote

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/avgpipe/avgpipe/internal/agent"
	"github.com/avgpipe/avgpipe/internal/cluster"
	"github.com/avgpipe/avgpipe/internal/history"
	"github.com/avgpipe/avgpipe/internal/obstacle"
	"github.com/avgpipe/avgpipe/internal/shard"
	"github.com/avgpipe/avgpipe/internal/spec"
	"github.com/avgpipe/avgpipe/internal/worker/control"
)

// Processes implements agent.Agent.
func (c *Client) Processes(ctx context.Context) ([]agent.Running, error) {
	return get[[]agent.Running](ctx, c, "processes", &question{})
}

// Start implements agent.Agent.
func (c *Client) Start(ctx context.Context, a control.Assignment) (agent.Process, error) {
	return get[agent.Process](ctx, c, "start", &question{Assignment: &a})
}

// Tune implements agent.Agent.
func (c *Client) Tune(ctx context.Context, r control.TuneRequest) (agent.Process, error) {
	return get[agent.Process](ctx, c, "tune", &question{Tuning: &r})
}

// Events implements agent.Agent.
func (c *Client) Events(ctx context.Context, p agent.Process, each func(agent.Event)) error {
	t, err := c.ask(ctx, "events", &question{Process: &p})
	if err != nil {
		return err
	}
	defer t.close()
	if _, err := t.last(func(e agent.Event) {
		e.Process = p
		each(e)
	}); err != nil {
		return err
	}
	// The node keeps the exit until it is told that it was taken. One that is not told keeps a few.
	_ = c.call(ctx, "forget", &question{Process: &p}, nil)
	return nil
}

// Status implements agent.Agent.
func (c *Client) Status(ctx context.Context, p agent.Process) (control.Status, error) {
	return get[control.Status](ctx, c, "status", &question{Process: &p})
}

// Commit implements agent.Agent.
func (c *Client) Commit(ctx context.Context, p agent.Process, r control.CommitRequest) (control.CommitResponse, error) {
	return get[control.CommitResponse](ctx, c, "commit", &question{Process: &p, Commit: &r})
}

// Stop implements agent.Agent.
func (c *Client) Stop(ctx context.Context, p agent.Process) error {
	return c.call(ctx, "stop", &question{Process: &p}, nil)
}

// Kill implements agent.Agent.
func (c *Client) Kill(ctx context.Context, p agent.Process) error {
	return c.call(ctx, "kill", &question{Process: &p}, nil)
}

// Passed implements agent.Agent.
func (c *Client) Passed(ctx context.Context, o obstacle.Obstacle) error {
	return c.call(ctx, "passed", &question{Obstacle: &o}, nil)
}

// Info implements agent.Agent.
func (c *Client) Info(ctx context.Context) (agent.Info, error) {
	return get[agent.Info](ctx, c, "info", &question{})
}

// Listen implements agent.Agent.
func (c *Client) Listen(ctx context.Context, job string, generation uint64) (string, error) {
	return get[string](ctx, c, "listen", &question{Job: job, Generation: generation})
}

// Probe implements agent.Agent.
func (c *Client) Probe(ctx context.Context, node string) (agent.Link, error) {
	return get[agent.Link](ctx, c, "probe", &question{Node: node})
}

// Look implements agent.Agent.
func (c *Client) Look(ctx context.Context, s *spec.Spec) (agent.Sight, error) {
	return get[agent.Sight](ctx, c, "look", &question{Spec: s})
}

// Record implements agent.Agent.
func (c *Client) Record(ctx context.Context, j *cluster.Job, started bool) error {
	return c.call(ctx, "record", &question{Record: j, Started: started}, nil)
}

// Retire implements agent.Agent.
func (c *Client) Retire(ctx context.Context, j *cluster.Job, reason string) (bool, error) {
	return get[bool](ctx, c, "retire", &question{Record: j, Reason: reason})
}

// Delete implements agent.Agent.
func (c *Client) Delete(ctx context.Context, job string) error {
	return c.call(ctx, "delete", &question{Job: job}, nil)
}

// KeepStatus implements agent.Agent.
func (c *Client) KeepStatus(ctx context.Context, job string, s *control.Status) error {
	return c.call(ctx, "keep_status", &question{Job: job, Status: s}, nil)
}

// KeptStatus implements agent.Agent. That of a node that does not answer is none.
func (c *Client) KeptStatus(ctx context.Context, job string) *control.Status {
	s, err := get[*control.Status](ctx, c, "kept_status", &question{Job: job})
	if err != nil {
		return nil
	}
	return s
}

// Usage implements agent.Agent.
func (c *Client) Usage(ctx context.Context, job string) int64 {
	bytes, err := get[int64](ctx, c, "usage", &question{Job: job})
	if err != nil {
		return 0
	}
	return bytes
}

// Disk implements agent.Agent.
func (c *Client) Disk(ctx context.Context) (free, size int64, err error) {
	d, err := get[disk](ctx, c, "disk", &question{})
	return d.Free, d.Size, err
}

// Keep implements agent.Agent.
func (c *Client) Keep(ctx context.Context, job string, object []byte) (shard.Digest, error) {
	if len(object) > agent.MaxObject {
		return "", fmt.Errorf("keep a file of job %s: it has %d bytes, %d at most", job, len(object), agent.MaxObject)
	}
	return get[shard.Digest](ctx, c, "keep", &question{Job: job, Object: object})
}

// Object implements agent.Agent.
func (c *Client) Object(ctx context.Context, job string, d shard.Digest) ([]byte, error) {
	return get[[]byte](ctx, c, "object", &question{Job: job, Digest: d})
}

// Companion implements agent.Agent.
func (c *Client) Companion(ctx context.Context, job, name string) ([]byte, error) {
	return get[[]byte](ctx, c, "companion", &question{Job: job, Name: name})
}

// History implements agent.Agent.
func (c *Client) History(ctx context.Context, job string) ([]history.Record, int, error) {
	p, err := get[past](ctx, c, "history", &question{Job: job})
	if err != nil {
		return nil, 0, err
	}
	records, damaged, err := history.Decode(p.Records)
	return records, p.Damaged + damaged, err
}

// Shards implements agent.Agent.
func (c *Client) Shards(job string) agent.Shards { return shards{c, job} }

// shards are those of a job on the node.
type shards struct {
	client *Client
	job    string
}

func (s shards) Verify(ctx context.Context, d shard.Digest) (int64, error) {
	return get[int64](ctx, s.client, "verify", &question{Job: s.job, Digest: d})
}

func (s shards) Size(ctx context.Context, d shard.Digest) (int64, error) {
	return get[int64](ctx, s.client, "size", &question{Job: s.job, Digest: d})
}

func (s shards) Collect(ctx context.Context, c shard.Collection) ([]shard.Digest, error) {
	return get[[]shard.Digest](ctx, s.client, "collect", &question{Job: s.job, Collection: &c})
}

func (s shards) Fetch(ctx context.Context, d shard.Digest, bytes int64, from []string) error {
	return s.client.call(ctx, "fetch", &question{Job: s.job, Digest: d, Bytes: bytes, From: from}, nil)
}

func (s shards) Open(ctx context.Context, d shard.Digest) (io.ReadCloser, int64, error) {
	t, err := s.client.ask(ctx, "open", &question{Job: s.job, Digest: d})
	if err != nil {
		return nil, 0, err
	}
	if t.bytes < 0 {
		t.close()
		return nil, 0, fmt.Errorf("node %s does not say how long shard %s is", s.client.config.Node, d)
	}
	return stream{t}, t.bytes, nil
}

// stream is an answer of bytes.
type stream struct{ talk *talk }

func (s stream) Read(p []byte) (int, error) {
	n, err := s.talk.Read(p)
	if err != nil && !errors.Is(err, io.EOF) {
		err = s.talk.unreachable(err)
	}
	return n, err
}

func (s stream) Close() error {
	s.talk.close()
	return nil
}
