// Gpu is what is asked of a graphics processor of NVIDIA the moment one is at hand, as one program that needs nothing but its driver.
// `gpu-smoke` checks and measures, step by step, each in a process of its own; `gpu-smoke bench` trains against PyTorch. See README.md.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/avgpipe/avgpipe/bench/internal/report"
	"github.com/avgpipe/avgpipe/stage/device"
	"github.com/avgpipe/avgpipe/stage/device/cuda"
	"github.com/avgpipe/avgpipe/stage/device/pick"
)

// options are the program's flags.
type options struct {
	driver, libraries string
	ordinal           int
	seconds           float64
	limit             time.Duration
	toy               bool
	out, parts        string // of the smoke test
	request           string // of a step: JSON
	bench             bench
}

func main() {
	mode := "smoke"
	if len(os.Args) > 1 && !strings.HasPrefix(os.Args[1], "-") {
		mode = os.Args[1]
		os.Args = append(os.Args[:1], os.Args[2:]...)
	}
	var o options
	flag.StringVar(&o.driver, "driver", "", "the driver's library (default: libcuda.so.1 where the loader finds it)")
	flag.StringVar(&o.libraries, "libraries", "", "directories with cuBLAS and cuDNN, separated by colons")
	flag.IntVar(&o.ordinal, "gpu", 0, "the number of the GPU")
	flag.Float64Var(&o.seconds, "seconds", 1, "how long each measurement lasts at least")
	flag.DurationVar(&o.limit, "limit", 10*time.Minute, "when a step is ended")
	flag.BoolVar(&o.toy, "toy", false, "tiny sizes, for a driver that runs kernels on the host")
	flag.StringVar(&o.out, "out", "gpu-smoke.json", "where smoke writes its report")
	flag.StringVar(&o.parts, "part", "", "the steps or the parts that run, separated by commas (default: all)")
	flag.StringVar(&o.request, "request", "", "what a step is to do (JSON); used by the program itself")
	o.bench.flags()
	switch mode {
	case "bench":
		report.Main("gpu", o.compare)
	case "smoke", "step":
		flag.Parse()
		ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
		run := smoke
		if mode == "step" {
			run = child
		}
		err := run(ctx, o)
		stop()
		if err != nil {
			fmt.Fprintf(os.Stderr, "gpu-smoke: %v\n", err)
			os.Exit(1)
		}
	default:
		fmt.Fprintf(os.Stderr, "gpu-smoke: %q: expected smoke, bench or flags\n", mode)
		os.Exit(2)
	}
}

// config is where the GPU and its libraries are.
func (o options) config() cuda.Config {
	c := cuda.Config{Ordinal: o.ordinal, Library: o.driver}
	if o.libraries != "" {
		c.Libraries = strings.Split(o.libraries, ":")
	}
	return c
}

// open opens the GPU with so many queues.
func (o options) open(queues int) (device.Device, error) {
	c := o.config()
	c.Queues = queues
	dev, _, err := pick.Open("gpu", pick.Config{Graphics: c})
	if err != nil && !cuda.Built {
		err = cuda.ErrAbsent
	}
	return dev, err
}

// arguments are the flags of a step's process.
func (o options) arguments() []string {
	return []string{
		"-driver", o.driver, "-libraries", o.libraries, "-gpu", strconv.Itoa(o.ordinal), "-seconds", fmt.Sprint(o.seconds),
		fmt.Sprintf("-toy=%t", o.toy),
	}
}
