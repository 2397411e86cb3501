package tune

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

// The plan cache: a file for each digest, docs/formats.md.
const (
	cacheMagic   = "AVGTUNED"
	cacheVersion = 1
	cacheHeader  = len(cacheMagic) + 4 + 4 + sha256.Size
	maxCacheBody = 64 << 20
)

func cachePath(dir, digest string) string { return filepath.Join(dir, digest+".tuned") }

// writeCache keeps a report. Without a directory it keeps nothing.
func writeCache(dir string, r *tuner.Report) error {
	if dir == "" {
		return nil
	}
	data, err := encodeCache(r)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(dir, 0o750); err != nil {
		return fmt.Errorf("plan cache: %w", err)
	}
	if _, err := checkpoint.RemoveStale(checkpoint.OS, dir); err != nil {
		return fmt.Errorf("plan cache: %w", err)
	}
	return checkpoint.WriteFile(checkpoint.OS, cachePath(dir, r.Digest), data, 0o640)
}

// readCache finds the report of an earlier tuning; nil when there is none that can be read: then it is made anew, and written
// over whatever was there.
func readCache(dir, digest string) (*tuner.Report, error) {
	if dir == "" {
		return nil, nil //nolint:nilnil // no cache, no report
	}
	path := cachePath(dir, digest)
	info, err := os.Stat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil //nolint:nilnil // not tuned yet
	}
	if err != nil {
		return nil, fmt.Errorf("plan cache: %w", err)
	}
	if info.Size() > int64(cacheHeader+maxCacheBody) {
		return nil, fmt.Errorf("plan cache: %s has %d bytes, at most %d are possible", path, info.Size(), cacheHeader+maxCacheBody)
	}
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("plan cache: %w", err)
	}
	r, err := decodeCache(data)
	if err != nil {
		return nil, fmt.Errorf("plan cache: %s: %w", path, err)
	}
	if r.Digest != digest {
		return nil, fmt.Errorf("plan cache: %s holds the plan of %.12s", path, r.Digest)
	}
	return r, nil
}

func encodeCache(r *tuner.Report) ([]byte, error) {
	body, err := json.Marshal(r)
	if err != nil {
		return nil, fmt.Errorf("plan cache: encode: %w", err)
	}
	if len(body) > maxCacheBody {
		return nil, fmt.Errorf("plan cache: the report has %d bytes, at most %d are kept", len(body), maxCacheBody)
	}
	data := append(make([]byte, 0, cacheHeader+len(body)), cacheMagic...)
	data = binary.LittleEndian.AppendUint32(data, cacheVersion)
	data = binary.LittleEndian.AppendUint32(data, uint32(len(body)))
	sum := sha256.Sum256(body)
	return append(append(data, sum[:]...), body...), nil
}

func decodeCache(data []byte) (*tuner.Report, error) {
	if len(data) < cacheHeader || string(data[:len(cacheMagic)]) != cacheMagic {
		return nil, fmt.Errorf("%d bytes without the magic %s", len(data), cacheMagic)
	}
	head, body := data[len(cacheMagic):cacheHeader], data[cacheHeader:]
	if v := binary.LittleEndian.Uint32(head); v != cacheVersion {
		return nil, fmt.Errorf("version %d, this program reads %d", v, cacheVersion)
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
