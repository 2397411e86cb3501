package agent

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"strconv"
	"syscall"
	"time"

	"github.com/avgpipe/avgpipe/internal/process"
	"github.com/avgpipe/avgpipe/internal/worker/control"
)

// Links configures where workers accept links from other nodes.
type Links struct {
	// Host is the address of this host that other nodes reach. Empty: the host is alone, and nothing is opened.
	Host string
	// First and Last bound the ports, both included. 0: any that is free.
	First, Last int
	// Hold is how long a port stays open for a worker that does not start. Default 2 min: the first worker of a job starts when all others
	// have their addresses, after their nodes have fetched the shards that they begin with.
	Hold time.Duration
	// TLS is what the workers' links identify themselves with. Nil: they are not encrypted.
	TLS *control.LinkTLS
	// UCX names the network devices on which workers' links may go over UCX, commas between them. Empty: none.
	UCX string
}

const holdLink = 2 * time.Minute

// Validate reports what cannot be used.
func (l Links) Validate() error {
	if l.First == 0 && l.Last == 0 {
		return nil
	}
	if l.First < 1 || l.Last > 65535 || l.First > l.Last {
		return fmt.Errorf("the ports of links, %d to %d: expected two numbers from 1 to 65535, the smaller first", l.First, l.Last)
	}
	return nil
}

// openLink is a listener that waits for its worker.
type openLink struct {
	generation uint64
	file       *os.File
	timer      *time.Timer
}

func (o *openLink) close() {
	o.timer.Stop()
	_ = o.file.Close() // nothing was written
}

// Listen implements Agent.
func (l *Local) Listen(ctx context.Context, job string, generation uint64) (string, error) {
	if l.config.Links.Host == "" {
		return "", nil
	}
	listener, err := l.config.Links.listen(ctx)
	if err != nil {
		return "", fmt.Errorf("open a port for the links of job %s: %w", job, err)
	}
	file, err := listener.File() // of its own: the port stays open
	if err = errors.Join(err, listener.Close()); err != nil {
		return "", fmt.Errorf("open a port for the links of job %s: %w", job, err)
	}
	_, port, err := net.SplitHostPort(listener.Addr().String())
	if err != nil {
		return "", errors.Join(err, file.Close())
	}
	hold := l.config.Links.Hold
	if hold == 0 {
		hold = holdLink
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.ctx.Err() != nil {
		return "", errors.Join(fmt.Errorf("open a port for the links of job %s: the daemon is stopping", job), file.Close())
	}
	if before := l.links[job]; before != nil {
		before.close()
	}
	o := &openLink{generation: generation, file: file}
	o.timer = time.AfterFunc(hold, func() { l.dropLink(job, o) })
	l.links[job] = o
	return net.JoinHostPort(l.config.Links.Host, port), nil
}

// listen opens the first port that is free.
func (l Links) listen(ctx context.Context) (*net.TCPListener, error) {
	for port := l.First; ; port++ {
		listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", net.JoinHostPort(l.Host, strconv.Itoa(port)))
		if err == nil {
			tcp, ok := listener.(*net.TCPListener)
			if !ok {
				return nil, errors.Join(fmt.Errorf("%s is no TCP listener", listener.Addr()), listener.Close())
			}
			return tcp, nil
		}
		if !errors.Is(err, syscall.EADDRINUSE) || port >= l.Last {
			return nil, err
		}
	}
}

// dropLink closes a listener that nobody has taken.
func (l *Local) dropLink(job string, o *openLink) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.links[job] == o {
		delete(l.links, job)
		o.close()
	}
}

// giveLink fills in what the assignment says of links, and returns the listener of its generation for the program, if it is open. The
// caller calls taken once the worker has started or could not: then the next generation listens anew.
func (l *Local) giveLink(a *control.Assignment) (inherit []*os.File, taken func()) {
	a.LinkFD, a.TLS, a.UCX = 0, l.config.Links.TLS, l.config.Links.UCX
	l.mu.Lock()
	defer l.mu.Unlock()
	o := l.links[a.JobID]
	if o == nil || o.generation != a.Generation {
		return nil, func() {}
	}
	a.LinkFD = process.FirstInherited
	delete(l.links, a.JobID) // its bound is over
	return []*os.File{o.file}, o.close
}
