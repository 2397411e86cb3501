package agent_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"

	"go.uber.org/zap"

	"github.com/avgpipe/avgpipe/internal/agent"
	"github.com/avgpipe/avgpipe/internal/agent/agenttest"
	"github.com/avgpipe/avgpipe/internal/checkpoint"
	"github.com/avgpipe/avgpipe/internal/cluster"
	"github.com/avgpipe/avgpipe/internal/obstacle"
	"github.com/avgpipe/avgpipe/internal/shard"
)

// source is a node of which a shard can be read, and nothing else.
type source struct {
	agent.Agent

	open  func(ctx context.Context) (io.ReadCloser, int64, error)
	asked atomic.Int32
	files map[string][]byte // that go with the model
}

func (s *source) Companion(_ context.Context, _, name string) ([]byte, error) {
	if text, ok := s.files[name]; ok {
		return text, nil
	}
	return nil, fs.ErrNotExist
}

func (s *source) Shards(string) agent.Shards { return sourceShards{source: s} }

type sourceShards struct {
	agent.Shards

	source *source
}

func (s sourceShards) Open(ctx context.Context, _ shard.Digest) (io.ReadCloser, int64, error) {
	s.source.asked.Add(1)
	return s.source.open(ctx)
}

// sends is a source that sends text, and says how long it is.
func sends(text []byte, says int) *source {
	return &source{open: func(context.Context) (io.ReadCloser, int64, error) {
		return io.NopCloser(bytes.NewReader(text)), int64(says), nil
	}}
}

// hangs is a source that sends the beginning of a text, and then nothing.
func hangs(text []byte) *source {
	return &source{open: func(context.Context) (io.ReadCloser, int64, error) {
		r, w := io.Pipe()
		go func() { _, _ = w.Write(text[:1]) }() // until it is closed
		return r, int64(len(text)), nil
	}}
}

// fetcher is an agent with the directory of job 1, whose peers are given.
func fetcher(t *testing.T, peers map[string]*source) *agent.Local {
	t.Helper()
	a, err := agent.Open(agent.Config{
		Node: "here", StateDir: t.TempDir(), Log: zap.NewNop(), Processes: agenttest.NewProcesses(t), Limits: func() agent.Limits { return agent.Limits{} },
		Peers: func(node string) (agent.Agent, error) {
			if p := peers[node]; p != nil {
				return p, nil
			}
			return nil, fmt.Errorf("node %s: %w", node, agent.ErrUnreachable)
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(a.Close)
	if err := a.Record(t.Context(), &cluster.Job{ID: "1"}, false); err != nil {
		t.Fatal(err)
	}
	return a
}

// aShard is the text of a shard.
func aShard(t *testing.T) (shard.Digest, []byte) {
	t.Helper()
	return shardWith(t, nil)
}

// shardWith is the text of a shard with metadata.
func shardWith(t *testing.T, meta []byte) (shard.Digest, []byte) {
	t.Helper()
	var text bytes.Buffer
	h := &shard.Header{Job: "1", Stages: 1, Vectors: []shard.Vector{{Name: shard.CenterVector, Elements: 1000}}, Meta: meta}
	if err := shard.Encode(t.Context(), &text, h, [][]float32{make([]float32, 1000)}); err != nil {
		t.Fatal(err)
	}
	return shard.Digest(checkpoint.ObjectDigest(text.Bytes())), text.Bytes()
}

func TestAShardIsFetchedFromTheFirstNodeThatHasIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d, text := aShard(t)
		other := bytes.Clone(text)
		other[len(other)-9]++
		peers := map[string]*source{
			"wrong": sends(other, len(text)), "short": sends(text[:99], len(text)), "long": sends(append(bytes.Clone(text), 0), len(text)), "says": sends(text, 7),
			"frozen": hangs(text), "good": sends(text, len(text)), "spare": sends(text, len(text)),
			"mute": {open: func(ctx context.Context) (io.ReadCloser, int64, error) {
				<-ctx.Done()
				return nil, 0, context.Cause(ctx)
			}},
			"without": {open: func(context.Context) (io.ReadCloser, int64, error) { return nil, 0, fs.ErrNotExist }},
		}
		shards := fetcher(t, peers).Shards("1")
		bad := []string{"gone", "without", "mute", "frozen", "wrong", "short", "long", "says"}
		err := shards.Fetch(t.Context(), d, int64(len(text)), bad)
		for _, node := range bad {
			if err == nil || !strings.Contains(err.Error(), "node "+node+": ") {
				t.Errorf("%v; it does not name node %s", err, node)
			}
		}
		if o := obstacle.Of(err); o != nil {
			t.Errorf("what other nodes lack is an obstacle here: %v", o)
		}
		if _, err := shards.Size(t.Context(), d); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("something was kept: %v", err)
		}
		for range 2 {
			if err := shards.Fetch(t.Context(), d, int64(len(text)), append(bad, "good", "spare")); err != nil {
				t.Fatal(err)
			}
		}
		if bytes, err := shards.Verify(t.Context(), d); err != nil || bytes != int64(len(text)) {
			t.Errorf("%d bytes, %v", bytes, err)
		}
		if good, spare := peers["good"].asked.Load(), peers["spare"].asked.Load(); good != 1 || spare != 0 {
			t.Errorf("the good node was asked %d times, the one after it %d times", good, spare)
		}
	})
}

