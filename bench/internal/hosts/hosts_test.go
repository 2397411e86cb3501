package hosts

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/Shopify/toxiproxy/v2/toxics"

	"github.com/avgpipe/avgpipe/internal/envtest"
)

// TestMain makes this binary the program that is entered, a server on a host, and a client.
func TestMain(m *testing.M) {
	if len(os.Args) < 2 {
		os.Exit(m.Run())
	}
	var err error
	switch os.Args[1] {
	case InsideFlag:
		err = inside(context.Background())
	case "serve":
		err = serve(os.Args[2])
	case SlowableFlag:
		err = BecomeSlowable(context.Background(), os.Args[2], os.Args[3:])
	case "sync":
		err = syncOnce(os.Args[2])
	case "ask":
		err = ask(os.Args[2])
	default:
		os.Exit(m.Run())
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(0)
}

// What syncs a file waits as long as the disk says, and no longer than that.
func TestDisk(t *testing.T) {
	if os.Getuid() != 0 {
		envtest.Missing(t, "a slow disk needs root")
	}
	dir := t.TempDir()
	d, err := NewDisk(filepath.Join(dir, "disk"))
	if err != nil {
		t.Fatal(err)
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	program, arguments := d.Command(self, "sync", filepath.Join(dir, "file"))
	run := func() {
		t.Helper()
		if said, err := exec.CommandContext(t.Context(), program, arguments...).CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, said)
		}
	}
	run()
	var waited atomic.Int32
	undo := d.Slow(func(<-chan struct{}) { waited.Add(1) })
	run()
	undo()
	run()
	if waited.Load() != 2 {
		t.Errorf("a program syncs twice, and %d calls waited", waited.Load())
	}
	undo = d.Slow(func(done <-chan struct{}) { <-done })
	stuck := exec.CommandContext(t.Context(), program, arguments...)
	if err := stuck.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- stuck.Wait() }()
	select {
	case err := <-ended:
		t.Errorf("a program that syncs on a disk that stands still ended: %v", err)
	case <-time.After(200 * time.Millisecond):
	}
	undo()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	if err := d.Close(); err != nil {
		t.Error(err)
	}
}

// syncOnce syncs a file, and then its data.
func syncOnce(path string) error {
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	_, err = f.WriteString("text")
	return errors.Join(err, f.Sync(), syscall.Fdatasync(int(f.Fd())), f.Close())
}

