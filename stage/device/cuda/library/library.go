//go:build cuda && cgo && linux && amd64

// Package library opens shared libraries while a program runs. Whatever opens one here first names it: a file that hangs or is damaged takes
// the process along, so that a daemon has another process look first (cuda.Probe).
package library

/*
#cgo CFLAGS: -O2 -std=c11 -Wall -Wextra
#cgo LDFLAGS: -ldl
#include <stdlib.h>
#include "library.h"
*/
import "C"

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"unsafe"
)

// ErrAbsent is the error of a library that is not there.
var ErrAbsent = errors.New("not found")

// Library is one that is open, for good.
type Library struct {
	Handle unsafe.Pointer // of dlopen
	Path   string         // of its file
}

// Search says where libraries are.
type Search struct {
	// Directories come before the places where the loader looks. A library that is in one of them and cannot be used is an error.
	Directories []string
	// Opening is told a path, or a name that the loader finds, before it is opened, which may not return. Nil: nobody is told.
	Opening func(path string)
}

// Open opens a library by its path, or by a name that the loader finds.
func (s Search) Open(name string) (*Library, error) {
	if s.Opening != nil {
		s.Opening(name)
	}
	if strings.Contains(name, "/") {
		if err := regular(name); err != nil {
			return nil, err
		}
	}
	text := C.CString(name)
	defer C.free(unsafe.Pointer(text))
	var message, path *C.char
	handle := C.avg_library_open(text, &message, &path)
	if handle == nil {
		said := C.GoString(message)
		if strings.HasPrefix(said, name+": cannot open shared object file: No such file") {
			return nil, fmt.Errorf("%s: %w by the loader", name, ErrAbsent)
		}
		return nil, fmt.Errorf("%s: the loader refuses it: %s", name, strings.TrimPrefix(said, name+": "))
	}
	if path == nil || strings.Contains(name, "/") {
		return &Library{handle, name}, nil
	}
	return &Library{handle, C.GoString(path)}, nil
}

// regular reports why a path is no file that can be opened.
func regular(path string) error {
	info, err := os.Stat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return fmt.Errorf("%s: %w", path, ErrAbsent)
	case err != nil:
		return err
	case !info.Mode().IsRegular():
		return fmt.Errorf("%s is %s, expected a regular file", path, kind(info.Mode()))
	}
	return nil
}

// kind says what a file is that is none of the regular ones.
func kind(m fs.FileMode) string {
	switch {
	case m.IsDir():
		return "a directory"
	case m&fs.ModeNamedPipe != 0:
		return "a named pipe"
	case m&fs.ModeSocket != 0:
		return "a socket"
	}
	return "a device"
}

// First opens the first library of these names that is there and of which take can use the functions. The error is ErrAbsent where there is none.
func (s Search) First(names []string, take func(*Library) error) (*Library, error) {
	try := func(name string) (*Library, error) {
		l, err := s.Open(name)
		if err == nil {
			err = take(l)
		}
		return l, err
	}
	for _, dir := range s.Directories {
		if s.Opening != nil {
			s.Opening(dir)
		}
		if info, err := os.Stat(dir); err != nil || !info.IsDir() {
			return nil, fmt.Errorf("%s is no directory, expected one with %s", dir, strings.Join(names, ", "))
		}
		for _, name := range names {
			if l, err := try(filepath.Join(dir, name)); !errors.Is(err, ErrAbsent) {
				return l, err
			}
		}
	}
	var unfit []error
	for _, name := range names {
		l, err := try(name)
		if err == nil {
			return l, nil
		}
		if !errors.Is(err, ErrAbsent) {
			unfit = append(unfit, err)
		}
	}
	if len(unfit) > 0 {
		return nil, errors.Join(unfit...)
	}
	places := append(slices.Clone(s.Directories), "the places where the loader looks")
	return nil, fmt.Errorf("%s: %w in %s", strings.Join(names, ", "), ErrAbsent, strings.Join(places, ", "))
}

// DieOfFaults lets the process die of a fault in a library by its signal, without a file of its memory, in place of the Go runtime's report.
func DieOfFaults() { C.avg_die_of_faults() }
