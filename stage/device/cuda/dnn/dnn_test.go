//go:build cuda && cgo && linux && amd64

package dnn

import (
	"errors"
	"strings"
	"testing"

	"github.com/avgpipe/avgpipe/stage/device/cuda/cudatest"
	"github.com/avgpipe/avgpipe/stage/device/cuda/library"
)

func TestAMachineWithoutCuDNNSaysSo(t *testing.T) {
	libraries = []string{"libcudnn.so.0"}
	_, err := Open(library.Search{}, nil)
	if !errors.Is(err, library.ErrAbsent) || !strings.Contains(err.Error(), "no cuDNN: libcudnn.so.0: not found") {
		t.Errorf("open a library that is not there: %v", err)
	}
}

func TestALibraryWithoutItsFunctionsIsRefused(t *testing.T) {
	libraries = []string{"libm.so.6"}
	_, err := Open(library.Search{}, nil)
	if err == nil || errors.Is(err, library.ErrAbsent) || !strings.Contains(err.Error(), "libm.so.6 has no cudnnGetVersion, expected cuDNN 8 or 9") {
		t.Errorf("open a library that is another: %v", err)
	}
}

func TestAnotherVersionIsRefused(t *testing.T) {
	driver := cudatest.Library(t)
	libraries = []string{"libcudnn.so.9"}
	directories := library.Search{Directories: []string{driver.Directory()}}
	driver.PretendVersion(7605)
	defer driver.PretendVersion(90100)
	_, err := Open(directories, nil)
	if err == nil || !strings.Contains(err.Error(), "libcudnn.so.9: version 7605, expected 8000 to 99999: cuDNN 8.0 to 9.99") {
		t.Errorf("open a library of version 7: %v", err)
	}
	for version, want := range map[int]string{8907: "8.9", 90100: "9.1"} {
		driver.PretendVersion(version)
		h, err := Open(directories, nil)
		if err != nil {
			t.Fatal(err)
		}
		if got := h.Version(); got != want {
			t.Errorf("version %d is %q, want %q", version, got, want)
		}
		if err := h.Close(); err != nil {
			t.Error(err)
		}
	}
}
