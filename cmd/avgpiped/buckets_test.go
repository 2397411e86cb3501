package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestKeysOfBucketsAreReadFromAFileThatOthersCannotRead(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s3")
	c := defaultConfig()
	if b, err := c.buckets(); b != nil || err != nil {
		t.Errorf("without a file: %+v (%v)", b, err)
	}
	c.S3Credentials = credentials(path)
	for _, try := range []struct {
		text string
		mode os.FileMode
		want string
	}{
		{"key\nsecret\n", 0o640, ""},
		{"key\nsecret\n", 0o644, "chmod 0640"},
		{"key\n", 0o600, "has 1 words"},
		{strings.Repeat("x", 5000), 0o600, "4096"},
	} {
		if err := os.WriteFile(path, []byte(try.text), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(path, try.mode); err != nil {
			t.Fatal(err)
		}
		b, err := c.buckets()
		if try.want == "" && (err != nil || b.AccessKey != "key" || b.SecretKey != "secret" || b.Endpoint != "https://s3.amazonaws.com") ||
			try.want != "" && (err == nil || !strings.Contains(err.Error(), try.want)) {
			t.Errorf("%q of mode %o: %v, expected %q", try.text, try.mode, err, try.want)
		}
	}
}
