package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"

	"github.com/avgpipe/avgpipe/internal/logging"
	"github.com/avgpipe/avgpipe/internal/node"
	"github.com/avgpipe/avgpipe/internal/wire/ucx"
)

// devOrphanAfter ends workers of a --dev daemon that was killed: nobody will adopt them.
const devOrphanAfter = 5 * time.Second

// daemonOptions are the flags of the program.
type daemonOptions struct {
	config string
	dev    bool
}

// runDaemon runs the daemon until ctx ends.
func runDaemon(ctx context.Context, o daemonOptions, out io.Writer) error {
	switch {
	case o.dev && o.config != "":
		return configError(errors.New("--dev has a configuration of its own; drop --config or --dev"))
	case o.dev:
		return runDev(ctx, out)
	case o.config == "":
		return configError(errors.New("say how to run: --config FILE for a service, --dev to try it; see avgpiped --help"))
	}
	hangups := make(chan os.Signal, 1)
	signal.Notify(hangups, syscall.SIGHUP) // before anything that takes time: it would end the program
	defer signal.Stop(hangups)
	c, err := readConfig(o.config)
	if err != nil {
		return err
	}
	r := newReloader(o.config, c)
	r.log = logging.New(out, r.level)
	running, end := context.WithCancel(ctx)
	var following sync.WaitGroup
	following.Go(func() { r.follow(running, hangups) })
	defer following.Wait()
	defer end()
	return runNode(ctx, c, func() node.Limits { return *r.limits.Load() }, r.log, nil)
}

// runDev runs a node whose state goes with it. It ends in order when its terminal goes away, too.
func runDev(ctx context.Context, out io.Writer) (err error) {
	ctx, stop := signal.NotifyContext(ctx, syscall.SIGHUP)
	defer stop()
	dir, err := os.MkdirTemp("", "avgpiped-dev-")
	if err != nil {
		return fmt.Errorf("make the temporary state directory: %w", err)
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	c := defaultConfig()
	c.StateDir, c.Socket, c.OrphanAfter = dir, filepath.Join(dir, "avgpiped.sock"), devOrphanAfter
	encoding := zap.NewDevelopmentEncoderConfig()
	encoding.EncodeTime = zapcore.TimeEncoderOfLayout("15:04:05.000")
	log := zap.New(zapcore.NewCore(zapcore.NewConsoleEncoder(encoding), zapcore.Lock(zapcore.AddSync(out)), c.level()))
	return runNode(ctx, c, c.limits, log, func() {
		fmt.Fprintf(out, "avgpiped --dev is ready; its state goes with it. In another shell:\n\n"+ //nolint:errcheck // for show
			"  export AVGPIPE_SOCKET=%s\n  avgpipectl submit JOB.yaml --watch\n\n", c.Socket)
	})
}

// runNode runs the node that a configuration describes.
func runNode(ctx context.Context, c config, limits func() node.Limits, log *zap.Logger, ready func()) error {
	n, err := nodeConfig(c, log)
	if err != nil {
		return err
	}
	asks := prober{n.InspectCommand[0], &c, probeBound, extendStart}
	found, err := asks.probe(ctx)
	if err != nil {
		return unlessTold(ctx, err)
	}
	found.tell(log)
	c.UCX.announce(log)
	found.configure(&n)
	asks.step = untold
	n.Graphics = (&renewer{prober: &asks, log: log, found: found}).arguments
	n.Limits, n.OnReady = limits, ready
	return unlessTold(ctx, c.explain(node.Run(ctx, n)))
}

// unlessTold is an error, unless it is but that the program was told to end.
func unlessTold(ctx context.Context, err error) error {
	if ctx.Err() != nil && errors.Is(err, context.Cause(ctx)) {
		return nil
	}
	return err
}

// nodeConfig is what a configuration means on this host. The node's workers are this program again.
func nodeConfig(c config, log *zap.Logger) (node.Config, error) {
	self, err := os.Executable()
	if err != nil {
		return node.Config{}, fmt.Errorf("find this program, which the workers run: %w", err)
	}
	cores, err := node.AvailableCores()
	if err != nil {
		return node.Config{}, err
	}
	if c.Cores > len(cores) {
		return node.Config{}, c.explain(&node.KeyError{Key: "cores", Err: fmt.Errorf("cores is %d; this process may use %d", c.Cores, len(cores))})
	}
	if c.Cores > 0 {
		cores = cores[:c.Cores]
	}
	if err := c.UCX.check(ucx.Built); err != nil {
		return node.Config{}, c.explain(err)
	}
	if err := checkLaunches(); err != nil {
		return node.Config{}, err
	}
	graphics := c.graphicsArguments()
	n := node.Config{
		StateDir: c.StateDir, Socket: c.Socket, Group: string(c.Group), MetricsAddress: string(c.Metrics), Listen: string(c.Listen), Advertise: string(c.Advertise), AdminGroup: string(c.AdminGroup), UCXDevices: string(c.UCX), NodeID: c.Node, Cores: cores,
		SelectGPUs:    c.selection(),
		WorkerCommand: append([]string{self, "worker"}, graphics...), TuneCommand: append([]string{self, "tune"}, graphics...), InspectCommand: []string{self, "inspect"}, ExportCommand: []string{self, "export"}, SpeedCommand: []string{self, "speed"},
		Version: version, Log: log,
	}
	if n.Buckets, err = c.buckets(); err != nil {
		return node.Config{}, c.explain(err)
	}
	if n.Sources, err = c.sources(n.Buckets); err != nil {
		return node.Config{}, c.explain(err)
	}
	n.DataCache = node.Room{Bytes: c.DataCache.bytes, Share: c.DataCache.share}
	return n, c.explain(n.Validate())
}
