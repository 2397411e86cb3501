package node_test

import (
	"bytes"
	"context"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/avgpipe/avgpipe/internal/envtest"
	"github.com/avgpipe/avgpipe/internal/node"
	"github.com/avgpipe/avgpipe/internal/node/nodetest"
)

// The record of jobs of a node of a cluster is not made again from its own files: it would have neither the authority nor the other members.
func TestRecoverRefusesANodeOfACluster(t *testing.T) {
	t.Parallel()
	dir := nodetest.StateDir(t)
	if _, err := node.Init(dir, "n1"); err != nil {
		t.Fatal(err)
	}
	before := files(t, dir)
	for _, dryRun := range []bool{true, false} {
		var out bytes.Buffer
		err := node.Recover(t.Context(), dir, "n1", dryRun, &out)
		for _, want := range []string{"belongs to node n1 of a cluster", "avgpipectl nodes remove n1 --force", "avgpiped join", filepath.Join(dir, "pki")} {
			if err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("dry run %v: %v; want %q", dryRun, err, want)
			}
		}
	}
	if after := files(t, dir); after != before {
		t.Errorf("it changed\n%s\nto\n%s", before, after)
	}
	if err := os.Rename(filepath.Join(dir, "pki"), filepath.Join(dir, "pki.old")); err != nil {
		t.Fatal(err)
	}
	if err := node.Recover(t.Context(), dir, "n1", false, &bytes.Buffer{}); err != nil {
		t.Errorf("as the message says: %v", err)
	}
	if _, err := node.Init(dir, "n1"); err != nil {
		t.Errorf("a cluster begins anew: %v", err)
	}
}

// A node of a cluster whose log is damaged is told what works there: recover would refuse.
func TestADamagedLogOfANodeOfAClusterIsLeftBehind(t *testing.T) {
	t.Parallel()
	h := form(t, 1)[0]
	nodetest.Eventually(t, h.name+" keeps its name", func() bool { return exists(filepath.Join(h.Dir, "identity")) })
	h.Stop(t)
	log := filepath.Join(h.Dir, "raft", "wal", "meta")
	if err := os.Truncate(log, 3); err != nil {
		t.Fatal(err)
	}
	c := nodetest.Config(h.Dir, io.Discard)
	c.NodeID, c.Listen = h.name, h.address
	err := node.Run(t.Context(), c)
	for _, want := range []string{log, "avgpipectl nodes remove " + h.name + " --force", "move " + h.Dir + " away", "avgpiped join"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v; want %q", err, want)
		}
	}
	if recoverErr := node.Recover(t.Context(), h.Dir, h.name, true, io.Discard); err != nil && (recoverErr == nil || strings.Contains(err.Error(), "without one, avgpiped recover")) {
		t.Errorf("it advises what is refused (%v): %v", recoverErr, err)
	}
}

// A node of a cluster whose pki/ is lost begins no other cluster: its record of jobs has the others, which would not answer.
func TestANodeWithoutItsCertificateBeginsNoCluster(t *testing.T) {
	t.Parallel()
	h := form(t, 2)[1]
	nodetest.Eventually(t, h.name+" keeps its name", func() bool { return exists(filepath.Join(h.Dir, "identity")) })
	h.Stop(t)
	pki, away := filepath.Join(h.Dir, "pki"), filepath.Join(h.Dir, "pki.old")
	if err := os.Rename(pki, away); err != nil {
		t.Fatal(err)
	}
	before := files(t, h.Dir)
	_, initErr := node.Init(h.Dir, h.name)
	c := nodetest.Config(h.Dir, io.Discard)
	c.NodeID, c.Listen = h.name, h.address
	ctx, cancel := context.WithTimeout(t.Context(), envtest.Bound)
	defer cancel()
	for what, err := range map[string]error{"init": initErr, "start": node.Run(ctx, c)} {
		for _, want := range []string{"is that of node " + h.name + " of the cluster ", "2 nodes", pki + " is missing", "restore it", "avgpipectl nodes remove " + h.name + " --force"} {
			if err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("%s: %v; want %q", what, err, want)
			}
		}
	}
	if after := files(t, h.Dir); after != before {
		t.Errorf("it changed\n%s\nto\n%s", before, after)
	}
	if err := os.Rename(away, pki); err != nil {
		t.Fatal(err)
	}
	h.start(t, h.Dir)
	nodetest.Eventually(t, h.name+" is a member again", func() bool {
		nodes, err := h.Client.Nodes(t.Context())
		return err == nil && len(nodes) == 2
	})
}

// files lists what a directory holds.
func files(t *testing.T, dir string) string {
	t.Helper()
	var all []string
	err := filepath.WalkDir(dir, func(path string, _ os.DirEntry, err error) error {
		all = append(all, path)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return strings.Join(all, "\n")
}