// TestWhatGoesWithAModelIsCopiedWithItsShards, from whichever node has it as the shard says; without it the shard is a copy all the same.
func TestWhatGoesWithAModelIsCopiedWithItsShards(t *testing.T) {
	card := []byte("the card")
	digest := checkpoint.ObjectDigest(card)
	d, text := shardWith(t, fmt.Appendf(nil, `{"companions":{"avgpipe.json":%q}}`, digest))
	bare, changed, whole := sends(text, len(text)), sends(text, len(text)), sends(text, len(text))
	changed.files = map[string][]byte{digest + ".object": []byte("another")}
	whole.files = map[string][]byte{digest + ".object": card}
	a := fetcher(t, map[string]*source{"bare": bare, "changed": changed, "whole": whole})
	for _, c := range []struct {
		from []string
		want []byte
	}{{[]string{"bare", "changed"}, nil}, {[]string{"bare", "changed", "whole"}, card}} {
		if err := a.Shards("1").Fetch(t.Context(), d, int64(len(text)), c.from); err != nil {
			t.Fatal(err)
		}
		if got, err := a.Companion(t.Context(), "1", digest+".object"); !bytes.Equal(got, c.want) || (err == nil) != (c.want != nil) {
			t.Errorf("from %v: %q, %v", c.from, got, err)
		}
	}
}

func TestFetchesOfOneShardJoin(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d, text := aShard(t)
		goOn := make(chan struct{})
		s := &source{open: func(context.Context) (io.ReadCloser, int64, error) {
			<-goOn
			return io.NopCloser(bytes.NewReader(text)), int64(len(text)), nil
		}}
		shards := fetcher(t, map[string]*source{"b": s}).Shards("1")
		first, cancel := context.WithCancel(t.Context())
		left, done := make(chan error), make(chan error)
		go func() { left <- shards.Fetch(first, d, int64(len(text)), []string{"b"}) }()
		synctest.Wait()
		for range 3 {
			go func() { done <- shards.Fetch(t.Context(), d, int64(len(text)), []string{"b"}) }()
		}
		synctest.Wait()
		cancel() // whoever began does not want it any more
		if err := <-left; !errors.Is(err, context.Canceled) {
			t.Errorf("who left: %v", err)
		}
		close(goOn)
		for range 3 {
			if err := <-done; err != nil {
				t.Error(err)
			}
		}
		if n := s.asked.Load(); n != 1 {
			t.Errorf("the source was asked %d times", n)
		}
	})
}

func TestAFullDiskIsAnObstacleToAFetch(t *testing.T) {
	d, text := aShard(t)
	good, spare := sends(text, len(text)), sends(text, len(text))
	shards := fetcher(t, map[string]*source{"good": good, "spare": spare}).Shards("1")
	checkpoint.InjectFaults(func(op checkpoint.Op, _ int) error {
		if op == checkpoint.Write {
			return syscall.ENOSPC
		}
		return nil
	})
	err := shards.Fetch(t.Context(), d, int64(len(text)), []string{"good", "spare"})
	checkpoint.InjectFaults(nil)
	if o := obstacle.Of(err); o == nil || o.Kind != obstacle.Space || o.Bytes != int64(len(text)) {
		t.Errorf("%v is the obstacle %+v", err, o)
	}
	if spare.asked.Load() != 0 {
		t.Error("another node was asked for what this disk has no room for")
	}
	if err := shards.Fetch(t.Context(), d, int64(len(text)), []string{"good"}); err != nil {
		t.Errorf("once there is room: %v", err)
	}
}
