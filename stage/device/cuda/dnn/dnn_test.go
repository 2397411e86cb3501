//go:build cuda && cgo && linux && amd64

package dnn

import (
	"errors"
	"strings"
	"testing"

	"github.com/avgpipe/avgpipe/stage/device/cuda/cudatest"
)

func TestAMachineWithoutCuDNNSaysSo(t *testing.T) {
	libraries = []string{"libcudnn.so.0"}
	_, err := Open([]string{"no"}, nil)
	if !errors.Is(err, ErrAbsent) || !strings.Contains(err.Error(), "no cuDNN: no/libcudnn.so.0: cannot open") {
		t.Errorf("open a library that is not there: %v", err)
	}
}

func TestALibraryWithoutItsFunctionsIsRefused(t *testing.T) {
	libraries = []string{"libm.so.6"}
	_, err := Open(nil, nil)
	if err == nil || errors.Is(err, ErrAbsent) || !strings.Contains(err.Error(), "libm.so.6 has no cudnnGetVersion, expected version 8 or 9") {
		t.Errorf("open a library that is another: %v", err)
	}
}

func TestAnotherVersionIsRefused(t *testing.T) {
	library := cudatest.Library(t)
	libraries = []string{"libcudnn.so.9"}
	directories := []string{library.Directory()}
	library.PretendVersion(7605)
	defer library.PretendVersion(90100)
	_, err := Open(directories, nil)
	if err == nil || !strings.Contains(err.Error(), "libcudnn.so.9: version 7605, expected 8000 to 99999: 8.0 to 9.99") {
		t.Errorf("open a library of version 7: %v", err)
	}
	for version, want := range map[int]string{8907: "8.9", 90100: "9.1"} {
		library.PretendVersion(version)
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
