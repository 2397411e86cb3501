// Package server is the HTTP API of avgpiped on a unix socket: it decodes, limits, streams and encodes. What the answers
// say comes from a Backend, which package node implements.
//
//	listener, err := server.Listen(ctx, "/run/avgpipe/avgpiped.sock", "avgpipe")
//	err = server.Serve(ctx, server.Config{Listener: listener, Backend: node, Log: log})
//
// Everyone who may open the socket may submit jobs, list them and see the nodes. What else there is about a job is for its
// owner and for administrators (rights.go); every route declares which. What a submitted job reads is checked against the
// rights of the user who submits it (Peer).
package server
