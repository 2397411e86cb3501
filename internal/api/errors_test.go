package api_test

import (
	"context"
	"errors"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/avgpipe/avgpipe/internal/api"
	"github.com/avgpipe/avgpipe/internal/envtest"
)

// asNobody is the variable that makes this test's program ask for a version as it is, and print the error.
const asNobody = "AVGPIPE_TEST_SOCKET"

func TestMain(m *testing.M) {
	if socket := os.Getenv(asNobody); socket != "" {
		_, err := api.NewClient(socket).Version(context.Background())
		_, _ = os.Stdout.WriteString(err.Error()) // the test finds out
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// TestConnectErrorsTellCausesApart: no socket, a leftover, another file.
func TestConnectErrorsTellCausesApart(t *testing.T) {
	dir := envtest.ShortDir(t)
	leftover, file := filepath.Join(dir, "leftover"), filepath.Join(dir, "file")
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: leftover})
	if err != nil {
		t.Fatal(err)
	}
	l.SetUnlinkOnClose(false)
	if err := errors.Join(l.Close(), os.WriteFile(file, nil, 0o600)); err != nil {
		t.Fatal(err)
	}
	for socket, says := range map[string]string{
		filepath.Join(dir, "none"): "there is no such socket; start one", leftover: "leftover of one that is gone", file: "that is no socket",
	} {
		_, err := api.NewClient(socket).Version(t.Context())
		if _, ok := errors.AsType[*api.ConnectError](err); !ok || !strings.Contains(err.Error(), "no daemon at "+socket+": ") || !strings.Contains(err.Error(), says) {
			t.Errorf("%s: %v; want %q", socket, err, says)
		}
	}
}

// TestPermissionDeniedNamesTheGroup asks as a user who may not open the socket, or may not even see it.
func TestPermissionDeniedNamesTheGroup(t *testing.T) {
	envtest.Root(t)
	dir := envtest.ShortDir(t)
	program := filepath.Join(dir, "program")
	text, err := os.ReadFile(os.Args[0])
	if err := errors.Join(err, os.WriteFile(program, text, 0o755), os.Chmod(dir, 0o755)); err != nil {
		t.Fatal(err)
	}
	inside := filepath.Join(dir, "run")
	socket := filepath.Join(inside, "s")
	if err := os.Mkdir(inside, 0o755); err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	const tty = 5 // a group of every Debian
	if err := errors.Join(os.Chmod(socket, 0o660), os.Chown(socket, 0, tty), os.Chown(inside, 0, tty)); err != nil {
		t.Fatal(err)
	}
	ask := func() string {
		cmd := exec.CommandContext(t.Context(), program)
		cmd.Env = append(os.Environ(), asNobody+"="+socket)
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
		out, err := cmd.Output()
		if err != nil {
			t.Error(err)
		}
		return string(out)
	}
	for _, mode := range []os.FileMode{0o755, 0o750} {
		if err := os.Chmod(inside, mode); err != nil {
			t.Fatal(err)
		}
		if out := ask(); !strings.Contains(out, "permission denied on "+socket+": it is for the group tty, and you, nobody, are not in it: sudo usermod -aG tty nobody") {
			t.Errorf("directory %v: %s", mode, out)
		}
	}
	if err := errors.Join(os.Chmod(inside, 0o755), os.Chown(socket, 0, 0)); err != nil {
		t.Fatal(err)
	}
	if out := ask(); !strings.Contains(out, "belongs to root alone") || strings.Contains(out, "usermod") {
		t.Errorf("a socket of root: %s", out)
	}
}
