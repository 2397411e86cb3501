package main

import (
	"bufio"
	"cmp"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"go.uber.org/zap"

	"github.com/avgpipe/avgpipe/internal/obstacle"
	"github.com/avgpipe/avgpipe/stage/device/cuda"
)

// identity tells a file from others that have its path at other times.
type identity struct {
	path     string
	inode    uint64 // 0: it is not there
	bytes    int64
	modified time.Time
}

// identify finds what files are now. On a file system that hangs it may not return.
func identify(paths []string) (all []identity) {
	for _, path := range paths {
		one := identity{path: path}
		if info, err := os.Stat(path); err == nil {
			one.bytes, one.modified = info.Size(), info.ModTime()
			if s, ok := info.Sys().(*syscall.Stat_t); ok {
				one.inode = s.Ino
			}
		}
		all = append(all, one)
	}
	return all
}

// mappedLibraries are the files of the shared libraries that this process has open.
func mappedLibraries() (all []string) {
	maps, err := os.Open("/proc/self/maps")
	if err != nil {
		return nil
	}
	defer maps.Close() //nolint:errcheck // only read
	for lines := bufio.NewScanner(maps); lines.Scan(); {
		_, path, ok := strings.Cut(lines.Text(), "/")
		if path = "/" + path; ok && strings.Contains(filepath.Base(path), ".so") && !slices.Contains(all, path) {
			all = append(all, path)
		}
	}
	return all
}

// identified notes which files a finding is about, of a process that opened these. Of one that failed to open what the loader finds, none is known.
func (f finding) identified(opened []string) finding {
	mapped := f.Files
	for _, one := range opened {
		switch {
		case filepath.IsAbs(one):
			f.Files = append(f.Files, one)
		case f.Error != "":
			f.Files = nil
			return f
		default: // the loader's name may be a link beside the file
			for _, path := range mapped {
				f.Files = append(f.Files, filepath.Join(filepath.Dir(path), one))
			}
		}
	}
	slices.Sort(f.Files)
	f.Files = slices.Compact(f.Files)
	f.seen = identify(f.Files)
	return f
}

// changed reports whether a library may not be what it was when it was probed. One whose files do not answer has: the process that opens it says so.
func (p *prober) changed(f finding) bool {
	if len(f.seen) == 0 {
		return true
	}
	now := make(chan []identity, 1)
	go func() { now <- identify(f.Files) }()
	bound := time.NewTimer(p.bound)
	defer bound.Stop()
	select {
	case files := <-now:
		return !slices.Equal(files, f.seen)
	case <-bound.C:
		return true
	}
}

// renew probes the libraries of workers whose files have changed since, and a driver that could not be used.
func (p *prober) renew(ctx context.Context, l *libraries) {
	if l.driver.Error != "" || p.changed(l.driver) {
		l.driver = p.ask(ctx, cuda.Driver)
	}
	if l.driver.Error != "" {
		return
	}
	var asking sync.WaitGroup
	handles := p.handles(l.driver)
	for library, f := range map[string]*finding{cuda.BLAS: &l.blas, cuda.DNN: &l.dnn, cuda.NCCL: &l.nccl} {
		asking.Go(func() {
			if p.changed(*f) {
				*f = p.ask(ctx, library, handles...)
			}
		})
	}
	asking.Wait()
}

// renewer has libraries probed again before workers open them.
type renewer struct {
	prober *prober
	log    *zap.Logger

	mu    sync.Mutex // held while libraries are probed: who comes then needs the same answer
	found libraries
}

// arguments are flags of a worker that starts now. Without a driver it has to wait.
func (r *renewer) arguments(ctx context.Context) ([]string, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	before := r.found
	r.prober.renew(ctx, &r.found)
	if ctx.Err() != nil {
		r.found = before // it was not waited for
		return nil, context.Cause(ctx)
	}
	was := before.all()
	for i, f := range r.found.all() {
		fields := []zap.Field{zap.String("library", f.Library), zap.String("path", cmp.Or(f.Path, f.Opening))}
		switch {
		case f.Error == was[i].Error && f.Path == was[i].Path:
		case f.Error != "":
			r.log.Warn("a library of GPUs has changed and cannot be used; "+withoutIt[f.Library], append(fields, zap.String("found", f.Error))...)
		default:
			r.log.Info("a library of GPUs has changed", fields...)
		}
	}
	if f := r.found.driver; f.Error != "" {
		err := fmt.Errorf("the library of the CUDA driver, %s, cannot be used: %s; install it again, the job then goes on by itself", f.Opening, f.Error)
		return nil, &obstacle.Error{Obstacle: obstacle.Obstacle{Kind: obstacle.GPU, Path: f.Opening}, Err: err}
	}
	return r.found.without(), nil
}
