package agent

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"go.uber.org/zap"

	"github.com/avgpipe/avgpipe/internal/checkpoint"
	"github.com/avgpipe/avgpipe/internal/shard"
	"github.com/avgpipe/avgpipe/internal/worker/control"
)

// stall is how long a source of a shard may send nothing before the next one is asked. Default of Config.Stall.
const stall = 10 * time.Second

// fetch is a Fetch that runs, for all who want the shard.
type fetch struct {
	waiting int // that want it
	cancel  context.CancelFunc
	done    chan struct{}
	err     error // once done is closed
}

// Fetch implements Shards.
func (s *localShards) Fetch(ctx context.Context, d shard.Digest, bytes int64, from []string) error { //nolint:contextcheck // others may wait for what one began
	l, key := s.agent, s.job+"/"+string(d)
	for {
		l.mu.Lock()
		f := l.fetches[key]
		own := f == nil
		if own {
			if l.ctx.Err() != nil {
				l.mu.Unlock()
				return fmt.Errorf("fetch shard %s: the daemon is stopping", d)
			}
			running, cancel := context.WithCancel(l.ctx)
			f = &fetch{cancel: cancel, done: make(chan struct{})}
			l.fetches[key] = f
			l.tasks.Go(func() {
				defer cancel()
				f.err = s.fetch(running, d, bytes, from)
				l.mu.Lock()
				delete(l.fetches, key)
				l.mu.Unlock()
				close(f.done)
			})
		}
		f.waiting++
		l.mu.Unlock()
		select {
		case <-f.done:
			if f.err == nil || own {
				return f.err
			}
			continue // with other sources than the one who began
		case <-ctx.Done():
		}
		l.mu.Lock()
		if f.waiting--; f.waiting == 0 {
			f.cancel()
		}
		l.mu.Unlock()
		return context.Cause(ctx)
	}
}

// fetch asks one source after the other.
func (s *localShards) fetch(ctx context.Context, d shard.Digest, bytes int64, from []string) error {
	size, err := s.Verify(ctx, d)
	if err == nil && size != bytes {
		return fmt.Errorf("fetch shard %s: it has %d bytes, %d were asked for", d, size, bytes)
	}
	if err == nil {
		s.accompany(ctx, d, from)
		return nil
	}
	if _, damaged := errors.AsType[*shard.DamagedError](err); !damaged && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("fetch shard %s: %w", d, err)
	}
	// The job's directory is there: in the place of one that is not mounted, none is made.
	if err := os.Mkdir(control.ShardDir(s.agent.dir(s.job)), 0o750); err != nil && !errors.Is(err, fs.ErrExist) {
		return fmt.Errorf("fetch shard %s: %w", d, err)
	}
	if len(from) == 0 {
		return fmt.Errorf("fetch shard %s of job %s: no node is known to have it", d, s.job)
	}
	var faults []error
	for _, node := range from {
		err := s.fetchFrom(ctx, d, bytes, node)
		if err == nil {
			s.accompany(ctx, d, append([]string{node}, from...))
			return nil
		}
		if _, theirs := errors.AsType[*shard.SourceError](err); !theirs || ctx.Err() != nil {
			return err
		}
		faults = append(faults, fmt.Errorf("node %s: %w", node, err))
	}
	return fmt.Errorf("fetch shard %s of job %s: no node could give it: %w", d, s.job, noObstacle{errors.Join(faults...)})
}

// fetchFrom asks one source, for as long as it sends.
func (s *localShards) fetchFrom(ctx context.Context, d shard.Digest, bytes int64, node string) error {
	bound := s.agent.config.Stall
	if bound == 0 {
		bound = stall
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	silent := fmt.Errorf("it sent nothing for %v: %w", bound, ErrUnreachable)
	timer := time.AfterFunc(bound, func() { cancel(silent) })
	defer timer.Stop()
	theirs := func(err error) error { return &shard.SourceError{Err: err} }
	peer, err := s.agent.peer(node)
	if err != nil {
		return theirs(err)
	}
	r, size, err := peer.Shards(s.job).Open(ctx, d)
	if errors.Is(context.Cause(ctx), silent) {
		err = errors.Join(silent, closeIf(r))
	}
	if err != nil {
		return theirs(err)
	}
	if size != bytes {
		return theirs(errors.Join(fmt.Errorf("its file has %d bytes, the shard has %d", size, bytes), r.Close()))
	}
	stop := context.AfterFunc(ctx, func() { _ = r.Close() }) // which ends a read that waits
	defer stop()
	err = s.Receive(ctx, d, bytes, progress{r, func() { timer.Reset(bound) }})
	if errors.Is(context.Cause(ctx), silent) {
		err = theirs(silent)
	}
	_ = r.Close() // only read
	return err
}

// accompany brings what goes with the model that a shard names and that is not here, from the first node that has it: a model whose shards alone were
// copied could not be exported. What cannot be had is said: the shard is a copy without it, too.
func (s *localShards) accompany(ctx context.Context, d shard.Digest, from []string) {
	header, err := s.Header(d)
	if err != nil {
		return // whoever reads it says so
	}
	var meta struct{ Companions map[string]string }
	if json.Unmarshal(header.Meta, &meta) != nil {
		return // of another writer
	}
	dir := control.ModelDir(s.agent.dir(s.job))
	for name, digest := range meta.Companions {
		if _, err := os.Stat(checkpoint.ObjectPath(dir, digest)); err == nil {
			continue
		}
		if err := s.companion(ctx, dir, digest, from); err != nil && ctx.Err() == nil {
			s.agent.config.Log.Warn("what goes with a model was not copied with its shard", zap.String("job", s.job), zap.String("file", name), zap.Error(err))
		}
	}
}

// companion brings one file that goes with a model.
func (s *localShards) companion(ctx context.Context, dir, digest string, from []string) error {
	err := errors.New("no node is known to have it")
	for _, node := range from {
		var peer Agent
		var text []byte
		if peer, err = s.agent.peer(node); err != nil {
			continue
		}
		path := checkpoint.ObjectPath(dir, digest)
		if text, err = peer.Companion(ctx, s.job, filepath.Base(path)); err != nil {
			continue
		}
		if checkpoint.ObjectDigest(text) != digest {
			err = fmt.Errorf("node %s: its file is not %s", node, digest)
			continue
		}
		if err := os.MkdirAll(dir, 0o750); err != nil {
			return err
		}
		return checkpoint.WriteFile(path, text, 0o640)
	}
	return err
}

func closeIf(r io.Closer) error {
	if r == nil {
		return nil
	}
	return r.Close()
}

// progress calls made after every read that has brought something.
type progress struct {
	io.Reader
	made func()
}

func (p progress) Read(b []byte) (int, error) {
	n, err := p.Reader.Read(b)
	if n > 0 {
		p.made()
	}
	return n, err
}

// noObstacle keeps what is in the way of other nodes from being taken for what is in the way of this one.
type noObstacle struct{ error }

func (e noObstacle) Is(target error) bool {
	return target == ErrUnreachable && errors.Is(e.error, ErrUnreachable)
}
