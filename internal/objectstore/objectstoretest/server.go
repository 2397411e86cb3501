package objectstoretest

import (
	"cmp"
	"flag"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/johannesboyne/gofakes3"
	"github.com/johannesboyne/gofakes3/backend/s3mem"
	"github.com/minio/minio-go/v7"
	"github.com/minio/minio-go/v7/pkg/credentials"

	"github.com/avgpipe/avgpipe/internal/objectstore"
)

// The keys of the server.
const accessKey, secretKey = "test", "testtest"

var given = flag.String("s3", "", "URL of a server that speaks S3, whose keys are test and testtest, to test with in place of one in this process (make test-s3)")

// Name is that of a bucket that no other test has made.
func Name() string { return fmt.Sprintf("avgpipe-test-%d", time.Now().UnixNano()) }

// Serve returns where a server is that speaks S3, with an empty bucket of a name; "": without one. change, unless nil, comes before its handler.
func Serve(t *testing.T, bucket string, change func(next http.Handler) http.Handler) objectstore.Config {
	t.Helper()
	c := objectstore.Config{AccessKey: accessKey, SecretKey: secretKey, Patience: 5 * time.Second}
	handler := http.Handler(nil)
	if *given == "" {
		handler = gofakes3.New(s3mem.New()).Server()
	} else {
		handler = forward(*given)
	}
	plain := httptest.NewServer(handler)
	t.Cleanup(plain.Close)
	c.Endpoint = cmp.Or(*given, plain.URL)
	if bucket != "" {
		makeBucket(t, strings.TrimPrefix(c.Endpoint, "http://"), bucket)
	}
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
	c, err := minio.New(host, &minio.Options{Creds: credentials.NewStaticV4(accessKey, secretKey, ""), Transport: transport, Region: "us-east-1"})
	if err != nil {
		t.Fatal(err)
	}
	if err := c.MakeBucket(t.Context(), bucket, minio.MakeBucketOptions{}); err != nil {
		t.Fatal(err)
	}
}

// Cut has answers to a request end after some bytes, while cut says so.
func Cut(bytes int, cut func(q *http.Request) bool) func(next http.Handler) http.Handler {
	return func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
			if cut(q) {
				w = &cutter{ResponseWriter: w, left: bytes}
			}
			next.ServeHTTP(w, q)
		})
	}
}

// cutter ends a connection after some bytes.
type cutter struct {
	http.ResponseWriter
	left int
}

func (c *cutter) Write(p []byte) (int, error) {
	if len(p) > c.left {
		_, _ = c.ResponseWriter.Write(p[:c.left]) // then it ends
		_ = http.NewResponseController(c.ResponseWriter).Flush()
		panic(http.ErrAbortHandler)
	}
	c.left -= len(p)
	return c.ResponseWriter.Write(p)
}
