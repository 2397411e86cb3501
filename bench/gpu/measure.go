package main

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/avgpipe/avgpipe/bench/internal/report"
	"github.com/avgpipe/avgpipe/stage"
	"github.com/avgpipe/avgpipe/stage/device"
	"github.com/avgpipe/avgpipe/stage/device/cuda"
	"github.com/avgpipe/avgpipe/stage/device/pick"
	"github.com/avgpipe/avgpipe/stage/model"
)

// onGPU runs a measurement on a device of its own.
func (o options) onGPU(measure func(dev device.Device, found values) error) (values, error) {
	dev, err := o.open(1)
	if err != nil {
		return nil, err
	}
	found := values{}
	err = measure(dev, found)
	return found, errors.Join(err, dev.Close())
}

// timed is how long one of many calls takes, which run one behind the other for o.seconds at least, after one that is not counted.
func (o options) timed(dev device.Device, call func()) (seconds float64, err error) {
	call()
	if err := dev.Synchronize(); err != nil {
		return 0, err
	}
	for n := 1; ; n *= 2 {
		begun := time.Now()
		for range n {
			call()
		}
		if err := dev.Synchronize(); err != nil {
			return 0, err
		}
		if took := time.Since(begun).Seconds(); took >= o.seconds || n >= 1<<20 {
			return took / float64(n), nil
		}
	}
}

// operands allocates memory, and returns what frees it.
func operands(dev device.Device, t device.Type, lengths ...int) (all []device.Mem, free func(), err error) {
	free = func() {
		for _, m := range all {
			dev.Free(m)
		}
	}
	for _, n := range lengths {
		m, err := dev.Alloc(t, n)
		if err != nil {
			free()
			return nil, nil, err
		}
		all = append(all, m)
	}
	return all, free, nil
}

// productRate is the rate of large square products with sums in float32, in operations a second. Operands are random: processors draw less power
// for zeros, and are faster.
func (o options) productRate(dev device.Device, t device.Type) (float64, error) {
	n := 8192
	if o.toy {
		n = 32
	}
	factors, free, err := operands(dev, t, n*n, n*n)
	if err != nil {
		return 0, err
	}
	defer free()
	sums, release, err := operands(dev, device.F32, n*n) // of another type they would be rounded by a kernel of ours
	if err != nil {
		return 0, err
	}
	defer release()
	numbers := make([]float32, n*n)
	for i := range numbers {
		numbers[i] = float32(int32(device.Mix(uint64(i)))) / (1 << 31)
	}
	if err := device.Write(dev, sums[0], device.FloatBytes(numbers)); err != nil {
		return 0, err
	}
	for _, m := range factors {
		dev.Do(&device.Copy{Y: m, X: sums[0]})
	}
	op := &device.MatMul{C: sums[0], A: factors[0], B: factors[1], Product: device.Product{M: n, N: n, K: n}}
	took, err := o.timed(dev, func() { dev.Do(op) })
	flops, _ := device.Cost(op)
	return flops / took, err
}

// measurePeak measures products of both types.
func measurePeak(o options) (values, error) {
	return o.onGPU(func(dev device.Device, found values) error {
		for _, t := range []device.Type{device.BF16, device.F32} {
			rate, err := o.productRate(dev, t)
			if err != nil {
				return err
			}
			found[t.String()+"_tflops"] = rate / 1e12
		}
		found["headline"] = fmt.Sprintf("bf16 %.4g TFLOP/s, f32 (no TF32) %.4g TFLOP/s", found["bf16_tflops"], found["f32_tflops"])
		return nil
	})
}

// memoryRates are the rates of a sum of vectors and of a copy within the device's memory: bytes that are read and those that are written.
func (o options) memoryRates(dev device.Device) (add, copied float64, err error) {
	n := 256 << 20
	if o.toy {
		n = 4096
	}
	all, free, err := operands(dev, device.F32, n, n)
	if err != nil {
		return 0, 0, err
	}
	defer free()
	for _, one := range []struct {
		op   device.Op
		rate *float64
	}{{&device.Add{Out: all[0], A: all[0], B: all[1]}, &add}, {&device.Copy{Y: all[0], X: all[1]}, &copied}} {
		took, err := o.timed(dev, func() { dev.Do(one.op) })
		if err != nil {
			return 0, 0, err
		}
		_, moved := device.Cost(one.op)
		*one.rate = float64(moved) / took
	}
	return add, copied, nil
}

