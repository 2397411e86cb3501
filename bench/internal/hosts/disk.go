package hosts

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"runtime"
	"sync"
	"sync/atomic"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// SlowableFlag is the flag that Disk.Command adds to this program's arguments. Its value is what BecomeSlowable wants to know.
const SlowableFlag = "-slowable"

// Disk makes the disk slow that some programs write to: what syncs a file waits for it (fsync, fdatasync, sync_file_range). The kernel asks the Disk about
// each such call of a program that Disk.Command started, or of its children (seccomp_unotify(2), Linux 5.19), whatever file system the file is on. Reads and
// writes to the page cache are as fast as ever.
type Disk struct {
	self     string // this program
	listener *net.UnixListener
	slow     atomic.Pointer[slowness] // nil: it is not
	joined   sync.WaitGroup
}

// NewDisk listens for its programs at a path, which must be short and not be there yet.
func NewDisk(path string) (*Disk, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, fmt.Errorf("slow disk: %w", err)
	}
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		return nil, fmt.Errorf("slow disk: %w", err)
	}
	d := &Disk{self: self, listener: l}
	d.joined.Go(d.accept)
	return d, nil
}

// Command are the program and the arguments that run another program on the disk: this program, which becomes the other one.
func (d *Disk) Command(program string, arguments ...string) (self string, all []string) {
	return d.self, append([]string{SlowableFlag, d.listener.Addr().String(), program}, arguments...)
}

// slowness is a wait of syncs.
type slowness struct {
	wait func(done <-chan struct{})
	done chan struct{}
}

// Slow has each sync wait until wait returns, in place of what it waits for now. undo closes done, and brings that back.
func (d *Disk) Slow(wait func(done <-chan struct{})) (undo func()) {
	s, before := &slowness{wait, make(chan struct{})}, d.slow.Load()
	d.slow.Store(s)
	return func() {
		d.slow.CompareAndSwap(s, before)
		close(s.done)
	}
}

// Close returns when all programs that were started have ended. No sync waits any more that was not undone.
func (d *Disk) Close() error {
	d.slow.Store(nil)
	err := d.listener.Close()
	d.joined.Wait()
	return err
}

// accept takes what programs hand over: the descriptor at which the kernel asks about their calls.
func (d *Disk) accept() {
	for {
		c, err := d.listener.AcceptUnix()
		if err != nil {
			return
		}
		rights := make([]byte, unix.CmsgSpace(4))
		_, n, _, _, err := c.ReadMsgUnix(make([]byte, 1), rights)
		_ = c.Close()
		if err != nil {
			continue // the program has ended
		}
		messages, err := unix.ParseSocketControlMessage(rights[:n])
		if err != nil || len(messages) != 1 {
			continue
		}
		if fds, err := unix.ParseUnixRights(&messages[0]); err == nil && len(fds) == 1 {
			d.joined.Go(func() { d.answer(fds[0]) })
		}
	}
}

// notification and response are struct seccomp_notif and struct seccomp_notif_resp.
type notification struct {
	id         uint64
	pid, flags uint32
	_          [64]byte // struct seccomp_data
}

type response struct {
	id    uint64
	value int64
	err   int32
	flags uint32
}

// answer lets calls go on, each when it has waited, until no process is left that makes some.
func (d *Disk) answer(fd int) {
	var joined sync.WaitGroup
	defer joined.Wait()
	for {
		polled := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}} //nolint:gosec // a descriptor
		if _, err := unix.Poll(polled, -1); errors.Is(err, unix.EINTR) {
			continue
		}
		if polled[0].Revents&unix.POLLIN == 0 {
			joined.Wait()
			_ = unix.Close(fd)
			return
		}
		var n notification
		if ioctl(fd, unix.SECCOMP_IOCTL_NOTIF_RECV, unsafe.Pointer(&n)) != nil {
			continue // whoever made the call has ended
		}
		joined.Go(func() {
			if s := d.slow.Load(); s != nil {
				s.wait(s.done)
			}
			_ = ioctl(fd, unix.SECCOMP_IOCTL_NOTIF_SEND, unsafe.Pointer(&response{id: n.id, flags: unix.SECCOMP_USER_NOTIF_FLAG_CONTINUE})) // as above
		})
	}
}

func ioctl(fd int, request uintptr, at unsafe.Pointer) error {
	if _, _, failed := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), request, uintptr(at)); failed != 0 {
		return failed
	}
	return nil
}

// BecomeSlowable has the kernel ask a Disk about all syncs of this process, and becomes another program. It does not return without an error.
func BecomeSlowable(ctx context.Context, disk string, command []string) error {
	if len(command) == 0 {
		return fmt.Errorf("%s %s: no program", SlowableFlag, disk)
	}
	c, err := (&net.Dialer{}).DialContext(ctx, "unix", disk)
	if err != nil {
		return err
	}
	to := c.(*net.UnixConn) //nolint:forcetypeassert,errcheck // of a dialer on unix
	runtime.LockOSThread()  // the filter is that of the thread which becomes the program
	defer runtime.UnlockOSThread()
	fd, err := filterSyncs()
	if err != nil {
		return err
	}
	if _, _, err := to.WriteMsgUnix([]byte{0}, unix.UnixRights(fd), nil); err != nil {
		return fmt.Errorf("hand over to %s: %w", disk, err)
	}
	if err := errors.Join(to.Close(), unix.Close(fd)); err != nil {
		return err
	}
	return fmt.Errorf("become %s: %w", command[0], syscall.Exec(command[0], command, os.Environ())) //nolint:gosec // the program under test
}

// filterSyncs has the kernel ask about syncs of this thread and its children, at the descriptor.
func filterSyncs() (fd int, err error) {
	calls := []uint32{unix.SYS_FSYNC, unix.SYS_FDATASYNC, unix.SYS_SYNC_FILE_RANGE}
	code := []unix.SockFilter{{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: 0}} // the number of the call
	for i, call := range calls {
		code = append(code, unix.SockFilter{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, Jt: uint8(len(calls) - i), K: call}) //nolint:gosec // 1 to 3
	}
	code = append(code, unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ALLOW}, unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_USER_NOTIF})
	program := unix.SockFprog{Len: uint16(len(code)), Filter: &code[0]} //nolint:gosec // a few
	flags := uintptr(unix.SECCOMP_FILTER_FLAG_NEW_LISTENER | unix.SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV)
	got, _, failed := unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, flags, uintptr(unsafe.Pointer(&program)))
	if failed != 0 {
		return 0, fmt.Errorf("seccomp: have calls waited for: %w; it needs root and Linux 5.19", failed)
	}
	return int(got), nil
}
