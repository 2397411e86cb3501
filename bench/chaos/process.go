package main

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// What tells a worker and a tuning from other processes of a trial.
const (
	asWorker = "\x00--assignment\x00"
	asTuning = "\x00--request\x00"
	asAny    = ""
)

// processes returns the running processes whose command line names something in the trial's directory, and holds what.
func (w *testbed) processes(what string) (pids []int) {
	lines, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		panic(fmt.Sprintf("a constant pattern: %v", err))
	}
	for _, path := range lines {
		line, err := os.ReadFile(path)
		if err != nil || !bytes.Contains(line, []byte(what)) || !bytes.Contains(line, []byte(w.dir+"/")) {
			continue // it has ended meanwhile, or is another's
		}
		pid, err := strconv.Atoi(filepath.Base(filepath.Dir(path)))
		if err == nil && pid != os.Getpid() && runs(pid) {
			pids = append(pids, pid)
		}
	}
	return pids
}

// runs reports whether a process has not ended.
func runs(pid int) bool {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return false
	}
	after := strings.Fields(string(stat[bytes.LastIndexByte(stat, ')')+1:])) // the program's name may hold anything
	return len(after) > 0 && after[0] != "Z" && after[0] != "X"
}
