package main

import (
	"context"
	"maps"
	"os"
	"sync/atomic"

	"go.uber.org/zap"

	"github.com/avgpipe/avgpipe/internal/node"
)

// reloader reads the configuration file of a running daemon again and puts its live keys into force.
type reloader struct {
	path   string
	texts  map[string]string // of the keys in force
	level  zap.AtomicLevel
	limits atomic.Pointer[node.Limits]
	log    *zap.Logger
}

// newReloader puts the configuration that the daemon starts with into force. The caller sets the log.
func newReloader(path string, c config, texts map[string]string) *reloader {
	r := &reloader{path: path, texts: maps.Clone(texts), level: zap.NewAtomicLevel()}
	r.apply(c)
	return r
}

// apply puts what live keys say into force.
func (r *reloader) apply(c config) {
	r.level.SetLevel(c.logLevel)
	r.limits.Store(&c.limits)
}

// follow reloads at each hangup until ctx ends.
func (r *reloader) follow(ctx context.Context, hangups <-chan os.Signal) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-hangups:
			r.reload()
		}
	}
}

// reload reads the file. One that is refused changes nothing.
func (r *reloader) reload() {
	c, texts, err := readConfig(r.path)
	if err == nil {
		_, err = nodeConfig(c, r.log) // what the next start would refuse
	}
	if err != nil {
		r.log.Error("the configuration was not read again; the one in force stays", zap.String("file", r.path), zap.Error(err))
		return
	}
	changed, ignored := []string{}, []string{}
	for _, k := range keys(&c) {
		switch { // a key that the file does not have is "", which no key may be
		case texts[k.name] == r.texts[k.name]:
		case !k.live:
			ignored = append(ignored, k.name)
		default:
			changed = append(changed, k.name)
			r.texts[k.name] = texts[k.name]
		}
	}
	r.apply(c)
	r.log.Info("configuration read again", zap.String("file", r.path), zap.Strings("changed", changed))
	if len(ignored) > 0 {
		r.log.Warn("these keys of the configuration differ from those in force and wait for a restart", zap.Strings("keys", ignored))
	}
}