// TestHosts runs inside in namespaces of its own.
func TestHosts(t *testing.T) {
	for _, program := range []string{"ip", "tc", "nft"} {
		if _, err := exec.LookPath(program); err != nil || os.Getuid() != 0 {
			envtest.Missing(t, "network namespaces need root and the programs ip, tc and nft")
		}
	}
	if err := Enter(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// inside checks that hosts reach each other, unless they are cut off, and that a slow one is slow.
func inside(ctx context.Context) error {
	if err := Prepare(ctx); err != nil {
		return err
	}
	if err := orphan(ctx); err != nil {
		return err
	}
	n, err := New(ctx, "a", "b", "c")
	if err != nil {
		return err
	}
	self, err := os.Executable()
	if err != nil {
		return err
	}
	server := n.Host("b").Command(self, "serve", n.Host("b").Address+":9000")
	server.Stderr = os.Stderr
	out, err := server.StdoutPipe()
	if err == nil {
		err = server.Start()
	}
	if err == nil {
		_, err = io.ReadFull(out, make([]byte, 1)) // it listens
	}
	if err != nil {
		return err
	}
	once := func(from string) error {
		said, err := n.Host(from).Command(self, "ask", n.Host("b").Address+":9000").CombinedOutput()
		if err != nil {
			return fmt.Errorf("%s asks b: %w: %s", from, err, said)
		}
		return nil
	}
	asked := func(from string) (err error) { // neighbours that were away are looked for from time to time
		for range 20 {
			if err = once(from); err == nil {
				break
			}
		}
		return err
	}
	err = errors.Join(asked("a"), asked("c"), asked("b"))
	heal, cutErr := n.Cut(ctx, []string{"a"}, []string{"b", "c"})
	if err = errors.Join(err, cutErr); err != nil {
		return err
	}
	if once("a") == nil || asked("c") != nil {
		return errors.New("a reaches b although it is cut off, or c does not although it is not")
	}
	err = errors.Join(heal(), asked("a"))
	plug, unplugErr := n.Unplug(ctx, "c")
	if err = errors.Join(err, unplugErr); err != nil {
		return err
	}
	if once("c") == nil {
		return errors.New("c reaches b without a wire")
	}
	if err := errors.Join(plug(), asked("c")); err != nil {
		return err
	}
	if err := throughProxies(ctx, n, once, asked); err != nil {
		return err
	}
	if err := n.Limit(ctx, "a", 8e6); err != nil {
		return err
	}
	qdisc, err := n.Host("a").Command("tc", "qdisc", "show", "dev", "eth0").Output()
	if err == nil && !bytes.Contains(qdisc, []byte("tbf")) {
		err = fmt.Errorf("the limit is not there: %s", qdisc)
	}
	return errors.Join(err, asked("a"), n.Limit(ctx, "a", 0), server.Process.Kill(), n.Remove(ctx))
}

// orphan checks that nothing is left of a process whose parent has ended before it.
func orphan(ctx context.Context) error {
	said, err := exec.CommandContext(ctx, "sh", "-c", "sleep 600 >/dev/null 2>&1 & echo $!").Output()
	if err != nil {
		return err
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(said)))
	if err != nil {
		return err
	}
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		return err
	}
	for range 6000 {
		if errors.Is(syscall.Kill(pid, 0), syscall.ESRCH) {
			return nil
		}
		time.Sleep(10 * time.Millisecond)
	}
	return fmt.Errorf("process %d, which was killed and has no parent, is still there", pid)
}

// throughProxies checks that connections go through proxies, and that a toxic is in those of its host alone.
func throughProxies(ctx context.Context, n *Network, once, asked func(from string) error) error {
	p, err := n.Proxy(ctx)
	if err != nil {
		return err
	}
	undo := p.Toxic("a", &toxics.LatencyToxic{Latency: 150})
	began := time.Now()
	err = errors.Join(asked("c"), asked("a"))
	if took := time.Since(began); took < 300*time.Millisecond {
		err = errors.Join(err, fmt.Errorf("a asks b and is answered in %v over a line of 150 ms", took))
	}
	undo()
	undo = p.Toxic("a", &toxics.LimitDataToxic{Bytes: 3})
	if once("a") == nil || asked("c") != nil {
		err = errors.Join(err, errors.New("a hears of b more than three bytes, or c does not"))
	}
	undo()
	undo = p.Toxic("b", &toxics.ResetToxic{})
	if once("a") == nil || once("c") == nil {
		err = errors.Join(err, errors.New("connections to b are not reset"))
	}
	undo()
	return errors.Join(err, asked("a"), asked("c"), p.Close(ctx), asked("a"))
}

func serve(address string) error {
	listener, err := net.Listen("tcp", address)
	if err != nil {
		return err
	}
	fmt.Print("!")
	for {
		conn, err := listener.Accept()
		if err != nil {
			return err
		}
		_, _ = io.Copy(conn, io.LimitReader(conn, 5)) // the client says whether that worked
		conn.Close()
	}
}

func ask(address string) error {
	conn, err := net.DialTimeout("tcp", address, 300*time.Millisecond)
	if err != nil {
		return err
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(10 * time.Second)); err != nil {
		return err
	}
	if _, err := io.Copy(conn, strings.NewReader("hello")); err != nil {
		return err
	}
	answer, err := io.ReadAll(conn)
	if err == nil && string(answer) != "hello" {
		err = fmt.Errorf("answer %q", answer)
	}
	return err
}
