package node_test

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/avgpipe/avgpipe/internal/envtest"
	"github.com/avgpipe/avgpipe/internal/node"
	"github.com/avgpipe/avgpipe/internal/node/nodetest"
	"github.com/avgpipe/avgpipe/internal/pki"
)

// authority makes an authority and reads it back.
func authority(t *testing.T) (*pki.Authority, string) {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "authority")
	if _, err := pki.MakeAuthority(dir, time.Now()); err != nil {
		t.Fatal(err)
	}
	a, err := pki.ReadAuthority(dir)
	if err != nil {
		t.Fatal(err)
	}
	return a, dir
}

func TestNodesJoinByTheAuthority(t *testing.T) {
	t.Parallel()
	a, _ := authority(t)
	first := &host{name: "n1", address: envtest.FreeAddress(t)}
	second := &host{name: "n2", address: envtest.FreeAddress(t)}
	dirs := []string{nodetest.StateDir(t), nodetest.StateDir(t)}
	begin := func(dir string, others ...string) (string, error) {
		return node.InitAuthority(t.Context(), dir, first.name, a, others)
	}
	join := func(ctx context.Context) (string, error) {
		return node.JoinAuthority(ctx, dirs[1], second.name, second.address, "test", a, []string{first.address})
	}
	type outcome struct {
		id  string
		err error
	}
	joined := make(chan outcome, 1)
	go func() { // before there is a first node
		id, err := node.Patiently(t.Context(), envtest.Bound, join)
		joined <- outcome{id, err}
	}()
	for range 2 { // the second time as a pod that is started again
		if id, err := begin(dirs[0], second.address); err != nil || id != a.Cluster() {
			t.Fatalf("begin: %q, %v", id, err)
		}
	}
	first.start(t, dirs[0])
	if o := envtest.Receive(t, "the second node joins", joined); o.err != nil || o.id != a.Cluster() {
		t.Fatalf("join: %+v", o)
	}
	second.start(t, dirs[1])
	nodetest.Eventually(t, "both are there", func() bool {
		nodes, err := first.Client.Nodes(t.Context())
		return err == nil && len(nodes) == 2
	})
	if id, err := join(t.Context()); err != nil || id != a.Cluster() {
		t.Errorf("join as a member: %q, %v", id, err)
	}
	if _, err := begin(nodetest.StateDir(t), second.address); err == nil || !strings.Contains(err.Error(), "the cluster has begun") {
		t.Errorf("a node that lost its state begins a second cluster: %v", err)
	}
	if _, err := node.JoinAuthority(t.Context(), nodetest.StateDir(t), first.name, envtest.FreeAddress(t), "test", a, []string{second.address}); err == nil {
		t.Error("another host takes the name of a node")
	}
	other, _ := authority(t)
	if _, err := node.JoinAuthority(t.Context(), nodetest.StateDir(t), "n3", envtest.FreeAddress(t), "test", other, []string{first.address}); err == nil {
		t.Error("a node of another cluster is asked for a token")
	}
	if _, err := node.InitAuthority(t.Context(), dirs[0], first.name, other, nil); err == nil || !strings.Contains(err.Error(), "another cluster") {
		t.Errorf("a node of another cluster: %v", err)
	}
}

// Nobody waits for what waiting does not change.
func TestJoiningEndsWhenItIsRefused(t *testing.T) {
	t.Parallel()
	tries := 0
	a, _ := authority(t)
	dir := nodetest.StateDir(t)
	if _, err := node.Init(dir, "n1"); err != nil {
		t.Fatal(err)
	}
	_, err := node.Patiently(t.Context(), time.Hour, func(ctx context.Context) (string, error) {
		tries++
		return node.JoinAuthority(ctx, dir, "n1", envtest.FreeAddress(t), "test", a, []string{envtest.FreeAddress(t)})
	})
	if err == nil || tries != 1 {
		t.Errorf("%d attempts, %v", tries, err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	_, err = node.Patiently(ctx, time.Hour, func(ctx context.Context) (string, error) {
		cancel()
		return node.JoinAuthority(ctx, nodetest.StateDir(t), "n1", envtest.FreeAddress(t), "test", a, []string{envtest.FreeAddress(t)})
	})
	if err == nil {
		t.Error("it joined nobody")
	}
}

func TestAuthoritiesAreMadeOnceAndKeptSecret(t *testing.T) {
	t.Parallel()
	_, dir := authority(t)
	if _, err := pki.MakeAuthority(dir, time.Now()); err == nil || !strings.Contains(err.Error(), "is there") {
		t.Errorf("a second authority: %v", err)
	}
	key := filepath.Join(dir, "authority.key")
	if err := os.Chmod(key, 0o440); err != nil {
		t.Fatal(err)
	}
	mounted := filepath.Join(t.TempDir(), "mounted") // as Kubernetes mounts secrets
	if err := os.Mkdir(mounted, 0o700); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"authority.key", "authority.crt"} {
		if err := os.Symlink(filepath.Join(dir, name), filepath.Join(mounted, name)); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := pki.ReadAuthority(mounted); err != nil {
		t.Errorf("as mounted: %v", err)
	}
	if err := os.Chmod(key, 0o444); err != nil {
		t.Fatal(err)
	}
	if _, err := pki.ReadAuthority(dir); err == nil || !strings.Contains(err.Error(), "everybody can read the key") {
		t.Errorf("a key that all can read: %v", err)
	}
}
