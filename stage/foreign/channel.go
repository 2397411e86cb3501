package foreign

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"time"

	"golang.org/x/sys/unix"
)

// What is believed of a message's length: of a request and of an answer that describes modules, and of any other answer.
const (
	longestMessage = 16 << 20
	longestPlain   = 1 << 20
)

// errUnsent is of a request of which nothing was sent.
var errUnsent = errors.New("the request was not sent")

// poll is how often whoever waits for an answer looks whether it should.
const poll = 100 * time.Millisecond

// channel is this process's end of the socket. Its calls block the thread, which costs less than handing it back and forth: an answer
// comes within microseconds.
type channel struct {
	fd     int
	buffer []byte
}

// newChannel makes a pair of sockets: the channel, and the descriptor of the other end.
func newChannel() (c *channel, other int, err error) {
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, 0, fmt.Errorf("make a pair of sockets: %w", err)
	}
	every := unix.NsecToTimeval(int64(poll))
	for _, option := range []int{unix.SO_RCVTIMEO, unix.SO_SNDTIMEO} {
		if err := unix.SetsockoptTimeval(pair[0], unix.SOL_SOCKET, option, &every); err != nil {
			return nil, 0, errors.Join(fmt.Errorf("bound what a socket waits: %w", err), unix.Close(pair[0]), unix.Close(pair[1]))
		}
	}
	return &channel{fd: pair[0]}, pair[1], nil
}

// call sends a request and returns its answer, of so many bytes at most, which holds until the next call. It asks wait whether to go on, now and then.
func (c *channel) call(request any, most int, wait func() error) ([]byte, error) {
	text, err := json.Marshal(request)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", errUnsent, err)
	}
	if len(text) > longestMessage {
		return nil, fmt.Errorf("%w: it has %d bytes, expected at most %d", errUnsent, len(text), longestMessage)
	}
	if n, err := unix.IoctlGetInt(c.fd, unix.TIOCINQ); err != nil || n > 0 {
		return nil, errors.Join(fmt.Errorf("%d bytes came before the request, expected none", n), err)
	}
	message := binary.LittleEndian.AppendUint32(make([]byte, 0, 4+len(text)), uint32(len(text))) //nolint:gosec // of our own making
	if err := c.move(append(message, text...), unix.Write, wait); err != nil {
		return nil, err
	}
	var head [4]byte
	if err := c.move(head[:], unix.Read, wait); err != nil {
		return nil, err
	}
	n := int(binary.LittleEndian.Uint32(head[:]))
	if n > most {
		return nil, fmt.Errorf("an answer of %d bytes, expected at most %d", n, most)
	}
	if n > cap(c.buffer) {
		c.buffer = make([]byte, n)
	}
	answer := c.buffer[:n]
	return answer, c.move(answer, unix.Read, wait)
}

// move reads or writes all of p.
func (c *channel) move(p []byte, step func(fd int, p []byte) (int, error), wait func() error) error {
	for len(p) > 0 {
		n, err := step(c.fd, p)
		switch {
		case errors.Is(err, unix.EINTR):
		case errors.Is(err, unix.EAGAIN):
			if err := wait(); err != nil {
				return err
			}
		case err != nil:
			return err
		case n == 0:
			return io.EOF
		default:
			p = p[n:]
		}
	}
	return nil
}

func (c *channel) close() error { return unix.Close(c.fd) }
