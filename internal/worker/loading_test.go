package worker

import (
	"os/exec"
	"testing"
	"time"
)

// TestLoadingCountsWhatInterpretersCompute: a framework may be imported for minutes, while the worker itself does nothing.
func TestLoadingCountsWhatInterpretersCompute(t *testing.T) {
	begin := loading()
	c := exec.CommandContext(t.Context(), "/bin/sh", "-c", "while :; do :; done")
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	const wanted = 0.5
	for deadline := time.Now().Add(time.Minute); loading().CPUSeconds < begin.CPUSeconds+wanted; time.Sleep(50 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("within a minute of a child that computes, loading went from %v to %v s of CPU", begin.CPUSeconds, loading().CPUSeconds)
		}
	}
	running := loading()
	if err := c.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = c.Wait() // it was killed
	if ended := loading(); ended.CPUSeconds < running.CPUSeconds-0.1 {
		t.Errorf("when the child had ended, loading went back from %v to %v s of CPU", running.CPUSeconds, ended.CPUSeconds)
	}
}
