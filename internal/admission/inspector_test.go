package admission

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sync/semaphore"

	"github.com/avgpipe/avgpipe/internal/access"
	"github.com/avgpipe/avgpipe/internal/api"
	"github.com/avgpipe/avgpipe/internal/envtest"
)

// shell is an inspect process that runs a script.
func shell(script string) *Inspector { return NewInspector([]string{"/bin/sh", "-c", script}) }

// TestEndsOfInspectProcessesAreRefusals, with the path that was being read and what became of it.
func TestEndsOfInspectProcessesAreRefusals(t *testing.T) {
	t.Parallel()
	opens := `echo '{"opens":"/data/corpus"}'; `
	for name, c := range map[string]struct {
		script, want string
		status       int // 0: not by the job file
	}{
		"out of memory": {opens + `echo 'fatal error: runtime: out of memory' >&2; exit 2`, "reading /data/corpus took more than 1024 MiB of memory", 422},
		"collector":     {opens + `echo 'SIGSEGV: segmentation violation' >&2; echo 'runtime.gcDrainN(0x14a)' >&2; exit 2`, "took more than 1024 MiB of memory", 422},
		"fault":         {opens + `echo 'SIGSEGV: segmentation violation' >&2; exit 2`, "ended the process that did it", 422},
		"crash":         {opens + `echo 'panic: oh' >&2; exit 2`, "reading /data/corpus ended the process that did it: exit status 2: panic: oh", 422},
		"killed":        {opens + `kill -KILL $$`, "reading /data/corpus ended the process that did it: signal: killed", 422},
		"no answer":     {`exit 0`, "the process that does it ended: without an answer", 0},
		"at once":       {`exit 3`, "the process that does it ended: exit status 3", 0},
		"nonsense":      {`echo nonsense; sleep 100`, "reading the job file: what it printed is no finding", 0},
		"refused":       {`echo '{"refused":{"error":"no"},"status":409}'`, "no", 409},
		"failed":        {`echo '{"failed":"the disk"}'`, "the disk", 0},
	} {
		_, err := shell(c.script).Admit(t.Context(), Request{Submit: api.SubmitRequest{File: "job.yaml"}})
		refused, status := (*api.Error)(nil), 0
		if errors.As(err, &refused) {
			status = refused.Status
		}
		if err == nil || !strings.Contains(err.Error(), c.want) || status != c.status {
			t.Errorf("%s: %v with status %d, want %q with %d", name, err, status, c.want, c.status)
		}
	}
}

// TestInspectProcessesAreKilledAtTheBound, with all that they started, and when nobody waits for them any more.
func TestInspectProcessesAreKilledAtTheBound(t *testing.T) {
	t.Parallel()
	i := shell(`echo '{"opens":"/data/corpus"}'; sleep 1000 & wait`)
	i.limit = 300 * time.Millisecond
	var err error
	for ; err == nil || !strings.Contains(err.Error(), "/data/corpus") && i.limit < time.Minute; i.limit *= 2 { // until the shell comes to say it
		_, err = i.Admit(t.Context(), Request{Submit: api.SubmitRequest{File: "job.yaml"}})
	}
	var refused *api.Error
	if want := fmt.Sprint("reading /data/corpus took longer than ", i.limit/2); !errors.As(err, &refused) ||
		refused.Status != http.StatusUnprocessableEntity || !strings.Contains(err.Error(), want) {
		t.Errorf("error %v, want %q", err, want)
	}
	i = shell(`sleep 1000`)
	i.slots = semaphore.NewWeighted(1)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error)
	for range 2 { // one runs, the other waits
		go func() {
			_, err := i.Admit(ctx, Request{})
			ended <- err
		}()
	}
	cancel()
	for range 2 {
		if err := <-ended; !errors.Is(err, context.Canceled) {
			t.Errorf("error %v", err)
		}
	}
	if !i.slots.TryAcquire(1) {
		t.Error("a slot is still taken")
	}
}

// confined makes a run of this test binary a process that confines itself and then allocates.
const confined = "AVGPIPE_TEST_CONFINED"

// TestConfinedProcessesCannotAllocateWithoutBound: they end by themselves, and say why.
func TestConfinedProcessesCannotAllocateWithoutBound(t *testing.T) {
	if os.Getenv(confined) != "" {
		if err := confine(access.User{UID: uint32(os.Geteuid())}); err != nil {
			t.Fatal(err)
		}
		taken := make([]byte, 3*inspectBytes/2) // the bound is of what is allocated, used or not
		t.Fatalf("it has %d bytes", len(taken))
	}
	t.Parallel()
	cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run", "^"+t.Name()+"$")
	messages := &head{}
	cmd.Env, cmd.Stdout, cmd.Stderr = append(os.Environ(), confined+"=1"), messages, messages
	if err := cmd.Run(); err == nil || !messages.outOfMemory() && !bytes.Contains(messages.kept, []byte("failed to allocate")) { // the words of the race detector
		t.Errorf("it ended with %v: %s", err, messages.kept)
	}
}

// taken makes a run of this test binary a process that confines itself for a user who owns nothing.
const taken = "AVGPIPE_TEST_TAKEN"

// TestRootTakesTheUsersIdentity: what is not his, he cannot read, whatever opens it.
func TestRootTakesTheUsersIdentity(t *testing.T) {
	if secret := os.Getenv(taken); secret != "" {
		if err := confine(access.User{UID: 54321, GIDs: []uint32{54322, 54323}}); err != nil {
			t.Fatal(err)
		}
		groups, err := os.Getgroups()
		if err != nil || os.Getuid() != 54321 || os.Geteuid() != 54321 || os.Getegid() != 54322 || len(groups) != 2 {
			t.Fatalf("user %d (%d), group %d, groups %v, %v", os.Getuid(), os.Geteuid(), os.Getegid(), groups, err)
		}
		if _, err := os.ReadFile(secret); !errors.Is(err, os.ErrPermission) {
			t.Fatalf("a file of root: %v", err)
		}
		return
	}
	envtest.Root(t)
	t.Parallel()
	secret := filepath.Join(t.TempDir(), "secret")
	if err := os.WriteFile(secret, []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run", "^"+t.Name()+"$")
	cmd.Env = append(os.Environ(), taken+"="+secret)
	if said, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("%v: %s", err, said)
	}
}

// TestOneUserKeepsNobodyOut: half of the slots are left to others, whatever one user sends.
func TestOneUserKeepsNobodyOut(t *testing.T) {
	i := shell(`sleep 1000`)
	i.limit = time.Hour
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error)
	for range 2 * mostInspected {
		go func() {
			_, err := i.Admit(ctx, Request{User: access.User{UID: 1}})
			ended <- err
		}()
	}
	for range mostInspected / 2 { // each of them is let in, while the first user's files run and wait
		leave, err := i.enter(t.Context(), 2)
		if err != nil {
			t.Fatal(err)
		}
		defer leave()
	}
	envtest.Eventually(t, "the other half is the first user's", func() bool {
		if i.slots.TryAcquire(1) {
			i.slots.Release(1)
			return false
		}
		return true
	})
	full, stop := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer stop()
	if _, err := i.enter(full, 2); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("a third file of the second user: %v", err)
	}
	cancel()
	for range 2 * mostInspected {
		<-ended
	}
}
