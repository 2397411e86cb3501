package main

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/avgpipe/avgpipe/bench/internal/rig"
	"github.com/avgpipe/avgpipe/internal/api"
	"github.com/avgpipe/avgpipe/tuner"
)

// configuration is a method on a setting, with all counts.
type configuration struct {
	method
	setting
	pipelines int // 0: tuning chooses them
	micros    int
}

func (c configuration) String() string {
	n := "auto"
	if c.pipelines > 0 {
		n = strconv.Itoa(c.pipelines)
	}
	return fmt.Sprintf("%s,%v,N=%s,M=%d", c.name, c.setting, n, c.micros)
}

// given is the number of pipelines that a user says; 0 where tuning chooses.
func (c configuration) given() int {
	if c.side == averaged {
		return 0
	}
	return c.pipelines
}

// onOne reports whether each device has the whole model.
func (c configuration) onOne() bool { return c.schedule == "" }

// shape is what a configuration holds and sends, as the daemon tells before it runs.
type shape struct {
	pipelines    int
	schedule     string
	deviceBytes  []int64 // of each device
	messageBytes int64   // the largest between two stages, of one micro-batch
	weightBytes  int64   // of the model
}

// laid are the overrides that lay the job over emulated devices, without their times.
func (c configuration) laid(w workload) []string {
	stages, micros, name := c.devices, c.micros, c.schedule
	if c.onOne() { // of K replicas that are alike, one
		stages, micros, name = 1, c.micros/c.devices, "1f1b"
	}
	pipelines := "auto"
	if c.pipelines > 0 {
		pipelines = strconv.Itoa(c.pipelines)
	}
	set := []string{
		"devices.kind=emulated", "devices.emulated.compute=true", "devices.emulated.memory=4e9",
		"stages=" + strconv.Itoa(stages), "schedule=" + name, "micro_batches=" + strconv.Itoa(micros), "train.batch=" + strconv.Itoa(micros*w.micro),
		"pipelines=" + pipelines, "tuning_share=0",
	}
	if c.chunks > 1 {
		set = append(set, "chunks="+strconv.Itoa(c.chunks))
	}
	return set
}

// timed are the overrides that give the devices and links their times. A device has as many stages as the method has chunks.
func (c configuration) timed(s shape, unit time.Duration) []string {
	stage := unit / time.Duration(max(1, c.chunks))
	if c.onOne() {
		stage = unit * time.Duration(c.devices)
	}
	step := time.Duration(update * float64(stage))
	set := []string{
		"devices.emulated.forward=" + milliseconds(stage), "devices.emulated.backward=" + milliseconds(2*stage), "devices.emulated.step=" + milliseconds(step),
	}
	// Averaging has no time of its own: it takes what it moves, averagedBytes of a weight.
	if s.weightBytes > 0 && c.averages() {
		moved := float64(s.weightBytes) / 4 * averagedBytes / float64(c.devices)
		set = append(set, "devices.emulated.bandwidth="+strconv.FormatFloat(moved/step.Seconds(), 'g', 6, 64))
	}
	if c.link > 0 && s.messageBytes > 0 && !c.onOne() {
		set = append(set, "devices.emulated.link.bandwidth="+strconv.FormatFloat(float64(s.messageBytes)/(c.link*unit.Seconds()), 'g', 6, 64))
	}
	return set
}

// averagedBytes is what averaging moves of each weight, in bytes: the weights, the update and the center are read, the weights and the
// sum written.
const averagedBytes = 20

func milliseconds(d time.Duration) string {
	return strconv.FormatFloat(float64(d)/float64(time.Millisecond), 'g', 6, 64) + "ms"
}

// shapeOf asks the daemon what a configuration would hold and send. What tuning chooses is not known by then: the configuration must have counts.
func (w workload) shapeOf(ctx context.Context, d *rig.Daemon, o options, c configuration) (s shape, err error) {
	at := *d
	at.File = w.file(o.jobFiles)
	if c.schedule == "auto" {
		c.schedule = "1f1b" // its messages are those of all
	}
	if c.pipelines == 0 {
		c.pipelines = 1
	}
	answer, err := at.DryRunFile(ctx, append(c.laid(w), c.timed(shape{}, o.forward)...)...)
	if err != nil {
		return s, err
	}
	if answer.Report == nil {
		return s, errors.New("the dry run tells no memory")
	}
	return shapeIn(answer.Report.Chosen), nil
}

// shapeIn is what a candidate holds and sends.
func shapeIn(c tuner.Candidate) shape {
	s := shape{pipelines: c.Pipelines, schedule: c.Schedule, deviceBytes: make([]int64, c.Devices)}
	for _, stage := range c.Predicted.Stages {
		s.deviceBytes[stage.Device] += stage.Memory.OnDevice()
		s.weightBytes += stage.Memory.Gradients / int64(c.Pipelines) // of which there is one version
	}
	for _, l := range c.Predicted.Links {
		s.messageBytes = max(s.messageBytes, l.Bytes/int64(2*c.MicroBatches))
	}
	return s
}

// lag is by how much the latest device was late, as a part of the time.
func lag(s api.JobStatus) float64 {
	most := 0.0
	for _, stage := range s.StageStatus {
		if stage.Lag != nil {
			most = max(most, *stage.Lag)
		}
	}
	return most
}

// void says why times of a run do not count; empty where they do.
func void(lag float64) string {
	if lag > api.LagBound {
		return fmt.Sprintf("a device was late for %.1f%% of the time, more than %.0f%%: the cores could not keep up", 100*lag, 100*api.LagBound)
	}
	return ""
}
