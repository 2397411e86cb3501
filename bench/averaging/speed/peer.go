package main

import (
	"bytes"
	"context"
	_ "embed" // the script of the peer
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"

	"golang.org/x/sync/errgroup"
)

//go:embed ddp.py
var peerScript []byte

// peerPort is where rank 0 of the peer listens.
const peerPort = "29500"

// said is what rank 0 prints.
type said struct {
	Torch      string  `json:"torch"`
	Parameters int     `json:"parameters"`
	Steps      int     `json:"steps"`
	Step       float64 `json:"step_s"`
	Alone      float64 `json:"alone_s"`
	CPU        float64 `json:"cpu_s"`
	Sent       float64 `json:"sent_bytes"`
}

// arguments are those of the peer's script.
func (s setting) arguments(data string, m method) []string {
	var all []string
	for _, one := range []struct {
		name  string
		value int
	}{
		{"layers", s.layers},
		{"width", s.width},
		{"heads", s.heads},
		{"sequence", s.sequence},
		{"vocabulary", s.vocabulary},
		{"batch", s.batch},
		{"warmup", s.warmup},
		{"least", s.least},
	} {
		all = append(all, "--"+one.name, strconv.Itoa(one.value))
	}
	all = append(all, "--data", data, "--bucket", fmt.Sprint(m.bucket), "--seconds", fmt.Sprint(s.lasts.Seconds()))
	if s.tied {
		all = append(all, "--tied")
	}
	if s.dictated > 0 {
		of := s.dictated.Seconds() / (s.forwardFLOPs + s.backwardFLOPs)
		all = append(all, "--forward", fmt.Sprint(of*s.forwardFLOPs), "--backward", fmt.Sprint(of*s.backwardFLOPs), "--head", fmt.Sprint(s.head))
	}
	return all
}

// ddp runs the peer on the hosts of the cluster, whose daemons have nothing to do meanwhile.
func (c *cluster) ddp(ctx context.Context, s setting, m method, python string) (r reading, err error) {
	script := filepath.Join(c.dir, "ddp.py")
	if err := os.WriteFile(script, peerScript, 0o600); err != nil {
		return r, err
	}
	ctx, cancel := context.WithTimeout(ctx, stepBound+stepBound+s.lasts)
	defer cancel()
	g, ctx := errgroup.WithContext(ctx)
	outputs := make([]bytes.Buffer, len(c.nodes))
	for rank, n := range c.nodes {
		command := n.command("env", append([]string{
			"OMP_NUM_THREADS=1", "OPENBLAS_NUM_THREADS=1", "GLOO_SOCKET_IFNAME=eth0", "MASTER_ADDR=" + c.nodes[0].on.Address, "MASTER_PORT=" + peerPort,
			"RANK=" + strconv.Itoa(rank), "WORLD_SIZE=" + strconv.Itoa(len(c.nodes)), python, script,
		}, s.arguments(c.corpus(), m)...)...)
		g.Go(func() error { return run(ctx, command, &outputs[rank]) })
	}
	if err := g.Wait(); err != nil {
		return r, fmt.Errorf("PyTorch's DistributedDataParallel: %w", err)
	}
	var a said
	if err := json.Unmarshal(outputs[0].Bytes(), &a); err != nil {
		return r, fmt.Errorf("PyTorch's DistributedDataParallel: rank 0 says %q, expected a line of JSON: %w", outputs[0].String(), err)
	}
	if a.Parameters != s.parameters {
		return r, fmt.Errorf("PyTorch's DistributedDataParallel trains %d parameters, expected the %d of the jobs", a.Parameters, s.parameters)
	}
	return reading{step: a.Step, alone: a.Alone, cpu: a.CPU, sent: a.Sent}, nil
}

// run runs a process of the peer to its end, or kills it when ctx ends first.
func run(ctx context.Context, command *exec.Cmd, output *bytes.Buffer) error {
	var complaint bytes.Buffer
	command.Stdout, command.Stderr = output, &complaint
	if err := command.Start(); err != nil {
		return err
	}
	stop := context.AfterFunc(ctx, func() { _ = command.Process.Signal(syscall.SIGKILL) })
	defer stop()
	if err := command.Wait(); err != nil {
		return errors.Join(context.Cause(ctx), fmt.Errorf("%w: %s", err, complaint.Bytes()[max(0, complaint.Len()-2000):]))
	}
	return nil
}
