package remotedata

import (
	"bytes"
	"fmt"
	"io"
	"strings"
	"testing"

	"github.com/avgpipe/avgpipe/internal/access"
	"github.com/avgpipe/avgpipe/internal/objectstore"
	"github.com/avgpipe/avgpipe/internal/objectstore/objectstoretest"
)

// TestObjectsOfBuckets are found by key, by prefix and by pattern, as files are.
func TestObjectsOfBuckets(t *testing.T) {
	name := objectstoretest.Name()
	at := objectstoretest.Serve(t, name, nil)
	bucket, err := objectstore.Open(at, name)
	if err != nil {
		t.Fatal(err)
	}
	for _, key := range []string{"text/a.txt", "text/b.txt", "text/deep/c.txt", "text/.hidden/d.txt", "text/deep/.e.txt", "text/table.csv", "secret/x.txt", "odd/a b+%#?.txt"} {
		if err := bucket.Put(t.Context(), key, strings.NewReader(key), int64(len(key)), ""); err != nil {
			t.Fatal(err)
		}
	}
	wrong := at
	wrong.SecretKey = "not this one"
	r := New(Sources{{URL: "s3://" + name + "/", Bucket: &at}, {URL: "s3://" + name + "/secret", UIDs: []uint32{7}, Bucket: &at}})
	defer r.Close()
	for entry, want := range map[string]string{
		"/text/a.txt":          "a.txt",
		"/text/":               "a.txt b.txt deep/c.txt table.csv",
		"/text":                "a.txt b.txt deep/c.txt table.csv",
		"/text/*.txt":          "a.txt b.txt",
		"/text/**/*.txt":       "a.txt b.txt deep/c.txt",
		"/text/{a,deep/c}.txt": "a.txt deep/c.txt",
		"/text/**/.*.txt":      "deep/.e.txt",
		"/odd/a b+%#?.txt":     "a b+%#?.txt",
		"/text/none":           "no_object",
		"/text/*.json":         "no_object",
		"/text/[":              "refused",
		"/secret/x.txt":        "refused",
		"":                     "refused", // a part of it is closed to him
		"/*/x.txt":             "refused",
	} {
		found, err := r.Resolve(t.Context(), &access.User{UID: 1}, "s3://"+name+entry)
		var names []string
		for _, o := range found {
			names = append(names, o.Name)
		}
		got := strings.Join(names, " ")
		if err != nil {
			got = string(objectstore.KindOf(err))
		}
		if got != want {
			t.Errorf("%q is %q (%v), expected %q", entry, got, err, want)
		}
		for i := range found {
			body, from, err := r.Open(t.Context(), &access.User{UID: 1}, &found[i], 2)
			if err != nil {
				t.Fatal(err)
			}
			text, err := io.ReadAll(body)
			key := strings.TrimPrefix(found[i].URL, "s3://"+name+"/")
			if got, want := fmt.Sprint(from, string(text), err, body.Close()), fmt.Sprint(2, key[2:], nil, nil); got != want || found[i].Bytes != int64(len(key)) {
				t.Errorf("%+v has %s, expected %s", found[i], got, want)
			}
		}
	}
	one, err := r.Resolve(t.Context(), nil, "s3://"+name+"/text/a.txt")
	if err != nil {
		t.Fatal(err)
	}
	if err := bucket.Put(t.Context(), "text/a.txt", bytes.NewReader([]byte("changed...")), 10, ""); err != nil {
		t.Fatal(err)
	}
	if _, _, err := r.Open(t.Context(), nil, &one[0], 0); objectstore.KindOf(err) != objectstore.Changed {
		t.Errorf("an object that was replaced: %v", err)
	}
}
