package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// SIGHUP puts live keys into force, names keys that wait for a restart, and a file that is refused changes nothing.
func TestReload(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.start()
	config := filepath.Join(s.dir, "avgpiped.yaml")
	asStarted, err := os.ReadFile(config)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		text string
		says []string
	}{
		{"sockt: /x\n", []string{"the one in force stays", config, `unknown key \"sockt\"`}},
		{"", []string{"the one in force stays", config + " is empty"}},
		{string(asStarted) + "cores: 100000\n", []string{"the one in force stays", "cores is 100000; this process may use"}},
		{string(asStarted) + "log_level: debug\norphan_after: 2h\n", []string{`"changed":["orphan_after","log_level"]`}},
		{string(asStarted) + "log_level: debug\ncores: 1\n", []string{`"changed":["orphan_after"]`, `wait for a restart","keys":["cores"]`}},
		{string(asStarted) + "cores: 1\n", []string{`"changed":["log_level"]`, `wait for a restart","keys":["cores"]`}},
		{string(asStarted) + "gpus: [9]\nlog_level: debug\n", []string{"the one in force stays", "the GPUs that are asked for cannot be used"}},
		{string(asStarted) + "gpus: [none]\n", []string{`"keys":["gpus"]`}},
	} {
		seen := len(s.log())
		s.write("avgpiped.yaml", c.text)
		if err := s.cmd.Process.Signal(syscall.SIGHUP); err != nil {
			t.Fatal(err)
		}
		s.until(fmt.Sprintf("%q in the log after %q", c.says, c.text), func(context.Context) bool {
			news := s.log()[seen:]
			for _, say := range c.says {
				if !strings.Contains(news, say) {
					return false
				}
			}
			return true
		})
	}
}
