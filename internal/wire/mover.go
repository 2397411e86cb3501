package wire

import (
	"fmt"

	"github.com/avgpipe/avgpipe/internal/trace"
	"github.com/avgpipe/avgpipe/stage/device"
)

// Mover is one direction of a link between two devices of this process that do not share memory. What is sent in memory of the one arrives in memory
// of the other, where it was copied to. The memory that was sent is given back when its copy has ended; frames with a payload pass as they are.
type Mover struct {
	lane
	move func(dst, src device.Mem) error
	free chan device.Mem // what nobody holds of the memory that copies go to
	give func(Frame)     // puts a frame's back, as a value made once
}

// NewMover starts a mover. move returns when the copy has ended, or fails; then so does the link. A frame waits until one of the memories in `to` is free, which
// are as long as what is sent. Close ends the mover.
func NewMover(move func(dst, src device.Mem) error, to []device.Mem) *Mover {
	m := &Mover{move: move, free: make(chan device.Mem, len(to))}
	m.give = func(f Frame) { m.free <- f.Memory } // there is room: it came from there
	for _, dst := range to {
		m.free <- dst
	}
	m.init()
	go m.run(m.pass)
	return m
}

func (m *Mover) carry(p inFlightFrame) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.add(p)
}

// pass copies what a frame carries, and delivers it.
func (m *Mover) pass(p *inFlightFrame) bool {
	if p.frame.Memory.Absent() {
		p.left = trace.Now()
		p.deliver()
		return true
	}
	select {
	case <-m.stop:
		p.drop()
		return false
	case dst := <-m.free:
		p.left = trace.Now()
		sent, arrives := p.frame, Lend(p.frame.Header, dst, m.give)
		err := m.move(dst, sent.Memory)
		sent.Release()
		if p.frame = arrives; err != nil {
			p.state.close(fmt.Errorf("move %v: %w", sent.Header, err))
		}
		p.deliver()
	}
	return true
}
