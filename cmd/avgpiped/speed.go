package main

import (
	"encoding/json"
	"errors"
	"io"
	"runtime"
	"time"

	"github.com/spf13/cobra"

	"github.com/avgpipe/avgpipe/internal/node"
	"github.com/avgpipe/avgpipe/stage/device"
	"github.com/avgpipe/avgpipe/stage/device/pick"
)

// What the measurement of a core multiplies: matrices of 256 KiB each, which the second cache of a core holds, for a fifth of a second.
const (
	speedSize = 256
	speedTime = 200 * time.Millisecond
)

// newSpeedCommand makes the verb by which the daemon learns how fast a core of its host is, in a process of its own.
func newSpeedCommand() *cobra.Command {
	return hidden("speed", "Measure how fast a core multiplies matrices", func(cmd *cobra.Command) error {
		return measureSpeed(cmd.OutOrStdout())
	})
}

// measureSpeed prints the speed of one core as a node.Speed.
func measureSpeed(out io.Writer) (err error) {
	runtime.LockOSThread() // as a device asks for
	defer runtime.UnlockOSThread()
	dev, name, err := pick.Open("cpu", pick.Config{Threads: 1})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, dev.Close()) }()
	var of [3]device.Mem // A, B and C
	for i := range of {
		if of[i], err = dev.Alloc(device.F32, speedSize*speedSize); err != nil {
			return err
		}
	}
	product := &device.MatMul{A: of[0], B: of[1], C: of[2], Product: device.Product{M: speedSize, N: speedSize, K: speedSize}}
	dev.Do(product) // it makes its code
	if err := dev.Synchronize(); err != nil {
		return err
	}
	began, done := time.Now(), 0
	for time.Since(began) < speedTime {
		dev.Do(product)
		if err := dev.Synchronize(); err != nil {
			return err
		}
		done++
	}
	gflops := 2 * speedSize * speedSize * speedSize * float64(done) / time.Since(began).Seconds() / 1e9
	return json.NewEncoder(out).Encode(node.Speed{GFLOPs: gflops, Device: name})
}
