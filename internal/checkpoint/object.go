package checkpoint

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
)

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
