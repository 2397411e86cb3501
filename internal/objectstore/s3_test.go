package objectstore_test

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/johannesboyne/gofakes3"
	"github.com/johannesboyne/gofakes3/backend/s3mem"
	"github.com/minio/minio-go/v7"
	"github.com/minio/minio-go/v7/pkg/credentials"

	"github.com/avgpipe/avgpipe/internal/objectstore"
	"github.com/avgpipe/avgpipe/internal/objectstore/objectstoretest"
)

var server = flag.String("s3", "", "URL of a server that speaks S3, whose keys are test and testtest, to test with in place of one in this process")

// start returns where a server is, with an empty bucket of a name. change, unless nil, comes before its handler.
func start(t *testing.T, bucket string, change func(next http.Handler) http.Handler) objectstore.Config {
	t.Helper()
	c := objectstore.Config{AccessKey: "test", SecretKey: "testtest", Patience: 5 * time.Second}
	var handler http.Handler
	if *server == "" {
		handler = gofakes3.New(s3mem.New()).Server()
	} else {
		handler = forward(*server)
	}
	plain := httptest.NewServer(handler)
	t.Cleanup(plain.Close)
	if bucket != "" {
		makeBucket(t, strings.TrimPrefix(cmpOr(*server, plain.URL), "http://"), bucket)
	}
	c.Endpoint = cmpOr(*server, plain.URL)
	if change != nil {
		s := httptest.NewServer(change(handler))
		t.Cleanup(s.Close)
		c.Endpoint = s.URL
	}
	transport := &http.Transport{ResponseHeaderTimeout: c.Patience}
	t.Cleanup(transport.CloseIdleConnections)
	c.Transport = transport
	return c
}

func cmpOr(a, b string) string {
	if a != "" {
		return a
	}
	return b
}

// forward passes requests on as they are: their signature names the first server.
func forward(to string) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
		out := q.Clone(q.Context())
		out.RequestURI, out.URL.Scheme, out.URL.Host = "", "http", strings.TrimPrefix(to, "http://")
		answer, err := http.DefaultTransport.RoundTrip(out)
		if err != nil {
			w.WriteHeader(http.StatusBadGateway)
			return
		}
		defer answer.Body.Close()
		maps.Copy(w.Header(), answer.Header)
		w.WriteHeader(answer.StatusCode)
		_, _ = io.Copy(w, answer.Body) // the client sees it
	})
}

func makeBucket(t *testing.T, host, bucket string) {
	t.Helper()
	transport := &http.Transport{}
	defer transport.CloseIdleConnections()
	c, err := minio.New(host, &minio.Options{Creds: credentials.NewStaticV4("test", "testtest", ""), Transport: transport, Region: "us-east-1"})
	if err != nil {
		t.Fatal(err)
	}
	if err := c.MakeBucket(t.Context(), bucket, minio.MakeBucketOptions{}); err != nil {
		t.Fatal(err)
	}
}

func open(t *testing.T, c objectstore.Config, bucket string) objectstore.Bucket {
	t.Helper()
	b, err := objectstore.Open(c, bucket)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// name is a bucket that no other test has made.
func name(t *testing.T) string {
	t.Helper()
	return fmt.Sprintf("avgpipe-test-%d", time.Now().UnixNano())
}

func TestBucketsAreBuckets(t *testing.T) {
	t.Run("in memory", func(t *testing.T) { objectstoretest.Conform(t, &objectstoretest.Memory{}) })
	t.Run("of a server", func(t *testing.T) {
		bucket := name(t)
		objectstoretest.Conform(t, open(t, start(t, bucket, nil), bucket))
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
		b := open(t, start(t, "", c.change), "some-bucket")
		err := b.Put(t.Context(), "k", strings.NewReader("text"), 4, "")
		if objectstore.KindOf(err) != c.want || err == nil || !strings.Contains(err.Error(), "put s3://some-bucket/k") {
			t.Errorf("%s: %v, expected one that is %s", what, err, c.want)
		}
	}
	b := open(t, start(t, "", nil), "there-is-no-such")
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
	c := start(t, "", func(http.Handler) http.Handler {
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
	bucket := name(t)
	var cut atomic.Bool
	c := start(t, bucket, func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
			if cut.Load() && q.Method == http.MethodGet {
				w = &cutter{ResponseWriter: w, left: 1000}
			}
			next.ServeHTTP(w, q)
		})
	})
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

// cutter ends a connection after some bytes.
type cutter struct {
	http.ResponseWriter
	left int
}

func (c *cutter) Write(p []byte) (int, error) {
	if len(p) > c.left {
		_, _ = c.ResponseWriter.Write(p[:c.left]) // then it ends
		panic(http.ErrAbortHandler)
	}
	c.left -= len(p)
	return c.ResponseWriter.Write(p)
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
