//go:build cuda && cgo && linux && amd64

package cuda_test

import (
	"bytes"
	"errors"
	"os"
	"os/exec"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/avgpipe/avgpipe/stage/device"
	"github.com/avgpipe/avgpipe/stage/device/cuda"
	"github.com/avgpipe/avgpipe/stage/device/cuda/cudatest"
)

// openTwo opens devices on two processors.
func openTwo(t *testing.T, library cudatest.Driver) (from, to *cuda.Device) {
	t.Helper()
	t.Setenv("FAKE_CUDA_DEVICES", "2")
	from, to = openOn(t, library, 0), openOn(t, library, 1)
	t.Cleanup(func() {
		if err := errors.Join(from.Close(), to.Close()); err != nil {
			t.Error(err)
		}
	})
	return from, to
}

func openOn(t *testing.T, library cudatest.Driver, ordinal int) *cuda.Device {
	t.Helper()
	return openWith(t, cuda.Config{Library: library.Path(), Libraries: []string{library.Directory()}, Ordinal: ordinal})
}

// transports opens all ways to copy, and closes them before the devices.
func transports(t *testing.T, library cudatest.Driver, from, to *cuda.Device, bytes int) []*cuda.Transport {
	t.Helper()
	all, err := cuda.Transports(from, to, cuda.Config{Libraries: []string{library.Directory()}}, bytes)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		for _, one := range all {
			if err := one.Close(); err != nil {
				t.Error(err)
			}
		}
	})
	return all
}

func names(all []*cuda.Transport) (names []string) {
	for _, t := range all {
		names = append(names, t.Name())
	}
	return names
}

// Memory of processors lies apart: a kernel that is given another's faults.
func TestAKernelReachesNoOtherProcessor(t *testing.T) {
	library := cudatest.Library(t)
	t.Setenv("FAKE_CUDA_DEVICES", "2")
	from, to := openOn(t, library, 0), openOn(t, library, 1)
	if from.Shares(to) || !cuda.Apart(from, to) || cuda.Apart(from, from) || !cuda.Apart(device.NewQueues([]device.Queue{from}), to) {
		t.Error("devices on two processors are not apart, or one is apart from itself")
	}
	x := alloc(t, from, 1000)
	to.Do(&device.Scale{X: x, A: 2})
	says(t, to.Synchronize(), "IllegalAddress")
	says(t, to.Close(), "IllegalAddress")
	if err := from.Close(); err != nil {
		t.Errorf("the other processor: %v", err)
	}
}

// Every transport copies what there is when it is called, all of it and nothing beside it.
func TestTransportsCopy(t *testing.T) {
	library := cudatest.Library(t)
	from, to := openTwo(t, library)
	const most = 3 << 20 // of 4 bytes: more than crosses the host at once
	all := transports(t, library, from, to, 4*most)
	if want := []string{"peer copies", "page-locked memory", "NCCL 2.19.3"}; !slices.Equal(names(all), want) {
		t.Fatalf("the transports are %q, expected %q", names(all), want)
	}
	src, dst := alloc(t, from, most), alloc(t, to, most+2)
	for i, way := range all {
		for round, n := range []int{most, 1, 1000, 1000} {
			sent, got := make([]float32, n), make([]float32, n+2)
			for j := range sent {
				sent[j] = float32(j + 10*round + i)
			}
			to.Do(&device.Zero{X: dst})
			if err := to.Synchronize(); err != nil {
				t.Fatal(err)
			}
			if err := device.Write(from, src.Slice(0, n), device.FloatBytes(sent)); err != nil {
				t.Fatal(err)
			}
			if err := way.Copy(dst.Slice(1, n), src.Slice(0, n)); err != nil {
				t.Fatal(err)
			}
			if err := device.Read(to, device.FloatBytes(got), dst.Slice(0, n+2)); err != nil {
				t.Fatal(err)
			}
			if want := append(append([]float32{0}, sent...), 0); !bytes.Equal(device.FloatBytes(got), device.FloatBytes(want)) {
				t.Errorf("%s of %d elements copies something else", way.Name(), n)
			}
		}
	}
	if library.Calls("cuMemcpyPeerAsync") != 4 || library.Calls("ncclGroupEnd") != 4 || library.Calls("cuStreamWaitEvent") < 4 {
		t.Error("the transports do not use what their names say")
	}
	says(t, all[1].Copy(dst, src.Slice(0, 1)), "copy 4 bytes to memory of 12582920")
}

