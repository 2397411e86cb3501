package worker

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"go.uber.org/zap"

	"github.com/avgpipe/avgpipe/internal/access"
	"github.com/avgpipe/avgpipe/job"
	"github.com/avgpipe/avgpipe/schedule"
	"github.com/avgpipe/avgpipe/stage/device/cuda"
)

// TestAFileThatBecameALinkIsOpenedWithTheSubmittersRights: what he may read is read, and what was put in its place after he had
// submitted the job is not.
func TestAFileThatBecameALinkIsOpenedWithTheSubmittersRights(t *testing.T) {
	dir := t.TempDir()
	for d := dir; d != os.TempDir() && d != "/"; d = filepath.Dir(d) {
		if err := os.Chmod(d, 0o755); err != nil { //nolint:gosec // The test is about others.
			t.Fatal(err)
		}
	}
	corpus, secret := filepath.Join(dir, "corpus.txt"), filepath.Join(dir, "secret.txt")
	for path, mode := range map[string]os.FileMode{corpus: 0o644, secret: 0o600} {
		if err := os.WriteFile(path, []byte(strings.Repeat("a text. ", 500)), mode); err != nil {
			t.Fatal(err)
		}
	}
	a := setup(t, 1, 1, func(j *job.Job) { j.Data.Files = []string{corpus} })
	a.Spec.User = &access.User{UID: 54321, GIDs: []uint32{54321}}
	plan, err := schedule.Parse(strings.Join(a.Plan, "\n"))
	if err != nil {
		t.Fatal(err)
	}
	h, err := newHost(t.Context(), a, plan, cuda.Config{}, zap.NewNop())
	if err != nil {
		t.Fatalf("what everybody may read: %v", err)
	}
	if err := h.close(); err != nil {
		t.Error(err)
	}
	if err := errors.Join(os.Remove(corpus), os.Symlink(secret, corpus)); err != nil {
		t.Fatal(err)
	}
	h, err = newHost(t.Context(), a, plan, cuda.Config{}, zap.NewNop())
	if err == nil {
		_ = h.close()
	}
	if !errors.Is(err, fs.ErrPermission) || !Permanent(err) || !strings.Contains(err.Error(), "user 54321 may not read "+secret) {
		t.Errorf("after the swap: %v (permanent: %v)", err, Permanent(err))
	}
}
