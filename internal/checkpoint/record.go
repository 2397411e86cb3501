package checkpoint

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"io/fs"
	"os"
	"path/filepath"
)

// A record is a small file that says one thing: a line "avgpipe KIND VERSION CRC" and JSON (docs/formats.md). The CRC-32C, in
// hexadecimal, covers kind, version and JSON.

// maxRecord bounds a record: a job's holds its job file, of 1 MiB at most, and what was found out about it.
const maxRecord = 64 << 20

// WriteRecord makes value durable as the record path, atomically.
func WriteRecord(path, kind string, version int, value any, perm fs.FileMode) error {
	body, err := json.MarshalIndent(value, "", "  ")
	if err != nil {
		return fmt.Errorf("write %s: encode: %w", path, err)
	}
	body = append(body, '\n')
	head := recordHead(kind, version, recordSum(kind, version, body))
	return WriteFile(path, append([]byte(head+"\n"), body...), perm)
}

func recordHead(kind string, version int, sum uint32) string {
	return fmt.Sprintf("avgpipe %s %d %08x", kind, version, sum)
}

func recordSum(kind string, version int, body []byte) uint32 {
	table := crc32.MakeTable(crc32.Castagnoli)
	return crc32.Update(crc32.Checksum(fmt.Appendf(nil, "%s %d", kind, version), table), table, body)
}

// ReadRecord reads a record of a version from 1 to version into value. An absent one wraps fs.ErrNotExist, a damaged one is a
// *RecordError. value is changed only when the whole record is right, but for what its JSON cannot say.
func ReadRecord(path, kind string, version int, value any) error {
	f, err := os.Open(path)
	if err != nil {
		return fmt.Errorf("read the %s record: %w", kind, err)
	}
	text, err := io.ReadAll(io.LimitReader(f, maxRecord+1))
	if err = errors.Join(err, f.Close()); err != nil {
		return fmt.Errorf("read the %s record %s: %w", kind, path, err)
	}
	if problem := parseRecord(text, kind, version, value); problem != nil {
		return &RecordError{Path: path, Problem: problem}
	}
	return nil
}

// parseRecord checks a record from end to end.
func parseRecord(text []byte, kind string, newest int, value any) error {
	if len(text) == 0 {
		return errors.New("it is empty")
	}
	if len(text) > maxRecord {
		return fmt.Errorf("it has more than %d bytes", maxRecord)
	}
	head, body, _ := bytes.Cut(text, []byte("\n"))
	var (
		found   string
		version int
		sum     uint32
	)
	if _, err := fmt.Sscanf(string(head), "avgpipe %s %d %08x", &found, &version, &sum); err != nil || found != kind {
		return fmt.Errorf("it starts with %.40q, expected \"avgpipe %s VERSION CRC\"", head, kind)
	}
	if version < 1 || version > newest {
		return fmt.Errorf("it has version %d, this program reads 1 to %d", version, newest)
	}
	expected := recordSum(kind, version, body)
	if sum != expected {
		return fmt.Errorf("its checksum is %08x, expected %08x", sum, expected)
	}
	if written := recordHead(kind, version, expected); written != string(head) { // Sscanf takes upper-case digits and blanks too
		return fmt.Errorf("it starts with %.40q, expected %q", head, written)
	}
	return json.Unmarshal(body, value)
}

// RecordError reports a record that must not be used.
type RecordError struct {
	Path    string
	Problem error
}

func (e *RecordError) Error() string { return fmt.Sprintf("%s is damaged: %v", e.Path, e.Problem) }

// Unwrap gives the cause.
func (e *RecordError) Unwrap() error { return e.Problem }

// ObjectPath is the file of an object: data that never change, named by their SHA-256 in hexadecimal.
func ObjectPath(dir, digest string) string { return filepath.Join(dir, digest+".object") }

// ObjectDigest names data.
func ObjectDigest(data []byte) string {
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:])
}

// WriteObject makes data durable as an object in dir and returns its digest.
func WriteObject(dir string, data []byte, perm fs.FileMode) (digest string, err error) {
	digest = ObjectDigest(data)
	return digest, WriteFile(ObjectPath(dir, digest), data, perm)
}

// ReadObject reads an object and holds it against its digest. Its errors name the file.
func ReadObject(dir, digest string) ([]byte, error) {
	data, err := os.ReadFile(ObjectPath(dir, digest))
	if err != nil {
		return nil, err
	}
	if found := ObjectDigest(data); found != digest {
		return nil, fmt.Errorf("%s is damaged: its SHA-256 is %s", ObjectPath(dir, digest), found)
	}
	return data, nil
}
