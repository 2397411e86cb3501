package worker

import (
	"errors"
	"os"
	"strings"
	"testing"

	"github.com/avgpipe/avgpipe/internal/envtest"
	"github.com/avgpipe/avgpipe/internal/shard"
	"github.com/avgpipe/avgpipe/internal/worker/control"
	"github.com/avgpipe/avgpipe/job"
)

// adapted trains adapters in bf16, whose frozen weights on the device are not exact.
func adapted(j *job.Job) {
	j.Precision, j.LoRA = "bf16", job.LoRA{Targets: []string{"c_attn"}, Rank: 2, Alpha: 4}
	j.Train.Steps = 100000
}

// frozenFiles are the files of frozen parameters of a job's stages.
func frozenFiles(t *testing.T, tr *trainer) (paths []string) {
	t.Helper()
	tr.mu.Lock()
	defer tr.mu.Unlock()
	for i := range tr.host.stages {
		paths = append(paths, tr.host.store.Path(tr.host.stages[i].frozen.file.Digest))
	}
	return paths
}

// damage removes the first file and empties the others.
func damage(t *testing.T, paths []string) {
	t.Helper()
	for i, path := range paths {
		err := os.Truncate(path, 0)
		if i == 0 {
			err = os.Remove(path)
		}
		if err != nil {
			t.Error(err)
		}
	}
}

// The file with what is frozen is made again, from what the job began with: before a round is committed that needs it, and before a
// generation begins with it.
func TestALostFileOfFrozenParametersIsMadeAgain(t *testing.T) {
	_, a := beginsFrom(t, adapted)
	store := shard.StoreAt(control.ShardDir(a.Dir))
	for range 2 {
		o := train(t, a, func(tr *trainer) {
			damage(t, frozenFiles(t, tr))
			stopAll(t, tr)
		})
		if !errors.Is(o.err, errAborted) || len(o.shards) != 2 {
			t.Fatalf("the worker ended with %v and %d shards", o.err, len(o.shards))
		}
		for k, s := range o.shards {
			if bytes, err := store.Verify(t.Context(), s.Frozen.Digest); err != nil || bytes != s.Frozen.Bytes {
				t.Errorf("stage %d: %d bytes, want %d: %v", k, bytes, s.Frozen.Bytes, err)
			}
			change := os.Remove
			if k == 1 {
				change = func(path string) error {
					text, err := os.ReadFile(path)
					if err == nil {
						text[len(text)/2] ^= 1
						err = os.WriteFile(path, text, 0o600)
					}
					return err
				}
			}
			if err := change(store.Path(s.Frozen.Digest)); err != nil {
				t.Error(err)
			}
		}
		a.Generation, a.Restore = a.Generation+1, restoreOf(o)
	}
}

// Where model.from is gone as well, the commit waits, says for what, and writes nothing; it goes on once the file is back.
func TestACommitWaitsForAFileOfFrozenParameters(t *testing.T) {
	dir, a := beginsFrom(t, adapted)
	first := train(t, a, func(tr *trainer) { stopAll(t, tr) })
	a.Generation, a.Restore = 2, restoreOf(first)
	if err := os.Rename(dir, dir+"-elsewhere"); err != nil {
		t.Fatal(err)
	}
	o := train(t, a, func(tr *trainer) {
		paths := frozenFiles(t, tr)
		text, err := os.ReadFile(paths[0])
		if err != nil {
			t.Error(err)
		}
		damage(t, paths[:1])
		stopAll(t, tr)
		held := ""
		envtest.Eventually(t, "the commit waits", func() bool {
			held = tr.Status().Held
			return held != ""
		})
		for _, part := range []string{
			"frozen parameters of stage 0: ", paths[0], "cannot be made again", dir + ": no such file", "put that file back",
		} {
			if !strings.Contains(held, part) {
				t.Errorf("held is %q, want %q", held, part)
			}
		}
		if err := os.WriteFile(paths[0], text, 0o600); err != nil {
			t.Error(err)
		}
	})
	if !errors.Is(o.err, errAborted) || len(o.shards) != 2 || o.status.Held != "" {
		t.Errorf("the worker ended with %v, %d shards, held %q", o.err, len(o.shards), o.status.Held)
	}
}
