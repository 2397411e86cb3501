//go:build cuda && cgo && linux && amd64

package nccl

import (
	"errors"
	"strings"
	"testing"
)

func TestAMachineWithoutNCCLSaysSo(t *testing.T) {
	library = "libnccl.so.0"
	err := Load([]string{"no"})
	if !errors.Is(err, ErrAbsent) || !strings.Contains(err.Error(), "no NCCL: no/libnccl.so.0: cannot open") {
		t.Errorf("open a library that is not there: %v", err)
	}
}
