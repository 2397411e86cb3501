// Package objectstore keeps objects under keys in a bucket: what internal/archive and internal/remotedata need of S3, and no more.
//
//   - Bucket: the interface. objectstoretest has a bucket in memory, and the suite that every bucket passes.
//   - Open: a bucket of a server that speaks S3.
//   - Error: why an operation failed, and whether another try may succeed.
package objectstore

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/url"
	"regexp"
	"strings"
)

// Info is what a bucket says of an object.
type Info struct {
	Key    string
	Bytes  int64
	SHA256 string // hexadecimal, as whoever put the object said; empty from List
	ETag   string // of the content, without quotes: another one after another Put of other content
}

// Bucket keeps objects. Its methods may be called concurrently. Their errors are *Error.
type Bucket interface {
	// Put stores an object of a length, at least 1, in the place of one of that key. It returns once the object is durable, and leaves the old one,
	// or none, after an error. content is read once, from its start.
	Put(ctx context.Context, key string, content io.Reader, bytes int64, sha256 string) error
	// Stat asks for an object again. An absent one is an error that wraps fs.ErrNotExist.
	Stat(ctx context.Context, key string) (Info, error)
	// Get reads an object from its start. An absent one is an error that wraps fs.ErrNotExist, here or from the first Read. The caller closes
	// it.
	Get(ctx context.Context, key string) (io.ReadCloser, error)
	// GetFrom reads an object from a byte on, which it has, if its ETag is this one; else the error is Changed. An absent one is an error that
	// wraps fs.ErrNotExist. The caller closes it.
	GetFrom(ctx context.Context, key, etag string, first int64) (io.ReadCloser, error)
	// List returns the objects whose keys begin with a prefix, in the order of their keys.
	List(ctx context.Context, prefix string) ([]Info, error)
	// Delete removes an object; that there is none is no error.
	Delete(ctx context.Context, key string) error
}

// Kind is why an operation failed.
type Kind string

// The kinds of Error. Only the first may pass without somebody's doing.
const (
	Unavailable Kind = "unavailable" // the server does not answer, or says that it cannot
	Refused     Kind = "refused"     // the credentials, or what is asked for
	NoBucket    Kind = "no_bucket"
	NoObject    Kind = "no_object"
	Damaged     Kind = "damaged" // content is not what it is said to be
	Changed     Kind = "changed" // the object has another ETag than the one that was asked for
	Differs     Kind = "differs" // the content has another digest than the one that a user gave
)

// Error is a failed operation on a bucket.
type Error struct {
	Kind Kind
	Op   string // "put", "stat", "get", "list", "delete"
	URL  string // s3://bucket/key
	Err  error
}

func (e *Error) Error() string {
	what := map[Kind]string{
		Refused: "access is refused", NoBucket: "there is no such bucket",
		Damaged: "the content is damaged", Changed: "the object was replaced by another", Differs: "the content has another digest", NoObject: "there is no such object", Unavailable: "the store cannot be used now",
	}[e.Kind]
	return fmt.Sprintf("%s %s: %s: %v", e.Op, e.URL, what, e.Err)
}

// Unwrap gives the cause.
func (e *Error) Unwrap() error { return e.Err }

// Is makes an absent object one for errors.Is.
func (e *Error) Is(target error) bool { return target == fs.ErrNotExist && e.Kind == NoObject }

// KindOf is the kind of an error of a bucket; Unavailable of any other.
func KindOf(err error) Kind {
	if e, ok := errors.AsType[*Error](err); ok {
		return e.Kind
	}
	return Unavailable
}

// Location is a place in a bucket.
type Location struct{ Bucket, Prefix string }

// bucketName is a name that every server takes.
var bucketName = regexp.MustCompile(`^[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]$`)

// ParseLocation reads s3://bucket/prefix. The prefix may be empty; it has no empty part and none that is a dot.
func ParseLocation(text string) (Location, error) {
	fail := func(why string) error { return fmt.Errorf("%q: %s; want s3://BUCKET/PREFIX", text, why) }
	u, err := url.Parse(text)
	switch {
	case err != nil || u.Scheme != "s3" || u.RawQuery != "" || u.Fragment != "" || u.User != nil || u.Port() != "":
		return Location{}, fail("not a place in a bucket")
	case !bucketName.MatchString(u.Host):
		return Location{}, fail("a bucket's name has 3 to 63 lower-case letters, digits, dots and dashes")
	}
	prefix := strings.Trim(u.Path, "/")
	for part := range strings.SplitSeq(prefix, "/") {
		if prefix != "" && (part == "" || part == "." || part == "..") || len(prefix) > 512 {
			return Location{}, fail("a prefix has at most 512 bytes, and no empty part")
		}
	}
	return Location{u.Host, prefix}, nil
}

// String is the location as it is written.
func (l Location) String() string { return strings.TrimSuffix("s3://"+l.Bucket+"/"+l.Prefix, "/") }

// Key is the key of a name below the prefix.
func (l Location) Key(name string) string { return strings.TrimPrefix(l.Prefix+"/"+name, "/") }
