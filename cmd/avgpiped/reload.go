package main

import (
	"context"
	"os"
	"sync/atomic"

	"go.uber.org/zap"

	"github.com/avgpipe/avgpipe/internal/gpu"
	"github.com/avgpipe/avgpipe/internal/node"
)

// reloader reads the configuration file of a running daemon again and puts its live keys into force.
type reloader struct {
	path            string
	started, latest config // that the daemon runs with, and whose live keys are in force
	level           zap.AtomicLevel
	limits          atomic.Pointer[node.Limits]
	log             *zap.Logger
}

// newReloader puts the configuration that the daemon starts with into force. The caller sets the log.
func newReloader(path string, c config) *reloader {
	r := &reloader{path: path, started: c, level: zap.NewAtomicLevel()}
	r.apply(c)
	return r
}

// apply puts what live keys say into force.
func (r *reloader) apply(c config) {
	r.latest = c
	limits := c.limits()
	r.level.SetLevel(c.level())
	r.limits.Store(&limits)
}

// follow reloads at each hangup until ctx ends.
func (r *reloader) follow(ctx context.Context, hangups <-chan os.Signal) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-hangups:
			r.reload(ctx)
		}
	}
}

// reload reads the file. One that is refused changes nothing.
func (r *reloader) reload(ctx context.Context) {
	c, err := readConfig(r.path)
	if err == nil {
		err = r.check(ctx, &c) // what the next start would refuse
	}
	if ctx.Err() != nil {
		return // the daemon ends
	}
	if err != nil {
		r.log.Error("the configuration was not read again; the one in force stays", zap.String("file", r.path), zap.Error(err))
		return
	}
	changed, ignored := []string{}, []string{}
	for _, k := range schema.Fields {
		switch {
		case isLive(k) && c.text(k.Key) != r.latest.text(k.Key):
			changed = append(changed, k.Key)
		case !isLive(k) && c.text(k.Key) != r.started.text(k.Key):
			ignored = append(ignored, k.Key)
		}
	}
	r.apply(c)
	r.log.Info("configuration read again", zap.String("file", r.path), zap.Strings("changed", changed))
	if len(ignored) > 0 {
		r.log.Warn("these keys of the configuration differ from those in force and wait for a restart", zap.Strings("keys", ignored))
	}
}

// check reports what a start would refuse. Libraries of GPUs are opened where the file says something else of GPUs than the one in force.
func (r *reloader) check(ctx context.Context, c *config) error {
	n, err := nodeConfig(*c, r.log)
	same := func(key string) bool { return c.text(key) == r.started.text(key) }
	if err != nil || same("gpus") && same("cuda_driver") && same("cuda_libraries") {
		return err
	}
	found, err := (&prober{n.InspectCommand[0], c, probeBound, untold}).probe(ctx)
	if err != nil {
		return err
	}
	m, err := found.start(ctx, c, gpu.Events{Health: func(gpu.GPU, gpu.Health) {}, XID: func(gpu.GPU, gpu.XID) {}, Failure: func(gpu.Failure) {}}, nil)
	if err != nil {
		return err
	}
	return m.Close()
}
