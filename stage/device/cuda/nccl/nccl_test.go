//go:build cuda && cgo && linux && amd64

package nccl

import (
	"errors"
	"strings"
	"testing"

	"github.com/avgpipe/avgpipe/stage/device/cuda/library"
)

func TestAMachineWithoutNCCLSaysSo(t *testing.T) {
	names = []string{"libnccl.so.0"}
	dir := t.TempDir()
	_, err := Load(library.Search{Directories: []string{dir}})
	if !errors.Is(err, library.ErrAbsent) || !strings.Contains(err.Error(), "no NCCL: libnccl.so.0: not found in "+dir) {
		t.Errorf("open a library that is not there: %v", err)
	}
}
