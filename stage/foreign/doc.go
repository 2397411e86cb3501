// Package foreign computes modules of a user's framework in an interpreter of his, beside the stages of this process.
//
// A Process is the interpreter: it runs an archive of Python (stub/), which is part of this program and imports nothing of it. It answers
// requests over a socket, one at a time; docs/worker-protocol.md says which. Tensors lie in an Arena that both processes map, so none is
// copied to be sent. A Device is a device of this process whose memory is the arena, and whose operations on modules are requests:
//
//	p, _ := foreign.Start(ctx, foreign.Config{Interpreter: "/usr/bin/python3"})
//	built, _ := p.Build(foreign.Program{Path: "train.py", Function: "build"})
//	probed, _ := p.Probe(foreign.Probe{Inputs: ...})
//	layers := layer.NewModules(foreign.Modules(built, inputs, probed, samples))
//	d := foreign.Over(p, cpu)
//
// Nothing that the interpreter says is believed beyond the protocol: what breaks it ends the process with a ProtocolError. A ProgramError is the
// user's, and the process goes on. An interpreter that ends or hangs gives an EndedError or a HangError. Package foreigntest checks a stub.
//
// Parameters, gradients, optimizer, averaging and rounds are those of a stage like any other: a module is an operation.
package foreign
