package objectstore

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/minio/minio-go/v7"
	"github.com/minio/minio-go/v7/pkg/credentials"
)

// Config says where a server is that speaks S3, and who asks.
type Config struct {
	// Endpoint is its URL, https://host or http://host:port, without a path. Default https://s3.amazonaws.com.
	Endpoint string
	// Region of the buckets. Default us-east-1.
	Region string
	// AccessKey and SecretKey are the credentials. Required.
	AccessKey, SecretKey string
	// Transport, unless nil, takes the place of the default one. Its connections are the caller's.
	Transport http.RoundTripper
	// Patience bounds the wait for the header of an answer. Default 30 s.
	Patience time.Duration
}

func (c Config) withDefaults() Config {
	if c.Endpoint == "" {
		c.Endpoint = "https://s3.amazonaws.com"
	}
	if c.Region == "" {
		c.Region = "us-east-1"
	}
	if c.Patience == 0 {
		c.Patience = 30 * time.Second
	}
	return c
}

// Validate reports what is missing, or no URL of a server.
func (c Config) Validate() error {
	u, err := url.Parse(c.withDefaults().Endpoint)
	switch {
	case err != nil || u.Scheme != "https" && u.Scheme != "http" || u.Host == "" || u.Path != "" && u.Path != "/" || u.RawQuery != "" || u.User != nil:
		return fmt.Errorf("endpoint %q: want https://HOST or http://HOST:PORT", c.Endpoint)
	case c.AccessKey == "" || c.SecretKey == "":
		return errors.New("credentials: an access key and a secret key are needed")
	}
	return nil
}

// s3 is a bucket of a server.
type s3 struct {
	client *minio.Client
	bucket string
}

// Open returns a bucket. Nothing is asked of the server yet.
func Open(c Config, bucket string) (Bucket, error) {
	if err := c.Validate(); err != nil {
		return nil, fmt.Errorf("open bucket %s: %w", bucket, err)
	}
	c = c.withDefaults()
	u, _ := url.Parse(c.Endpoint) // it was valid
	if c.Transport == nil {
		t, err := minio.DefaultTransport(u.Scheme == "https")
		if err != nil {
			return nil, fmt.Errorf("open bucket %s: %w", bucket, err)
		}
		t.ResponseHeaderTimeout = c.Patience
		c.Transport = t
	}
	client, err := minio.New(u.Host, &minio.Options{
		Creds: credentials.NewStaticV4(c.AccessKey, c.SecretKey, ""), Secure: u.Scheme == "https", Region: c.Region, Transport: c.Transport,
		BucketLookup: minio.BucketLookupAuto, MaxRetries: 1, // whoever calls waits and tries again
	})
	if err != nil {
		return nil, fmt.Errorf("open bucket %s: %w", bucket, err)
	}
	return &s3{client: client, bucket: bucket}, nil
}

// shaKey is the name of the metadata that holds an object's SHA-256.
const shaKey = "Sha256"

// codes are the kinds of what servers answer.
var codes = map[string]Kind{
	"NoSuchKey": NoObject, "NotFound": NoObject, "NoSuchBucket": NoBucket,
	"AccessDenied": Refused, "InvalidAccessKeyId": Refused, "SignatureDoesNotMatch": Refused, "AllAccessDisabled": Refused, "ExpiredToken": Refused,
	"BadDigest": Damaged, "XAmzContentSHA256Mismatch": Damaged, "XAmzContentChecksumMismatch": Damaged, "IncompleteBody": Unavailable,
	"PreconditionFailed": Changed, "InvalidRange": Changed,
}

// fail says what went wrong.
func (s *s3) fail(op, key string, err error) error {
	if err == nil {
		return nil
	}
	if _, own := errors.AsType[*Error](err); own {
		return err
	}
	e := &Error{Kind: Unavailable, Op: op, URL: "s3://" + s.bucket + "/" + key, Err: err}
	answer := minio.ToErrorResponse(err)
	switch kind, known := codes[answer.Code]; {
	case known:
		e.Kind = kind
	case answer.StatusCode == http.StatusForbidden || answer.StatusCode == http.StatusUnauthorized:
		e.Kind = Refused
	case answer.StatusCode == http.StatusNotFound && key != "":
		e.Kind = NoObject
	case answer.StatusCode == http.StatusPreconditionFailed || answer.StatusCode == http.StatusRequestedRangeNotSatisfiable:
		e.Kind = Changed
	}
	return e
}