// Processors that cannot reach each other's memory copy too.
func TestWithoutPeerAccessTheDriverCopies(t *testing.T) {
	library := cudatest.Library(t)
	library.Apart()
	from, to := openTwo(t, library)
	all := transports(t, library, from, to, 4000)
	if all[0].Name() != "copies through the host by the driver" {
		t.Errorf("the first transport is %q", all[0].Name())
	}
	if err := all[0].Copy(alloc(t, to, 1000), alloc(t, from, 1000)); err != nil {
		t.Error(err)
	}
}

// A copy that fails names the way, the bytes and both processors.
func TestACopyThatFailsNamesBothProcessors(t *testing.T) {
	library := cudatest.Library(t)
	from, to := openTwo(t, library)
	dst, src := alloc(t, to, 1000), alloc(t, from, 1000)
	all := transports(t, library, from, to, 4000)
	for i, one := range []struct{ fails, says string }{{"cuMemcpyPeerAsync", "by peer copies: LaunchFailed"}, {"", ""}, {"ncclGroupEnd", `by NCCL 2.19.3: send and receive: NCCL says "invalid usage" (719)`}} {
		library.Fail(one.fails, cudatest.LaunchFailed)
		if err := all[i].Copy(dst, src); one.fails != "" {
			says(t, err, "copy 4000 bytes from GPU 0 (no GPU, fibers", "to GPU 1 (no GPU, fibers", one.says)
		} else if err != nil {
			t.Error(err)
		}
		library.Fail(one.fails, 0)
		if err := all[i].Copy(dst, src); err != nil {
			t.Errorf("a copy after one that failed: %v", err)
		}
	}
}

// Where a transport cannot be opened the others are, and the error says why.
func TestATransportThatDoesNotOpenIsLeftOut(t *testing.T) {
	library := cudatest.Library(t)
	from, to := openTwo(t, library)
	library.Fail("ncclCommInitAll", 2)
	all, err := cuda.Transports(from, to, cuda.Config{Libraries: []string{library.Directory()}}, 4000)
	says(t, err, "copy from GPU 0", "to GPU 1", "make communicators: NCCL says", "unhandled system error")
	if want := []string{"peer copies", "page-locked memory"}; !slices.Equal(names(all), want) {
		t.Errorf("the transports are %q, expected %q", names(all), want)
	}
	for _, one := range all {
		if err := one.Close(); err != nil {
			t.Error(err)
		}
	}
}

// A copy that does not end is ended, when its time is over or NCCL says that it has failed.
func TestACopyThatHangsIsEnded(t *testing.T) {
	library := cudatest.Library(t)
	from, to := openTwo(t, library)
	dst, src := alloc(t, to, 1000), alloc(t, from, 1000)
	for _, one := range []struct {
		limit time.Duration
		fails string
		says  string
	}{{50 * time.Millisecond, "", "NCCL 2.19.3: not ended after 50ms"}, {time.Minute, "ncclCommGetAsyncError", "unhandled system error"}} {
		t.Cleanup(cuda.LimitCopies(one.limit))
		all := transports(t, library, from, to, 4000)
		library.Fail("ncclGroupEnd", cudatest.Stall)
		library.Fail(one.fails, 2)
		says(t, all[2].Copy(dst, src), one.says)
		library.Fail("ncclGroupEnd", 0)
		library.Fail(one.fails, 0)
		if library.Calls("ncclCommAbort") == 0 {
			t.Error("the communicators are not aborted")
		}
		if err := all[0].Copy(dst, src); err != nil {
			t.Error(err)
		}
	}
}

