package device

// Scratch is how much of the host's memory the operations of a stage take beside their operands: weights that devices lay out anew, and what
// attention adds up. Products are not counted: which of them lay out their weights depends on the processor. The zero Scratch is of none.
type Scratch struct {
	shared int         // the largest: operations run one after the other
	own    map[int]int // of recurrences, by cells: they keep their weights from step to step
}

// Add counts an operation.
func (s *Scratch) Add(op Op) {
	switch o := op.(type) {
	case *Convolution:
		s.share(o.Weight.Bytes())
	case *ConvolutionBackward:
		s.share(o.Weight.Bytes())
	case *ConvolutionBackwardWeight:
		s.share(o.DWeight.Bytes())
	case *Attention:
		s.shareHeads(o.AttentionShape)
	case *AttentionBackward:
		s.shareHeads(o.AttentionShape)
	case *LSTM:
		if s.own == nil {
			s.own = map[int]int{}
		}
		s.own[o.H] = 2 * o.Weight.Bytes() // the weights of the forward, and of the backward
	}
}

// shareHeads is of the heads of queries that share a head of keys, and of the gradients of that.
func (s *Scratch) shareHeads(a AttentionShape) {
	a = a.WithDefaults()
	s.share(F32.Bytes() * (a.H/a.KV + 2) * a.T * a.S)
}

func (s *Scratch) share(bytes int) { s.shared = max(s.shared, bytes) }

// Bytes is all of it.
func (s *Scratch) Bytes() int {
	bytes := s.shared
	for _, own := range s.own {
		bytes += own
	}
	return bytes
}
