package stagetest

import (
	"fmt"

	"github.com/avgpipe/avgpipe/stage/device"
)

// Masks is a device that notes what the passes on it drop out: the factor of each element, 0 or 1/(1-rate), of each mask once,
// in the order in which the forward draws them. Another implementation that is given them computes the same values.
type Masks struct {
	device.Device
	Drawn [][]float32
	known map[string]bool
}

// NewMasks notes the masks of passes on a device whose memory is the host's.
func NewMasks(d device.Device) *Masks { return &Masks{Device: d, known: map[string]bool{}} }

// note keeps a mask of n elements, of which element i draws number(i).
func (m *Masks) note(d device.Dropout, n int, number func(i int) int) {
	name := fmt.Sprint(d.Key, d.First, n)
	if d.Rate == 0 || m.known[name] {
		return
	}
	m.known[name] = true
	threshold, scale := d.Derived()
	mask := make([]float32, n)
	for i := range mask {
		at := uint64(number(i))
		if device.Draws(d.Key, at/4)[at%4] >= threshold {
			mask[i] = scale
		}
	}
	m.Drawn = append(m.Drawn, mask)
}

// Dropout implements device.Device.
func (m *Masks) Dropout(y, x device.Mem, d device.Dropout) {
	m.note(d, x.Len(), func(i int) int { return d.First + i/d.Columns/d.Share*d.Columns + i%d.Columns })
	m.Device.Dropout(y, x, d)
}

// DropRows implements device.Device: the mask has an element for each row.
func (m *Masks) DropRows(y, x, ids device.Mem, d device.Dropout) {
	m.note(d, d.Rows, func(i int) int { return int(ids.I32()[i]) })
	m.Device.DropRows(y, x, ids, d)
}

// Attention implements device.Device: the mask is (B,H,T,T).
func (m *Masks) Attention(out, saved, q, k, v device.Mem, a device.Attention) {
	m.note(a.Dropout, a.B*a.H*a.T*a.T, func(i int) int { return a.Dropout.First + i })
	m.Device.Attention(out, saved, q, k, v, a)
}
