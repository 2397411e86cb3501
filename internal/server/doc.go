// Package server is the HTTP API of avgpiped on a unix socket: it decodes, limits, streams and encodes. What the answers
// say comes from a Backend, which package node implements.
//
//	listener, err := server.Listen(ctx, "/run/avgpipe/avgpiped.sock", "avgpipe")
//	err = server.Serve(ctx, server.Config{Listener: listener, Backend: node, Log: log})
//
// Everyone who may open the socket may use the whole API. What a submitted job reads is checked against the rights of the
// user who submits it (Peer).
package server
