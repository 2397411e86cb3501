package main

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/avgpipe/avgpipe/internal/objectstore"
)

func TestSourcesAreFilesOfADirectory(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string, mode os.FileMode) string {
		t.Helper()
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), mode); err != nil {
			t.Fatal(err)
		}
		return path
	}
	keys, token, open := write("keys", "key\nsecret\n", 0o600), write("token", "sesame\n", 0o600), write("open", "a\nb\n", 0o600)
	if err := os.Chmod(open, 0o644); err != nil {
		t.Fatal(err)
	}
	c := defaultConfig()
	if s, err := c.sources(nil); s != nil || err != nil {
		t.Errorf("without a directory: %+v (%v)", s, err)
	}
	c.DataSources = directory(dir)
	if _, err := c.sources(nil); err == nil || !strings.Contains(err.Error(), "no file whose name ends in .yaml") {
		t.Errorf("of an empty directory: %v", err)
	}
	all := &objectstore.Config{AccessKey: "own", SecretKey: "own", Endpoint: "http://h:1", Region: "r"}
	for _, try := range []struct {
		text, want string // what is read, or said
		global     *objectstore.Config
	}{
		{"url: s3://data/\n", `s3://data/ [] [] false "" http://h:1 r own`, all},
		{"url: s3://data/\nendpoint: https://other\ncredentials: " + keys + "\n", `s3://data/ [] [] false "" https://other r key`, all},
		{"url: s3://data/\ncredentials: " + keys + "\nusers: [root, \"7\"]\ngroups: [root]\n", `s3://data/ [0 7] [0] false ""   key`, nil},
		{"url: https://a.example/x/\ncredentials: " + token + "\nprivate: true\n", `https://a.example/x/ [] [] true "sesame"   `, nil},
		{"url: https://\n", `https:// [] [] false ""   `, nil},
		{"url: s3://data/\n", "a bucket needs credentials", nil},
		{"url: s3://data/\ncredentials: " + open + "\n", "chmod 0640", nil},
		{"url: s3://data/\ncredentials: " + token + "\n", "has 1 words", nil},
		{"url: s3://data/\nprivate: true\n", "private are for https", all},
		{"url: https://a.example/\nregion: r\n", "are for buckets", nil},
		{"url: http://a.example/\n", "url wants s3://BUCKET/PREFIX", nil},
		{"url: https://a.example/\nusers: [nobody-of-this-name]\n", "users[0] wants", nil},
		{"url: https://a.example/\nuser: [root]\n", "users", nil},
		{"", "empty", nil},
	} {
		write("one.yaml", try.text, 0o600)
		s, err := c.sources(try.global)
		got := fmt.Sprint(err)
		if err == nil {
			b := s[0].Bucket
			if b == nil {
				b = &objectstore.Config{}
			}
			slices.Sort(s[0].UIDs)
			got = fmt.Sprintf("%s %v %v %v %q %s %s %s", s[0].URL, s[0].UIDs, s[0].GIDs, s[0].Private, s[0].Token, b.Endpoint, b.Region, b.AccessKey)
		}
		if err == nil && got != try.want || err != nil && (!strings.Contains(got, try.want) || !strings.Contains(got, "one.yaml")) {
			t.Errorf("%q: %s, expected %s", try.text, got, try.want)
		}
	}
}