// NCCL's operations on communicators of one processor must not overlap, whatever they are: copies end before others begin.
func TestOperationsOfNCCLRunOneAfterTheOther(t *testing.T) {
	library := cudatest.Library(t)
	from, to := openTwo(t, library)
	there, back := transports(t, library, from, to, 4000), transports(t, library, to, from, 4000)
	a, b := alloc(t, from, 1000), alloc(t, to, 1000)
	copies := func(by *cuda.Transport, dst, src device.Mem) {
		for range 20 {
			if err := by.Copy(dst, src); err != nil {
				t.Error(err)
			}
		}
	}
	var all sync.WaitGroup
	all.Go(func() { copies(there[2], b, a) })
	all.Go(func() { copies(back[2], a, b) })
	all.Go(func() {
		for range 5 {
			others, err := cuda.Transports(from, to, cuda.Config{Libraries: []string{library.Directory()}}, 4000)
			for _, one := range others {
				err = errors.Join(err, one.Close())
			}
			if err != nil {
				t.Error(err)
			}
		}
	})
	all.Wait()
	if overlaps := library.Calls("overlap of NCCL"); overlaps != 0 || library.Calls("ncclGroupEnd") != 40 {
		t.Errorf("%d operations overlap others", overlaps)
	}
}

// A call of NCCL that hangs is left to itself. From then on all links copy without NCCL, of which nothing is called any more in the process. Each
// case has one of its own.
func TestNCCLThatHangsIsNotUsedAnyMore(t *testing.T) {
	hangs, inside := os.LookupEnv("FAKE_NCCL_HANGS")
	if !inside {
		for _, hangs := range []string{"ncclCommInitAll", "ncclCommAbort", "ncclCommDestroy"} {
			command := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^"+t.Name()+"$", "-test.count=1")
			command.Env = append(os.Environ(), "FAKE_NCCL_HANGS="+hangs)
			if out, err := command.CombinedOutput(); err != nil {
				t.Errorf("%s hangs: %v\n%s", hangs, err, out)
			}
		}
		return
	}
	library := cudatest.Library(t)
	from, to := openTwo(t, library)
	dst, src := alloc(t, to, 1000), alloc(t, from, 1000)
	there, other := transports(t, library, from, to, 4000), transports(t, library, from, to, 4000)
	open := func() error {
		without, err := cuda.Transports(from, to, cuda.Config{Libraries: []string{library.Directory()}}, 4000)
		if want := []string{"peer copies", "page-locked memory"}; !slices.Equal(names(without), want) {
			t.Errorf("the transports are %q, expected %q", names(without), want)
		}
		for _, one := range without {
			err = errors.Join(err, one.Close())
		}
		return err
	}
	unlimited := cuda.LimitCopies(300 * time.Millisecond)
	library.Fail(hangs, cudatest.Stall)
	switch hangs {
	case "ncclCommInitAll":
		says(t, open(), "make communicators of NCCL: not ended after 300ms; its streams stay", "NCCL is not used any more")
	case "ncclCommAbort":
		library.Fail("ncclGroupEnd", cudatest.Stall)
		says(t, there[2].Copy(dst, src), "not ended after 300ms; end the copy: not ended after 300ms; its streams stay", "NCCL is not used any more")
	case "ncclCommDestroy":
		says(t, there[2].Close(), "close the copies from GPU 0", "destroy the communicators: not ended after 300ms", "NCCL is not used any more")
	}
	unlimited()
	copies := library.Calls("ncclGroupEnd")
	says(t, other[2].Copy(dst, src), "not ended after 300ms", "NCCL is not used any more in this process, and its communicators stay")
	says(t, open(), "copy from GPU 0", "NCCL is not used any more")
	if library.Calls("ncclGroupEnd") != copies || library.Calls("overlap of NCCL") != 0 {
		t.Error("NCCL is called beside what hangs")
	}
	if err := other[0].Copy(dst, src); err != nil {
		t.Error(err)
	}
}
