package raftlog

import (
	"errors"
	"testing"
	"time"

	"github.com/hashicorp/raft"

	"github.com/avgpipe/avgpipe/internal/envtest"
)

// fullPipeline is a pipeline whose responses nobody reads.
type fullPipeline struct {
	raft.AppendPipeline
	closed chan struct{}
}

func (p fullPipeline) AppendEntries(*raft.AppendEntriesRequest, *raft.AppendEntriesResponse) (raft.AppendFuture, error) {
	<-p.closed
	return nil, raft.ErrPipelineShutdown
}

func (p fullPipeline) Close() error {
	close(p.closed)
	return nil
}

// TestAMessageDoesNotWaitForEver for responses that the library no longer reads, as after one of a newer term: else a node that has led cannot be shut down.
func TestAMessageDoesNotWaitForEver(t *testing.T) {
	p := &pacedPipeline{AppendPipeline: fullPipeline{closed: make(chan struct{})}, pace: &pace{sent: map[raft.ServerID]time.Time{}}, patience: time.Millisecond}
	ended := make(chan error, 1)
	go func() {
		_, err := p.AppendEntries(&raft.AppendEntriesRequest{}, &raft.AppendEntriesResponse{})
		ended <- err
	}()
	if err := envtest.Receive(t, "the message is given up", ended); !errors.Is(err, raft.ErrPipelineShutdown) {
		t.Errorf("it ended with %v", err)
	}
}