func measureBandwidth(o options) (values, error) {
	return o.onGPU(func(dev device.Device, found values) error {
		add, copied, err := o.memoryRates(dev)
		found["add_gb_per_s"], found["copy_gb_per_s"] = add/1e9, copied/1e9
		found["headline"] = fmt.Sprintf("%.4g GB/s of x = x + y, %.4g GB/s of copies", add/1e9, copied/1e9)
		return err
	})
}

// measureTransfers copies page-locked memory and memory of Go to the device and back.
func measureTransfers(o options) (values, error) {
	return o.onGPU(func(dev device.Device, found values) error {
		n := 64 << 20
		if o.toy {
			n = 4096
		}
		all, free, err := operands(dev, device.F32, n)
		if err != nil {
			return err
		}
		defer free()
		var locked []byte
		if allocate := device.HostAllocatorOf(dev); allocate != nil {
			locked = allocate(4 * n)
		}
		if locked == nil {
			return fmt.Errorf("no %d bytes of page-locked memory", 4*n)
		}
		plain := make([]byte, 4*n)
		for _, c := range []struct {
			name string
			call func()
		}{
			{"locked_to_device_gb_per_s", func() { dev.Upload(all[0], locked) }},
			{"locked_to_host_gb_per_s", func() { dev.Download(locked, all[0]) }},
			{"plain_to_device_gb_per_s", func() { dev.Upload(all[0], plain) }},
			{"plain_to_host_gb_per_s", func() { dev.Download(plain, all[0]) }},
		} {
			took, err := o.timed(dev, c.call)
			if err != nil {
				return err
			}
			found[c.name] = float64(4*n) / took / 1e9
		}
		found["headline"] = fmt.Sprintf("page-locked: %.3g GB/s to the device, %.3g GB/s back", found["locked_to_device_gb_per_s"], found["locked_to_host_gb_per_s"])
		return nil
	})
}

// large is GPT-2 124M and the micro-batch whose operations are measured.
func (o options) large() (training, error) {
	j := training{samples: 8, micros: 1, compute: device.BF16, rate: 1e-4}
	config := map[string]any{"n_layer": 12, "n_head": 12, "n_embd": 768, "n_positions": 1024, "vocab_size": 50257}
	if o.toy {
		j.samples, config = 1, map[string]any{"n_layer": 1, "n_head": 2, "n_embd": 16, "n_positions": 8, "vocab_size": 32}
	}
	var err error
	j.model, err = model.Build("gpt2", config)
	return j, err
}

// kind is what a step's operations of one kind take.
type kind struct {
	Name    string  `json:"name"`
	Count   int     `json:"count"`
	Seconds float64 `json:"seconds"`
	FLOPs   float64 `json:"flops"`
	Bytes   float64 `json:"bytes"`
	Ideal   float64 `json:"roofline_s"`  // at the measured rates of products and of memory
	Share   float64 `json:"of_roofline"` // Ideal over Seconds
}

// stopwatch is a device that runs each operation several times and takes the time. What is computed is wrong then.
type stopwatch struct {
	device.Device
	repeats          int // 0: once, without a watch
	products, memory float64
	kinds            map[string]*kind
	err              error
}

// Do implements device.Device.
func (s *stopwatch) Do(op device.Op) {
	s.Device.Do(op)
	if s.repeats == 0 {
		return
	}
	s.err = cmp.Or(s.err, s.Synchronize())
	begun := time.Now()
	for range s.repeats {
		s.Device.Do(op)
	}
	s.err = cmp.Or(s.err, s.Synchronize())
	took := time.Since(begun).Seconds() / float64(s.repeats)
	name := device.NameOf(op)
	if p, ok := op.(*device.MatMul); ok {
		name = fmt.Sprintf("%s %dx%dx%d", name, p.M, p.N, p.K)
	}
	if s.kinds[name] == nil {
		s.kinds[name] = &kind{Name: name}
	}
	k := s.kinds[name]
	flops, moved := device.Cost(op)
	k.Count++
	k.Seconds += took
	k.FLOPs += flops
	k.Bytes += float64(moved)
	k.Ideal += max(flops/s.products, float64(moved)/s.memory)
}

