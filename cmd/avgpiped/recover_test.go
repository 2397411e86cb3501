package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/avgpipe/avgpipe/internal/api"
)

// TestRecoveryIsAsDocumented runs the commands that docs/operations.md gives for a lost record of jobs, in its order.
func TestRecoveryIsAsDocumented(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../../docs/operations.md")
	if err != nil {
		t.Fatal(err)
	}
	_, section, found := strings.Cut(string(text), "\n## When the record of jobs is lost\n")
	section, _, ended := strings.Cut(section, "\n## ")
	if !found || !ended {
		t.Fatal("docs/operations.md has no such section")
	}
	s := newSite(t)
	s.start()
	id := s.submit()
	s.committed(id, 10)
	if err := os.RemoveAll(filepath.Join(s.dir, "state", "raft")); err != nil {
		t.Fatal(err)
	}
	said := ""
	for line := range strings.Lines(section) {
		command, ok := strings.CutPrefix(line, "       ")
		if !ok {
			continue
		}
		switch command := strings.TrimSpace(command); {
		case command == "systemctl stop avgpiped":
			s.signal(syscall.SIGKILL) // without its log it cannot end in order
		case command == "systemctl start avgpiped":
			s.start()
		case strings.HasPrefix(command, "sudo -u avgpipe avgpiped recover --config /etc/avgpipe/avgpiped.yaml"):
			arguments := strings.Fields(strings.ReplaceAll(command, "/etc/avgpipe/avgpiped.yaml", filepath.Join(s.dir, "avgpiped.yaml")))[4:]
			var out bytes.Buffer
			if code := run(t.Context(), arguments, &out, &out); code != exitDone {
				t.Fatalf("%s: exit code %d: %s", command, code, &out)
			}
			said += out.String()
		case command == "avgpipectl status":
			status, err := s.client.Job(t.Context(), id)
			if err != nil || status.State != api.Failed || !strings.Contains(status.Reason, "avgpipectl resume "+id) || status.CommittedRound < 10 {
				t.Errorf("the job is %+v, %v", status, err)
			}
			if len(s.model(id)) == 0 {
				t.Error("its model cannot be exported")
			}
		case command == "avgpipectl resume JOB":
			if _, err := s.client.Resume(t.Context(), id, api.ResumeRequest{}); err != nil {
				t.Fatal(err)
			}
			s.done(id)
		default:
			t.Errorf("the section has a command that this test does not know: %s", command)
		}
	}
	for _, words := range []string{"wal/meta is missing", "recovered as failed, it was running", "dry run", "recovered: start the daemon"} {
		if !strings.Contains(said, words) {
			t.Errorf("recover said\n%s\nwhich has no %q", said, words)
		}
	}
}