func (s *s3) Put(ctx context.Context, key string, content io.Reader, bytes int64, sha256 string) error {
	_, err := s.client.PutObject(ctx, s.bucket, key, content, bytes, minio.PutObjectOptions{
		ContentType: "application/octet-stream", UserMetadata: map[string]string{shaKey: sha256}, SendContentMd5: true,
	})
	return s.fail("put", key, err)
}

func (s *s3) Stat(ctx context.Context, key string) (Info, error) {
	found, err := s.client.StatObject(ctx, s.bucket, key, minio.StatObjectOptions{})
	if err != nil {
		return Info{}, s.fail("stat", key, err)
	}
	return Info{Key: key, Bytes: found.Size, SHA256: found.UserMetadata[shaKey], ETag: found.ETag}, nil
}

func (s *s3) Get(ctx context.Context, key string) (io.ReadCloser, error) {
	o, err := s.client.GetObject(ctx, s.bucket, key, minio.GetObjectOptions{})
	if err != nil {
		return nil, s.fail("get", key, err)
	}
	return &reader{s: s, key: key, ReadCloser: o}, nil
}

func (s *s3) GetFrom(ctx context.Context, key, etag string, first int64) (io.ReadCloser, error) {
	o := minio.GetObjectOptions{}
	err := o.SetMatchETag(etag)
	if err == nil && first > 0 {
		err = o.SetRange(first, 0)
	}
	if err != nil {
		return nil, s.fail("get", key, err)
	}
	body, found, header, err := (&minio.Core{Client: s.client}).GetObject(ctx, s.bucket, key, o)
	if err != nil {
		return nil, s.fail("get", key, err)
	}
	switch {
	case found.ETag != etag: // a server that does not know If-Match
		err = &Error{Kind: Changed, Op: "get", URL: "s3://" + s.bucket + "/" + key, Err: fmt.Errorf("its ETag is %q, expected %q", found.ETag, etag)}
	case first > 0 && !strings.HasPrefix(header.Get("Content-Range"), fmt.Sprintf("bytes %d-", first)):
		err = s.fail("get", key, fmt.Errorf("the server answers with the range %q, asked for the bytes from %d on", header.Get("Content-Range"), first))
	}
	if err != nil {
		return nil, errors.Join(err, body.Close())
	}
	return &reader{s: s, key: key, ReadCloser: body}, nil
}

// reader says what goes wrong while an object is read.
type reader struct {
	io.ReadCloser
	s   *s3
	key string
}

func (r *reader) Read(p []byte) (int, error) {
	n, err := r.ReadCloser.Read(p)
	if err != nil && !errors.Is(err, io.EOF) {
		err = r.s.fail("get", r.key, err)
	}
	return n, err
}

func (s *s3) List(ctx context.Context, prefix string) ([]Info, error) {
	ctx, cancel := context.WithCancel(ctx) // ends the listing where this returns early
	defer cancel()
	var all []Info
	for o := range s.client.ListObjects(ctx, s.bucket, minio.ListObjectsOptions{Prefix: prefix, Recursive: true}) {
		if o.Err != nil {
			return nil, s.fail("list", prefix, o.Err)
		}
		all = append(all, Info{Key: o.Key, Bytes: o.Size, ETag: strings.Trim(o.ETag, `"`)})
	}
	if err := ctx.Err(); err != nil {
		return nil, s.fail("list", prefix, err)
	}
	return all, nil
}

func (s *s3) Delete(ctx context.Context, key string) error {
	err := s.fail("delete", key, s.client.RemoveObject(ctx, s.bucket, key, minio.RemoveObjectOptions{}))
	if err != nil && KindOf(err) == NoObject {
		return nil
	}
	return err
}
