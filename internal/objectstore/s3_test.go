package objectstore_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/avgpipe/avgpipe/internal/objectstore"
	"github.com/avgpipe/avgpipe/internal/objectstore/objectstoretest"
)

func open(t *testing.T, c objectstore.Config, bucket string) objectstore.Bucket {
	t.Helper()
	b, err := objectstore.Open(c, bucket)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func TestBucketsAreBuckets(t *testing.T) {
	t.Run("in memory", func(t *testing.T) { objectstoretest.Conform(t, &objectstoretest.Memory{}) })
	t.Run("of a server", func(t *testing.T) {
		bucket := objectstoretest.Name()
		objectstoretest.Conform(t, open(t, objectstoretest.Serve(t, bucket, nil), bucket))
	})
}

// TestWhatIsWrongIsSaid, with the kind that says whether to try again.
func TestWhatIsWrongIsSaid(t *testing.T) {
	answer := func(status int, body string) func(http.Handler) http.Handler {
		return func(http.Handler) http.Handler {
			return http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
				_, _ = io.Copy(io.Discard, q.Body) // as a server does
				w.Header().Set("Content-Type", "application/xml")
				w.WriteHeader(status)
				_, _ = io.WriteString(w, body) // the client sees it
			})
		}
	}
	xml := func(code string) string { return "<Error><Code>" + code + "</Code><Message>no</Message></Error>" }
	for what, c := range map[string]struct {
		change func(http.Handler) http.Handler
		want   objectstore.Kind
	}{
		"500":                 {answer(500, xml("InternalError")), objectstore.Unavailable},
		"503":                 {answer(503, xml("SlowDown")), objectstore.Unavailable},
		"a page":              {answer(502, "<html>"), objectstore.Unavailable},
		"refused":             {answer(403, xml("InvalidAccessKeyId")), objectstore.Refused},
		"signature":           {answer(403, xml("SignatureDoesNotMatch")), objectstore.Refused},
		"no bucket":           {answer(404, xml("NoSuchBucket")), objectstore.NoBucket},
		"damaged on its way":  {answer(400, xml("BadDigest")), objectstore.Damaged},
		"forbidden, no words": {answer(403, ""), objectstore.Refused},
	} {
		b := open(t, objectstoretest.Serve(t, "", c.change), "some-bucket")
		err := b.Put(t.Context(), "k", strings.NewReader("text"), 4, "")
		if objectstore.KindOf(err) != c.want || err == nil || !strings.Contains(err.Error(), "put s3://some-bucket/k") {
			t.Errorf("%s: %v, expected one that is %s", what, err, c.want)
		}
	}
	b := open(t, objectstoretest.Serve(t, "", nil), "there-is-no-such")
	if err := b.Put(t.Context(), "k", strings.NewReader("text"), 4, ""); objectstore.KindOf(err) != objectstore.NoBucket {
		t.Errorf("put into a bucket that is not there: %v", err)
	}
	nowhere := open(t, objectstore.Config{Endpoint: "http://127.0.0.1:1", AccessKey: "a", SecretKey: "b"}, "some-bucket")
	if _, err := nowhere.Stat(t.Context(), "k"); objectstore.KindOf(err) != objectstore.Unavailable || err == nil {
		t.Errorf("a server that is not there: %v", err)
	}
}

func TestAServerThatHangsIsLeft(t *testing.T) {
	held := make(chan struct{})
	c := objectstoretest.Serve(t, "", func(http.Handler) http.Handler {
		return http.HandlerFunc(func(_ http.ResponseWriter, q *http.Request) {
			_, _ = io.Copy(io.Discard, q.Body) // so that the end of the connection is seen
			select {
			case <-held:
			case <-q.Context().Done():
			}
		})
	})
	t.Cleanup(func() { close(held) })
	ctx, cancel := context.WithCancel(t.Context())
	time.AfterFunc(50*time.Millisecond, cancel)
	if err := open(t, c, "some-bucket").Put(ctx, "k", strings.NewReader("text"), 4, ""); !errors.Is(err, context.Canceled) {
		t.Errorf("a caller who leaves gets %v", err)
	}
}

// TestATruncatedAnswerIsNoEnd: a connection that breaks off does not look like a short object.
func TestATruncatedAnswerIsNoEnd(t *testing.T) {
	bucket := objectstoretest.Name()
	var cut atomic.Bool
	c := objectstoretest.Serve(t, bucket, objectstoretest.Cut(1000, func(q *http.Request) bool { return cut.Load() && q.Method == http.MethodGet }))
	b, content := open(t, c, bucket), bytes.Repeat([]byte("x"), 100_000)
	if err := b.Put(t.Context(), "k", bytes.NewReader(content), int64(len(content)), ""); err != nil {
		t.Fatal(err)
	}
	cut.Store(true)
	r, err := b.Get(t.Context(), "k")
	if err != nil {
		t.Fatal(err)
	}
	got, err := io.ReadAll(r)
	if err == nil || len(got) >= len(content) {
		t.Errorf("read %d of %d bytes without an error", len(got), len(content))
	}
	_ = r.Close() // it has failed
}

func TestLocationsAreRead(t *testing.T) {
	for text, want := range map[string]string{
		"s3://models": "s3://models key", "s3://models/": "s3://models key", "s3://models/a/b/": "s3://models/a/b a/b/key", "s3://my.bucket-1/x": "s3://my.bucket-1/x x/key",
	} {
		l, err := objectstore.ParseLocation(text)
		if got := l.String() + " " + l.Key("key"); err != nil || got != want {
			t.Errorf("%s is %s (%v), expected %s", text, got, err, want)
		}
	}
	for _, text := range []string{"", "s3://", "models", "https://models/x", "s3://M", "s3://models/a//b", "s3://models/../x", "s3://models?x", "s3://u@models", "s3://models:9/x", "s3://a_b/c"} {
		if l, err := objectstore.ParseLocation(text); err == nil {
			t.Errorf("%q is %+v", text, l)
		}
	}
}

func FuzzParseLocation(f *testing.F) {
	for _, seed := range []string{"s3://models/a/b", "s3://a.b/..", "s3://", "https://x", "s3://models/%2e%2e/x"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		l, err := objectstore.ParseLocation(text)
		if err != nil {
			return
		}
		for part := range strings.SplitSeq(l.Key("key"), "/") {
			if part == "" || part == "." || part == ".." {
				t.Errorf("%q has the key %q", text, l.Key("key"))
			}
		}
	})
}
