// Package ucx carries the frames of links over UCX: RDMA where hosts have it, else TCP, and shared memory inside one host. It is built with the tag ucx, which
// needs Debian's libucx-dev, and opens the library while the program runs: without it, links stay on their connections.
//
// What goes over UCX is neither encrypted nor authenticated, and whoever reaches its ports can write into the process. So it runs on the network
// devices that an administrator names alone; a link's connection, with TLS, agrees on it, watches over it and ends it (wire.Paths).
//
//	t, err := ucx.New("eth1,mlx5_0:1")
//	defer t.Close()                           // after the links
//	c.Paths = &wire.Paths{Transport: t}       // of a wire.Config
//
// Each path is a worker of UCX with a goroutine that moves its messages. It waits with Go's poller for the worker's descriptor, so that an idle link takes no
// processor and no thread.
package ucx