// repeats is how often a stopwatch runs an operation.
func (o options) repeats() int {
	if o.toy {
		return 2
	}
	return 10
}

// blindly is a step whatever its numbers are: those of operations that ran several times need not be finite.
func (t *trainer) blindly(step uint64) error {
	_, noLoss := t.gradient(step, scattered)
	_, noNorm := t.SquaredNorm(0)
	for _, err := range []error{noLoss, noNorm} {
		if _, infinite := errors.AsType[*stage.NonFiniteError](err); err != nil && !infinite {
			return err
		}
	}
	return t.Step(stage.Hyper{Step: step, LearningRate: t.rate, GradScale: 1}, nil)
}

// measureOperations times a step of GPT-2 operation by operation.
func measureOperations(o options) (values, error) {
	return o.onGPU(func(dev device.Device, found values) (err error) {
		s := &stopwatch{Device: dev, kinds: map[string]*kind{}}
		if s.products, err = o.productRate(dev, device.BF16); err != nil {
			return err
		}
		if s.memory, _, err = o.memoryRates(dev); err != nil {
			return err
		}
		j, err := o.large()
		if err != nil {
			return err
		}
		t, err := newTrainer(s, j)
		if err != nil {
			return err
		}
		_, err = t.step(0, scattered) // makes what operations need
		if err == nil {
			s.repeats = o.repeats()
			err = t.blindly(1)
		}
		s.repeats = 0
		if err = errors.Join(err, s.err, t.Close()); err != nil {
			return err
		}
		all := slices.SortedFunc(maps.Values(s.kinds), func(a, b *kind) int { return cmp.Compare(b.Seconds, a.Seconds) })
		var seconds, ideal float64
		for _, k := range all {
			k.Share = k.Ideal / k.Seconds
			seconds += k.Seconds
			ideal += k.Ideal
		}
		found["kinds"], found["seconds"], found["of_roofline"] = all, seconds, ideal/seconds
		found["headline"] = fmt.Sprintf("%.4g ms of a step of %d samples, %.2g of it the roofline's; most: %s", 1e3*seconds, j.samples, ideal/seconds, all[0].Name)
		return nil
	})
}

// measureLaunches trains a model so small that launches are what takes time, by graphs and operation by operation.
func measureLaunches(o options) (values, error) {
	found := values{}
	layers, steps := 12, 50
	if o.toy {
		layers, steps = 1, 4
	}
	m, err := model.Build("gpt2", map[string]any{"n_layer": layers, "n_head": 2, "n_embd": 32, "n_positions": 16, "vocab_size": 32})
	if err != nil {
		return nil, err
	}
	j := training{model: m, samples: 1, micros: 4, rate: 1e-4}
	for _, launches := range []cuda.Launches{cuda.Graphs, cuda.Operations} {
		c := o.config()
		c.Launches = launches
		dev, _, err := pick.Open("gpu", pick.Config{Graphics: c})
		if err != nil {
			return nil, err
		}
		counted := &counter{Device: dev}
		on := dev
		if launches == cuda.Operations {
			on = counted
		}
		_, seconds, err := train(on, j, steps, scattered)
		if err = errors.Join(err, dev.Close()); err != nil {
			return nil, err
		}
		found[string(launches)+"_step_ms"] = 1e3 * report.Median(seconds[steps/2:])
		if launches == cuda.Operations {
			found["operations_a_step"] = counted.operations / steps
		}
	}
	found["passes_a_step"] = 2 * j.micros
	found["headline"] = fmt.Sprintf("a step of %d operations: %.3g ms by graphs, %.3g ms one by one", found["operations_a_step"], found["graphs_step_ms"], found["operations_step_ms"])
	return found, nil
}

// counter is a device that counts its operations.
type counter struct {
	device.Device
	operations int
}

// Do implements device.Device.
func (c *counter) Do(op device.Op) {
	c.operations++
	c.Device.Do(op)
}
