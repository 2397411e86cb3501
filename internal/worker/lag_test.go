package worker

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/avgpipe/avgpipe/internal/wire"
	"github.com/avgpipe/avgpipe/stage/device"
	"github.com/avgpipe/avgpipe/stage/device/emulated"
	"github.com/avgpipe/avgpipe/stage/device/ref"
)

// What was late before training began, such as the loading of weights, is not late in it; and what comes after training is no part of its time.
func TestLagIsOfTheTrainingTime(t *testing.T) {
	began := time.Now()
	p := &progress{before: time.Hour}
	if shares := p.lag([]time.Duration{time.Second}, began); shares != nil {
		t.Errorf("before training began it was late by %v of it", shares)
	}
	p.training(1, []time.Duration{time.Second, 0}, began)
	late := []time.Duration{3 * time.Second, time.Second}
	if found, want := p.lag(late, began.Add(10*time.Second)), []float64{0.2, 0.1}; !slices.Equal(found, want) {
		t.Errorf("late by %v of the time, want %v", found, want)
	}
	p.finished(began.Add(20 * time.Second))
	if found, want := p.lag(late, began.Add(time.Hour)), []float64{0.1, 0.05}; !slices.Equal(found, want) {
		t.Errorf("late by %v of the time, want %v", found, want)
	}
}

func TestALateDeviceIsNoted(t *testing.T) {
	stages := []hosted{{index: 2}, {index: 5}}
	for _, shares := range [][]float64{nil, {0, 0.02}} {
		if note := lagNote(stages, shares); note != "" {
			t.Errorf("of shares %v is said: %s", shares, note)
		}
	}
	if note := lagNote(stages, []float64{0.03, 0.456}); !strings.Contains(note, "stage 5 was late for 45.6% of the training time, and 2% count") {
		t.Errorf("noted: %s", note)
	}
}

// slow is a device on which an upload takes a moment.
type slow struct{ *ref.Device }

func (s slow) Upload(dst device.Mem, src []byte) {
	<-time.After(time.Millisecond)
	s.Device.Upload(dst, src)
}

func TestOnlyEmulatedDevicesLag(t *testing.T) {
	dev, err := emulated.Over(emulated.Config{}, slow{ref.New()})
	if err != nil {
		t.Fatal(err)
	}
	m, err := dev.Alloc(device.F32, 1)
	if err != nil {
		t.Fatal(err)
	}
	dev.Upload(m, make([]byte, 4))
	if err := dev.Synchronize(); err != nil {
		t.Fatal(err)
	}
	on := []*hostedDevice{{Device: ref.New()}, {Device: dev, row: 1}}
	h := &host{devices: on, network: wire.NewNetwork(func(int, int) wire.Shape { return wire.Shape{} })}
	for _, d := range on {
		h.stages = append(h.stages, hosted{on: d})
	}
	late := h.lags()
	if _, emulates := h.lag(&h.stages[0]); emulates || late[0] != 0 {
		t.Errorf("a device that computes in its own time is late by %v", late[0])
	}
	if _, emulates := h.lag(&h.stages[1]); !emulates || late[1] < time.Millisecond {
		t.Errorf("a device of no time whose upload took a millisecond is late by %v", late[1])
	}
	if err := dev.Close(); err != nil {
		t.Error(err)
	}
}
