package profile

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"

	"github.com/avgpipe/avgpipe/internal/worker/control"
	"github.com/avgpipe/avgpipe/job"
)

// maxRequestBytes bounds the request file: a job file with every key, and a list of cores.
const maxRequestBytes = 16 << 20

// ReadRequest reads the file that the daemon wrote.
func ReadRequest(path string) (control.TuneRequest, error) {
	r := control.TuneRequest{Job: *job.Default()} // of keys that did not exist when it was written
	fail := func(err error) (control.TuneRequest, error) { return r, fmt.Errorf("tune: request %s: %w", path, err) }
	info, err := os.Stat(path)
	if err != nil {
		return fail(err)
	}
	if info.Size() > maxRequestBytes {
		return fail(fmt.Errorf("%d bytes, the limit is %d", info.Size(), maxRequestBytes))
	}
	data, err := os.ReadFile(path)
	if err != nil {
		return fail(err)
	}
	decoder := json.NewDecoder(bytes.NewReader(data))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(&r); err != nil {
		return fail(err)
	}
	return r, nil
}
