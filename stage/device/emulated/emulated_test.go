package emulated_test

import (
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/avgpipe/avgpipe/stage/device"
	"github.com/avgpipe/avgpipe/stage/device/emulated"
	"github.com/avgpipe/avgpipe/stage/device/ref"
	"github.com/avgpipe/avgpipe/stage/stagetest"
)

func open(t *testing.T, c emulated.Config) *emulated.Device {
	t.Helper()
	return closes(t)(emulated.Open(c))
}

func TestStagesPredict(t *testing.T) {
	stagetest.Predictions(t, over(t, emulated.Config{}, ref.New()))
}

func over(t *testing.T, c emulated.Config, on device.Device) *emulated.Device {
	t.Helper()
	return closes(t)(emulated.Over(c, on))
}

// closes closes a device after the test, which must free everything.
func closes(t *testing.T) func(*emulated.Device, error) *emulated.Device {
	t.Helper()
	return func(d *emulated.Device, err error) *emulated.Device {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			for range 2 {
				if err := d.Close(); err != nil {
					t.Errorf("close: %v", err)
				}
			}
			if d.Held() != 0 {
				t.Errorf("%d bytes are held after Close", d.Held())
			}
		})
		return d
	}
}

func alloc(t *testing.T, d device.Device, typ device.Type, n int) device.Mem {
	t.Helper()
	m, err := d.Alloc(typ, n)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

func TestOperandsAreChecked(t *testing.T) {
	stagetest.Emulator(t, func() device.Device { return open(t, emulated.Config{}) })
}

// One that computes is a device like any other.
func TestADeviceThatComputesConforms(t *testing.T) {
	stagetest.Device(t, func() device.Device { return over(t, emulated.Config{}, ref.New()) })
}

func TestMemoryIsCountedAndNotTaken(t *testing.T) {
	const tib = 1 << 40
	d := open(t, emulated.Config{Memory: tib})
	a := alloc(t, d, device.F32, tib/8) // half of it, many times what the machine has
	b := alloc(t, d, device.BF16, 3)
	if d.Held() != tib/2+6 {
		t.Errorf("held %d bytes, want %d", d.Held(), tib/2+6)
	}
	_, err := d.Alloc(device.I32, tib/8)
	if err == nil {
		t.Fatal("more than the memory was given out")
	}
	for _, part := range []string{"allocate 137438953472 elements of i32", "549755813888 bytes asked for", "549755813882 bytes of 1099511627776 available", "2 allocations"} {
		if !strings.Contains(err.Error(), part) {
			t.Errorf("error %q does not say %q", err, part)
		}
	}
	d.Free(a)
	d.Free(device.Mem{})
	if d.Held() != 6 || d.Peak() != tib/2+6 {
		t.Errorf("held %d and at most %d bytes, want 6 and %d", d.Held(), d.Peak(), tib/2+6)
	}
	alloc(t, d, device.I32, tib/4-2)
	if _, err := d.Alloc(device.F32, 1); err == nil {
		t.Error("2 bytes are left, and 4 were given out")
	}
	for _, n := range []int{-1, math.MaxInt64 / 8} {
		if _, err := d.Alloc(device.F32, n); err == nil {
			t.Errorf("Alloc(%d) succeeded", n)
		}
	}
	d.Free(b)
}

func TestWhatIsReadIsZero(t *testing.T) {
	d := open(t, emulated.Config{})
	m := alloc(t, d, device.F32, 4)
	d.Upload(m, device.FloatBytes([]float32{1, 2, 3, 4}))
	read := []float32{5, 5}
	d.Download(device.FloatBytes(read), m.Slice(1, 2))
	if !slices.Equal(read, []float32{0, 0}) {
		t.Errorf("read %v, want zeros", read)
	}
}

// spent is how long the operations of f take, on a device that has nothing else to do.
func spent(t *testing.T, d *emulated.Device, f func()) time.Duration {
	t.Helper()
	if err := d.Synchronize(); err != nil {
		t.Fatal(err)
	}
	before := d.Spent()
	f()
	return d.Spent() - before
}

func TestOperationsTakeWhatTheirWorkCosts(t *testing.T) {
	d := open(t, emulated.Config{FLOPs: 1e9, Bandwidth: 1e6, Launch: time.Microsecond})
	x, y := alloc(t, d, device.F32, 100), alloc(t, d, device.F32, 100)
	half := alloc(t, d, device.BF16, 100)
	ids, table := alloc(t, d, device.I32, 10), alloc(t, d, device.F32, 10000)
	image := device.ConvolutionShape{B: 1, Height: 10, Width: 10, In: 1, Out: 1, Kernel: 3, Stride: 1, Padding: 1}
	window := alloc(t, d, device.F32, 9)
	for _, tt := range []struct {
		name string
		want time.Duration
		call func()
	}{
		{"a product of 10 by 10 by 10", 2 * time.Microsecond, func() { d.Do(&device.MatMul{C: x, A: y, B: x, Product: device.Product{M: 10, N: 10, K: 10}}) }},
		{"a sum of 100 elements", 800 * time.Microsecond, func() { d.Do(&device.Axpy{Y: x, A: 1, X: y}) }},
		{"a rounding to half the bytes", 600 * time.Microsecond, func() { d.Do(&device.Copy{Y: half, X: x}) }},
		{"10 rows out of a long table", 840 * time.Microsecond, func() { d.Do(&device.Embed{Out: x, Tokens: table, IDs: ids, T: 10}) }},
		{"a window of 9 on 100 pixels", 1800 * time.Nanosecond, func() { d.Do(&device.Convolution{Y: x, X: y, Weight: window, ConvolutionShape: image}) }},
		{"causal attention of 10 positions", 2 * time.Microsecond, func() {
			d.Do(&device.Attention{Out: x, Q: y, K: y, V: y, AttentionShape: device.AttentionShape{B: 1, T: 10, H: 2, S: 5}})
		}},
	} {
		if got, want := spent(t, d, tt.call), tt.want+time.Microsecond; got != want {
			t.Errorf("%s takes %v, want %v", tt.name, got, want)
		}
	}
	free := open(t, emulated.Config{})
	z := alloc(t, free, device.F32, 100)
	if got := spent(t, free, func() {
		free.Do(&device.MatMul{C: z, A: z, B: z, Product: device.Product{M: 10, N: 10, K: 10}})
		free.Do(&device.Scale{X: z, A: 2})
	}); got != 0 {
		t.Errorf("a device of no cost takes %v", got)
	}
}

func TestGivenTimesStandForWholePasses(t *testing.T) {
	const ms = time.Millisecond
	d := open(t, emulated.Config{
		Bandwidth: 1e6, Stages: []emulated.Times{{Forward: ms, Backward: 3 * ms}, {Forward: 5 * ms, Step: 7 * ms}},
	})
	x := alloc(t, d, device.F32, 250) // a millisecond to read
	for _, tt := range []struct {
		work device.Work
		want time.Duration
	}{
		{device.Work{Kind: device.ForwardWork}, ms},
		{device.Work{Kind: device.ForwardWork, Stage: 1}, 5 * ms},
		{device.Work{Kind: device.BackwardWork}, 3 * ms},
		{device.Work{Kind: device.BackwardWork, Again: true}, 4 * ms},
		{device.Work{Kind: device.BackwardInputWork}, 3 * ms / 2},
		{device.Work{Kind: device.BackwardInputWork, Again: true}, 5 * ms / 2},
		{device.Work{Kind: device.BackwardWeightWork}, 3 * ms / 2},
		{device.Work{Kind: device.UpdateWork, Stage: 1}, 7 * ms},
		{device.Work{Kind: device.UpdateWork}, ms}, // not given: what its operations take
	} {
		if got := spent(t, d, func() { d.Begin(tt.work); d.Do(&device.Scale{X: x, A: 2}) }); got != tt.want {
			t.Errorf("%+v takes %v, want %v", tt.work, got, tt.want)
		}
	}
	if got := spent(t, d, func() { d.Do(&device.Scale{X: x, A: 2}) }); got != ms {
		t.Errorf("an operation between passes takes %v, want %v", got, ms)
	}
}

func TestSynchronizeWaitsForWhatWasSpent(t *testing.T) {
	d := open(t, emulated.Config{Stages: []emulated.Times{{Forward: 2 * time.Millisecond}}})
	if err := d.Attach(); err != nil {
		t.Fatal(err)
	}
	start := time.Now()
	for range 3 {
		d.Begin(device.Work{Kind: device.ForwardWork})
		if err := d.Synchronize(); err != nil {
			t.Fatal(err)
		}
	}
	if took := time.Since(start); took < 6*time.Millisecond {
		t.Errorf("three passes of 2 ms took %v", took)
	}
}

func TestConfigNamesWhatIsWrong(t *testing.T) {
	for want, c := range map[string]emulated.Config{
		"memory":    {Memory: -1},
		"flops":     {FLOPs: math.NaN()},
		"bandwidth": {Bandwidth: math.Inf(1)},
		"launch":    {Launch: -1},
		"stage 1":   {Stages: []emulated.Times{{}, {Step: -1}}},
	} {
		if _, err := emulated.Open(c); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%+v: error %v, want one about %s", c, err, want)
		}
	}
}

func TestSlowestDevicesTakeATimeAndNoneLess(t *testing.T) {
	d := open(t, emulated.Config{Bandwidth: 1e-300})
	x, err := d.Alloc(device.F32, 4)
	if err != nil {
		t.Fatal(err)
	}
	for range 3 {
		before := d.Spent()
		if d.Upload(x, make([]byte, x.Bytes())); d.Spent()-before < 24*time.Hour {
			t.Errorf("an upload at no pace takes %v", d.Spent()-before)
		}
	}
}

func TestPassesThatFollowAtOnceTakeTheirTimes(t *testing.T) {
	d := open(t, emulated.Config{Stages: []emulated.Times{{Forward: 2 * time.Millisecond, Backward: 3 * time.Millisecond}}})
	d.Begin(device.Work{Kind: device.ForwardWork})
	d.Begin(device.Work{Kind: device.BackwardWork})
	if d.Spent() != 5*time.Millisecond {
		t.Errorf("two passes took %v, want 5ms", d.Spent())
	}
}
