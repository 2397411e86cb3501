package node

import (
	"context"
	"errors"
	"io"
	"net/http"

	"go.uber.org/zap"

	"github.com/avgpipe/avgpipe/internal/api"
	"github.com/avgpipe/avgpipe/internal/cluster"
	"github.com/avgpipe/avgpipe/internal/cluster/raftlog"
	"github.com/avgpipe/avgpipe/internal/server"
)

const _ = uint(api.MaxBackup - raftlog.MaxBackup) // what is written can be sent

// Backup implements server.Members.
func (n *node) Backup(ctx context.Context, w io.Writer) error {
	about, err := n.raft.Backup(ctx, w)
	if err == nil {
		n.log.Info("a backup was made", zap.Uint64("index", about.Index), zap.Int("jobs", about.Jobs))
	}
	return stateError(err)
}

// Restore implements server.Members.
func (n *node) Restore(ctx context.Context, backup io.Reader, by server.Peer) (api.RestoreResponse, error) {
	was, err := n.raft.Restore(ctx, backup)
	if err != nil {
		return api.RestoreResponse{}, stateError(err)
	}
	n.log.Warn("jobs of a backup are back", zap.String("user", by.String()), zap.Time("taken", was.Taken), zap.String("of", was.Node),
		zap.Strings("back", was.Back), zap.Strings("interrupted", was.Interrupted))
	return api.RestoreResponse{
		Taken: was.Taken, Node: was.Node, Version: was.Version, Jobs: was.Jobs,
		Back: append([]string{}, was.Back...), Interrupted: append([]string{}, was.Interrupted...),
	}, nil
}

// stateError is how the API answers an error of a backup or of its restoration.
func stateError(err error) error {
	status := 0
	switch {
	case err == nil:
		return nil
	case errors.Is(err, raftlog.ErrBackup):
		status = http.StatusBadRequest
	case errors.Is(err, cluster.ErrWorking), errors.Is(err, cluster.ErrCluster), errors.Is(err, cluster.ErrAnotherJob):
		status = http.StatusConflict
	case errors.Is(err, raftlog.ErrNotLeader), errors.Is(err, raftlog.ErrRestoring), errors.Is(err, raftlog.ErrClosed):
		status = http.StatusServiceUnavailable
	default:
		return err
	}
	return api.Errorf(status, "%v", err)
}
