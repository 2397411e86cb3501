package nodetest

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/avgpipe/avgpipe/internal/gpu"
)

// Files below a daemon's directory that stand for a driver of graphics processors.
const gpusFile, xidFile = "gpus.json", "xid.json"

// GPUs gives the daemons of a directory graphics processors.
func GPUs(t *testing.T, dir string, all ...gpu.Sample) { write(t, filepath.Join(dir, gpusFile), all) }

// ReportXID has the driver report an error.
func ReportXID(t *testing.T, dir, uuid string, code uint64) {
	write(t, filepath.Join(dir, xidFile), driverXID{uuid, code})
}

// driverXID is what xidFile holds.
type driverXID struct {
	GPU  string
	Code uint64
}

func write(t *testing.T, path string, v any) {
	t.Helper()
	text, err := json.Marshal(v)
	if err == nil {
		err = os.WriteFile(path+".new", text, 0o600)
	}
	if err == nil {
		err = os.Rename(path+".new", path)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// driver is the source that the files are.
type driver struct{ dir string }

func openDriver(dir string) (gpu.Source, error) {
	if _, err := os.Stat(filepath.Join(dir, gpusFile)); err != nil {
		return nil, fmt.Errorf("%w: %w", gpu.ErrNone, err)
	}
	return driver{dir}, nil
}

func (d driver) Sample() (all []gpu.Sample, _ []gpu.Failure, err error) {
	return all, nil, d.read(gpusFile, &all)
}

// WaitXID takes what ReportXID wrote away.
func (d driver) WaitXID(bound time.Duration) (*gpu.XID, error) {
	for end := time.Now().Add(bound); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
		var x driverXID
		switch err := d.read(xidFile, &x); {
		case errors.Is(err, fs.ErrNotExist):
		case err != nil:
			return nil, err
		default:
			return &gpu.XID{GPU: x.GPU, Code: x.Code}, os.Remove(filepath.Join(d.dir, xidFile))
		}
	}
	return nil, nil //nolint:nilnil // as gpu.Source has it
}

func (d driver) read(name string, v any) error {
	text, err := os.ReadFile(filepath.Join(d.dir, name))
	if err != nil {
		return err
	}
	return json.Unmarshal(text, v)
}

func (driver) Close() error { return nil }
