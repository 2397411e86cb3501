package main

import (
	"bytes"
	"errors"
	"fmt"
	"time"

	"github.com/avgpipe/avgpipe/pipeline"
	"github.com/avgpipe/avgpipe/stage/device"
	"github.com/avgpipe/avgpipe/stage/device/cuda"
	"github.com/avgpipe/avgpipe/stage/model"
)

// checkLinks copies between the GPU and the next one by every transport, measures them, and trains a small GPT-2 on both to the bits of one.
func checkLinks(o options) (values, error) {
	all, err := cuda.Processors(o.config())
	if err != nil {
		return nil, err
	}
	if len(all) < 2 {
		return values{"headline": "one GPU: nothing to link"}, nil
	}
	next := o
	next.ordinal = (o.ordinal + 1) % len(all)
	found := values{}
	from, err := o.open(1)
	if err != nil {
		return nil, err
	}
	to, err := next.open(1)
	if err == nil {
		for _, way := range []struct {
			name     string
			from, to device.Device
		}{{fmt.Sprintf("%d -> %d", o.ordinal, next.ordinal), from, to}, {fmt.Sprintf("%d -> %d", next.ordinal, o.ordinal), to, from}} {
			err = errors.Join(err, o.copyBetween(way.from, way.to, way.name, found))
		}
		err = errors.Join(err, to.Close())
	}
	if err = errors.Join(err, from.Close()); err != nil {
		return found, err
	}
	return found, o.trainLinked(len(all), found)
}

// linkSizes are the bytes that are copied: as a boundary of a small model, and as one of a large one.
func (o options) linkSizes() []int {
	if o.toy {
		return []int{4 << 10}
	}
	return []int{1 << 20, 64 << 20}
}

// copyBetween checks and measures every transport from one GPU to another.
func (o options) copyBetween(from, to device.Device, name string, found values) (err error) {
	sizes := o.linkSizes()
	most := sizes[len(sizes)-1]
	transports, left := cuda.Transports(from, to, o.config(), most)
	if left != nil {
		found["left out, "+name] = left.Error()
	}
	src, err := from.Alloc(device.F32, most/4)
	if err != nil {
		return err
	}
	dst, err := to.Alloc(device.F32, most/4)
	if err = errors.Join(err, to.Synchronize()); err != nil { // its zeros are there before a copy
		return err
	}
	for _, t := range transports {
		for i, size := range sizes {
			took, failed := o.copies(t, from, to, dst.Slice(0, size/4), src.Slice(0, size/4), byte(i+1))
			if failed != nil {
				err = errors.Join(err, fmt.Errorf("%s, %s: %w", name, t.Name(), failed))
				break
			}
			speed := float64(size) / took.Seconds() / 1e9
			found[fmt.Sprintf("%s, %s, %d KiB, GB/s", name, t.Name(), size>>10)] = speed
			if best, _ := found["fastest"].(float64); speed > best {
				found["fastest"], found["headline"] = speed, fmt.Sprintf("%s: %.3g GB/s by %s", name, speed, t.Name())
			}
		}
		err = errors.Join(err, t.Close())
	}
	return err
}

// copies checks that a transport copies, and returns how long a copy takes.
func (o options) copies(t *cuda.Transport, from, to device.Device, dst, src device.Mem, fill byte) (time.Duration, error) {
	sent, got := bytes.Repeat([]byte{fill, 2, 3, 64}, src.Bytes()/4), make([]byte, src.Bytes())
	if err := device.Write(from, src, sent); err != nil {
		return 0, err
	}
	if err := t.Copy(dst, src); err != nil {
		return 0, err
	}
	if err := device.Read(to, got, dst); err != nil {
		return 0, err
	}
	if !bytes.Equal(sent, got) {
		return 0, fmt.Errorf("%d bytes arrive as others", len(sent))
	}
	begun, n := time.Now(), 0
	for ; n == 0 || time.Since(begun).Seconds() < o.seconds/4; n++ {
		if err := t.Copy(dst, src); err != nil {
			return 0, err
		}
	}
	return max(1, time.Since(begun)/time.Duration(n)), nil
}

// trainLinked trains the same on one GPU and on two, as two stages.
func (o options) trainLinked(gpus int, found values) error {
	m, err := model.Build("gpt2", map[string]any{"n_layer": 4, "n_head": 2, "n_embd": 16, "n_positions": 8, "vocab_size": 32, "resid_pdrop": 0.1})
	if err != nil {
		return err
	}
	l := layout{training: training{model: m, samples: 2, micros: 4, rate: 0.01}, pipelines: 2, stages: 1, steps: 10, fill: sequence}
	if o.toy {
		l.steps = 3
	}
	want, err := o.run(l)
	if err != nil {
		return fmt.Errorf("train on one GPU: %w", err)
	}
	l.stages, l.gpus = 2, gpus
	told, err := o.run(l)
	if err != nil {
		return fmt.Errorf("train on two GPUs: %w", err)
	}
	for _, r := range told.routes {
		found[fmt.Sprintf("stage %d -> %d by", r.From, r.To)] = r.Transport
	}
	if differ := told.differ(want.numbers); differ > 0 || len(want.numbers) != l.pipelines*l.steps {
		return fmt.Errorf("two GPUs: %d of %d steps have other losses or norms than on one, expected the same bits", differ, len(want.numbers))
	}
	return nil
}

// differ is how many steps have other numbers.
func (t *trace) differ(want map[[2]uint64][2]float64) (steps int) {
	for at, numbers := range want {
		if t.numbers[at] != numbers {
			steps++
		}
	}
	return steps
}

func (t *trace) route(r pipeline.RouteReport) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.routes = append(t.routes, r)
}

// transports opens the ways to copy between two of the devices.
func (o options) transports(devices []device.Device) func(from, to, bytes int) []pipeline.Transport {
	return func(from, to, bytes int) (all []pipeline.Transport) {
		found, _ := cuda.Transports(devices[from], devices[to], o.config(), bytes) // what is left out is in the report already
		for _, t := range found {
			all = append(all, t)
		}
		return all
	}
}
