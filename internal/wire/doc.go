// Package wire carries frames between the stages of a pipeline: a channel inside one process (NewPair), TCP between nodes
// (Listen, Dial). Both pass the same conformance suite, and a run gives the same bits over either.
//
// Every link is one pipeline's, between two stages, for one purpose, and over TCP has a connection of its own: the
// pipelines of a job never wait in each other's queues, and the kernel does the flow control. A connection starts with
// a handshake that names the job, the generation and the link, so a process left over from an earlier placement is
// refused before it can send a byte of data; every frame repeats the generation.
//
// Sending and receiving over TCP run on two goroutines per end, beside compute. Payloads come from a pool per link: after
// the first batch no frame allocates.
//
//	lower, upper, err := wire.NewPair(spec)                            // both stages in this process
//
//	l, err := wire.Listen("10.0.0.2:7946", wire.Config{Job: "7"})      // the node of the upper stage
//	upper, err := l.Accept(ctx, link, spec)
//	lower, err := wire.Dial(ctx, "10.0.0.2:7946", link, spec, config)  // the node of the lower stage
//
//	f := lower.NewFrame(header, len)
//	fill(f.Payload)
//	err = lower.Send(ctx, f)                                           // takes the payload over
//	g, err := upper.Receive(ctx)
//	use(g.Payload)
//	g.Release()
//
// The bytes on the wire are specified in docs/formats.md.
package wire
