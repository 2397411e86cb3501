// Package plancache keeps what tunings found in files, so that nothing is measured twice (docs/formats.md, "Tuned plan"). A file
// is named by a digest of all that its report depends on, which is its caller's business, and proves by one of its own that it is
// what was written.
package plancache

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/avgpipe/avgpipe/internal/checkpoint"
	"github.com/avgpipe/avgpipe/tuner"
)

const (
	magic      = "AVGTUNED"
	version    = 1
	headerSize = len(magic) + 4 + 4 + sha256.Size
	maxBody    = 64 << 20
)

// Tuned is the file of the choice that a tuning made, by the digest of what it chose from.
func Tuned(dir, digest string) string { return filepath.Join(dir, digest+".tuned") }

// Fixed is the file of the report of a job whose counts are all given, by the digest of what its file says.
func Fixed(dir, digest string) string { return filepath.Join(dir, digest+".given") }

// Write keeps a report in a file, and makes its directory. What a crash left there is removed.
func Write(path string, r *tuner.Report) error {
	data, err := encode(r)
	if err != nil {
		return fmt.Errorf("plan cache: %w", err)
	}
	dir := filepath.Dir(path)
	if err := os.MkdirAll(dir, 0o750); err != nil {
		return fmt.Errorf("plan cache: %w", err)
	}
	if _, err := checkpoint.RemoveStale(checkpoint.OS, dir); err != nil {
		return fmt.Errorf("plan cache: %w", err)
	}
	return checkpoint.WriteFile(checkpoint.OS, path, data, 0o640)
}

// Read reads a report; nil when there is no such file.
func Read(path string) (*tuner.Report, error) {
	info, err := os.Stat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil //nolint:nilnil // not tuned yet
	}
	if err != nil {
		return nil, fmt.Errorf("plan cache: %w", err)
	}
	if info.Size() > int64(headerSize+maxBody) {
		return nil, fmt.Errorf("plan cache: %s has %d bytes, at most %d are possible", path, info.Size(), headerSize+maxBody)
	}
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("plan cache: %w", err)
	}
	r, err := decode(data)
	if err != nil {
		return nil, fmt.Errorf("plan cache: %s: %w", path, err)
	}
	return r, nil
}

func encode(r *tuner.Report) ([]byte, error) {
	body, err := json.Marshal(r)
	if err != nil {
		return nil, fmt.Errorf("encode: %w", err)
	}
	if len(body) > maxBody {
		return nil, fmt.Errorf("the report has %d bytes, at most %d are kept", len(body), maxBody)
	}
	data := append(make([]byte, 0, headerSize+len(body)), magic...)
	data = binary.LittleEndian.AppendUint32(data, version)
	data = binary.LittleEndian.AppendUint32(data, uint32(len(body)))
	sum := sha256.Sum256(body)
	return append(append(data, sum[:]...), body...), nil
}

func decode(data []byte) (*tuner.Report, error) {
	if len(data) < headerSize || string(data[:len(magic)]) != magic {
		return nil, fmt.Errorf("%d bytes without the magic %s", len(data), magic)
	}
	head, body := data[len(magic):headerSize], data[headerSize:]
	if v := binary.LittleEndian.Uint32(head); v != version {
		return nil, fmt.Errorf("version %d, this program reads %d", v, version)
	}
	if n := binary.LittleEndian.Uint32(head[4:]); int64(n) != int64(len(body)) {
		return nil, fmt.Errorf("%d bytes of report, the header says %d", len(body), n)
	}
	if sum := sha256.Sum256(body); !bytes.Equal(sum[:], head[8:]) {
		return nil, errors.New("its digest is not that of its content")
	}
	decoder := json.NewDecoder(bytes.NewReader(body))
	decoder.DisallowUnknownFields()
	var r tuner.Report
	if err := decoder.Decode(&r); err != nil {
		return nil, fmt.Errorf("decode: %w", err)
	}
	if r.Version != tuner.ReportVersion {
		return nil, fmt.Errorf("a report of version %d, this program reads %d", r.Version, tuner.ReportVersion)
	}
	return &r, nil
}
