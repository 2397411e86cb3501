// Package realserver runs the tests of what speaks S3 against a server that is not ours: versitygw, with its files in a directory. A module of its own,
// which pins the server, so that the programs depend on none of it.
package realserver

import (
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// suites are the packages and tests that take a server by the flag -s3.
var suites = []struct{ pkg, run string }{
	{"./internal/objectstore", "."},
	{"./internal/node", "Bucket"},
	{"./internal/remotedata", "Buckets"},
}

// server builds the server, starts it and returns its URL.
func server(t *testing.T) string {
	t.Helper()
	program := filepath.Join(t.TempDir(), "versitygw")
	build := exec.CommandContext(t.Context(), "go", "build", "-o", program, "github.com/versity/versitygw/cmd/versitygw")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build the server: %v\n%s", err, out)
	}
	free, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	at := free.Addr().String()
	if err := free.Close(); err != nil {
		t.Fatal(err)
	}
	var said strings.Builder
	run := exec.CommandContext(t.Context(), program, "--quiet", "--keep-alive", "--access", "test", "--secret", "testtest", "--port", at, "posix", t.TempDir())
	run.Stdout, run.Stderr = &said, &said
	if err := run.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- run.Wait() }()
	t.Cleanup(func() {
		_ = run.Process.Kill() // it may have ended
		<-ended
		if t.Failed() {
			t.Logf("the server said: %s", said.String())
		}
	})
	for began := time.Now(); ; time.Sleep(50 * time.Millisecond) {
		q, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+at, nil)
		if err != nil {
			t.Fatal(err)
		}
		answer, err := http.DefaultClient.Do(q)
		if err == nil {
			_ = answer.Body.Close() // any answer will do
			return "http://" + at
		}
		select {
		case err := <-ended:
			ended <- err
			t.Fatalf("the server ended: %v", err)
		default:
		}
		if time.Since(began) > time.Minute {
			t.Fatalf("the server does not answer: %v", err)
		}
	}
}

// TestAgainstARealServer runs each suite as it is, in the module above.
func TestAgainstARealServer(t *testing.T) {
	url := server(t)
	for _, s := range suites {
		t.Run(s.pkg, func(t *testing.T) {
			args := []string{"test", "-count=1", "-v", "-run", s.run}
			if tags := os.Getenv("AVGPIPE_TAGS"); tags != "" {
				args = append(args, "-tags", tags)
			}
			test := exec.CommandContext(t.Context(), "go", append(args, s.pkg, "-s3", url)...)
			test.Dir = filepath.Join("..", "..", "..")
			out, err := test.CombinedOutput()
			if err != nil || !strings.Contains(string(out), "--- PASS") {
				t.Errorf("%v\n%s", err, out)
			}
		})
	}
}
