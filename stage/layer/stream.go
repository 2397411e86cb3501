package layer

import "github.com/avgpipe/avgpipe/stage/device"

// Stream is a tensor (R,Width) at the boundaries of layers. Several cross a boundary of an encoder-decoder together: the
// encoder's output, its mask and what the decoder begins with all pass the layers that have no use for them.
type Stream struct {
	Name  string
	Type  device.Type // F32, or I32: ids or a mask
	Width int
	Limit int // of ids; see Port
	// operand: products read or write it, in BF16 where they compute in it.
	operand bool
}

// port is the stream for a micro-batch of size s.
func (x Stream) port(s Size) Port {
	p := Port{Name: x.Name, Type: x.Type, Elements: s.Rows() * x.Width, Limit: x.Limit}
	if x.operand {
		p.Type = s.Compute
	}
	return p
}

func streamPorts(streams []Stream, s Size) []Port {
	ports := make([]Port, len(streams))
	for i, x := range streams {
		ports[i] = x.port(s)
	}
	return ports
}
