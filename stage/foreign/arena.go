package foreign

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"unsafe"

	"golang.org/x/sys/unix"
)

// arenaAlign is the multiple of bytes at which every allocation begins; those of arenaLarge and more are whole pages, which nothing else is on.
const (
	arenaAlign = 64
	arenaLarge = 1 << 16
)

// arena is memory that another process maps too. Free memory is zero, and takes address space alone.
type arena struct {
	file   *os.File
	memory []byte
	end    int         // all from here on is free
	free   []span      // in front of end, ascending, never two that touch
	blocks map[int]int // of each allocation, its length
}

// span is memory from an offset on.
type span struct{ from, bytes int }

func (s span) to() int { return s.from + s.bytes }

// newArena maps so many bytes, of which only those take memory that are written.
func newArena(bytes int) (*arena, error) {
	fd, err := unix.MemfdCreate("avgpiped-arena", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		return nil, fmt.Errorf("make shared memory: %w", err)
	}
	a := &arena{file: os.NewFile(uintptr(fd), "arena"), blocks: map[int]int{}}
	if err := a.file.Truncate(int64(bytes)); err != nil {
		return nil, errors.Join(fmt.Errorf("make %d bytes of shared memory: %w", bytes, err), a.file.Close())
	}
	const seals = unix.F_SEAL_SHRINK | unix.F_SEAL_GROW | unix.F_SEAL_SEAL // to touch memory behind the end of a file would end this process
	if _, err := unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, seals); err != nil {
		return nil, errors.Join(fmt.Errorf("fix the size of shared memory: %w", err), a.file.Close())
	}
	if a.memory, err = unix.Mmap(fd, 0, bytes, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED|unix.MAP_NORESERVE); err != nil {
		_ = a.file.Close()
		return nil, fmt.Errorf("map %d bytes of shared memory: %w", bytes, err)
	}
	return a, nil
}

// alloc is memory of so many bytes, all zero; nil when no place has as many.
func (a *arena) alloc(bytes int) unsafe.Pointer {
	align := arenaAlign
	if bytes >= arenaLarge {
		align = os.Getpagesize()
	}
	up := func(n int) int { return (n + align - 1) / align * align }
	bytes = max(align, up(bytes))
	at := slices.IndexFunc(a.free, func(s span) bool { return up(s.from)+bytes <= s.to() })
	from := up(a.end)
	if at >= 0 {
		s := a.free[at]
		from = up(s.from)
		rest := slices.DeleteFunc([]span{{s.from, from - s.from}, {from + bytes, s.to() - from - bytes}}, func(s span) bool { return s.bytes == 0 })
		a.free = slices.Replace(a.free, at, at+1, rest...)
	} else {
		if bytes > len(a.memory)-from {
			return nil
		}
		if from > a.end {
			a.free = append(a.free, span{a.end, from - a.end})
		}
		a.end = from + bytes
	}
	a.blocks[from] = bytes
	return unsafe.Pointer(&a.memory[from])
}

// around is the allocation that an offset lies in.
func (a *arena) around(offset int) span {
	if bytes, ok := a.blocks[offset]; ok {
		return span{offset, bytes}
	}
	for from, bytes := range a.blocks {
		if from <= offset && offset < from+bytes {
			return span{from, bytes}
		}
	}
	panic("foreign: memory that Alloc did not return, or freed before")
}

// release gives back what alloc returned.
func (a *arena) release(p unsafe.Pointer) error {
	from := a.offset(p)
	bytes, ok := a.blocks[from]
	if !ok {
		panic("foreign: Free: memory that Alloc did not return, or freed before")
	}
	delete(a.blocks, from)
	s := span{from, bytes}
	if err := unix.Fallocate(int(a.file.Fd()), unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, int64(from), int64(bytes)); err != nil { // sets what is left of pages to 0
		return fmt.Errorf("give back %d bytes of shared memory: %w", bytes, err)
	}
	at, _ := slices.BinarySearchFunc(a.free, from, func(s span, from int) int { return s.from - from })
	if at < len(a.free) && a.free[at].from == s.to() {
		s.bytes += a.free[at].bytes
		a.free = slices.Delete(a.free, at, at+1)
	}
	if at > 0 && a.free[at-1].to() == s.from {
		at--
		s = span{a.free[at].from, a.free[at].bytes + s.bytes}
		a.free = slices.Delete(a.free, at, at+1)
	}
	if s.to() == a.end {
		a.end = s.from
		return nil
	}
	a.free = slices.Insert(a.free, at, s)
	return nil
}

// offset is where an address lies.
func (a *arena) offset(p unsafe.Pointer) int {
	return int(uintptr(p) - uintptr(unsafe.Pointer(&a.memory[0])))
}

func (a *arena) close() error {
	err := unix.Munmap(a.memory)
	if closed := a.file.Close(); err == nil {
		err = closed
	}
	if err != nil {
		return fmt.Errorf("unmap shared memory: %w", err)
	}
	return nil
}
