package main

import (
	"github.com/avgpipe/avgpipe/stage"
	"github.com/avgpipe/avgpipe/stage/flat"
)

// nothing is a stage that computes nothing. It is also its own data. What a run without evaluations does not call it does not have.
type nothing struct {
	stage.Stage
	index, stages int
	vector        flat.Host
}

func (n nothing) Shape() stage.Shape {
	s := stage.Shape{
		First: n.index == 0, Last: n.index == n.stages-1, Samples: 1,
		InputBytes: boundaryBytes, OutputBytes: boundaryBytes, Parameters: 1,
	}
	if s.Last {
		s.LabelBytes = 4
	}
	return s
}

func (nothing) Forward(stage.Micro, stage.Boundary, []byte, stage.Boundary) error { return nil }

func (nothing) Backward(stage.Micro, stage.Part, stage.Boundary, stage.Boundary) error {
	return nil
}

func (nothing) Buffers() stage.Buffers                   { return stage.Buffers{} }
func (nothing) Ready() stage.Event                       { return nil }
func (nothing) Loss() (float64, error)                   { return 0, nil }
func (nothing) SquaredNorm(sum float64) (float64, error) { return sum, nil }
func (nothing) Step(stage.Hyper, flat.Vector) error      { return nil }
func (nothing) ZeroGradients()                           {}
func (n nothing) Parameters() flat.Vector                { return n.vector }
func (n nothing) Gradients() flat.Vector                 { return n.vector }
func (nothing) State() []flat.Vector                     { return nil }
func (nothing) Ties() []stage.Tie                        { return nil }
func (nothing) NewVector() (flat.Vector, error)          { return flat.NewHost(1), nil }
func (nothing) Close() error                             { return nil }
func (nothing) Fill(uint64, int, []byte, []byte) error   { return nil }
