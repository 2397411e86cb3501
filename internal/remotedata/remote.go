package remotedata

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"path"
	"strings"
	"sync"

	"github.com/bmatcuk/doublestar/v4"

	"github.com/avgpipe/avgpipe/internal/access"
	"github.com/avgpipe/avgpipe/internal/objectstore"
	"github.com/avgpipe/avgpipe/internal/pinned"
	"github.com/avgpipe/avgpipe/job"
)

// Bounds of what a job may read from elsewhere: the replicated state keeps the list of it.
const (
	MaxObjects = 4096
	MaxText    = 256 << 10
)

// Remote reads from sources. Its methods may be called concurrently. Their errors are *objectstore.Error.
type Remote struct {
	sources Sources
	web     web

	mu      sync.Mutex
	buckets map[string]objectstore.Bucket // by source and bucket
	open    func(s *Source, bucket string) (objectstore.Bucket, error)
}

// New reads from sources, which are valid.
func New(sources Sources) *Remote {
	return &Remote{
		sources: sources, web: web{sources, transport(false), transport(true)}, buckets: map[string]objectstore.Bucket{},
		open: func(s *Source, bucket string) (objectstore.Bucket, error) { return objectstore.Open(*s.Bucket, bucket) },
	}
}

// Close closes connections that nobody uses.
func (r *Remote) Close() {
	for _, t := range []http.RoundTripper{r.web.public, r.web.nearby} {
		if c, ok := t.(interface{ CloseIdleConnections() }); ok {
			c.CloseIdleConnections()
		}
	}
}

// Resolve finds what an entry of data.files stands for now, in the order of names: an object of a bucket, all below a prefix, those that a pattern
// matches, or a file of a web server. Names that start with a dot and empty objects are left out, as they are of directories.
func (r *Remote) Resolve(ctx context.Context, user *access.User, entry string) ([]pinned.Object, error) {
	u, err := job.ParseURL(entry)
	if err != nil {
		return nil, refuse(job.URL{}, err)
	}
	if u.Scheme == job.SchemeHTTPS {
		return r.web.resolve(ctx, user, entry, u)
	}
	bucket, err := r.bucket(user, u)
	if err != nil {
		return nil, err
	}
	if u.Path != "" && !strings.HasSuffix(u.Path, "/") {
		found, err := bucket.Stat(ctx, u.Path)
		switch {
		case err == nil && found.Bytes == 0:
			return nil, refuse(u, errors.New("it is empty"))
		case err == nil:
			return []pinned.Object{{Entry: entry, URL: u.String(), Name: path.Base(u.Path), Bytes: found.Bytes, ETag: found.ETag}}, nil
		case !errors.Is(err, fs.ErrNotExist):
			return nil, err
		}
	}
	return r.list(ctx, user, bucket, entry, u)
}

// list finds the objects of a prefix or a pattern.
func (r *Remote) list(ctx context.Context, user *access.User, bucket objectstore.Bucket, entry string, u job.URL) (all []pinned.Object, err error) {
	root, pattern := u.Path, ""
	if strings.ContainsAny(u.Path, `*?[{\`) {
		root, pattern = doublestar.SplitPattern(u.Path)
		if !doublestar.ValidatePattern(pattern) {
			return nil, refuse(u, errors.New("no pattern: unbalanced brackets or braces"))
		}
	}
	if root = strings.Trim(root, "/") + "/"; root == "/" || root == "./" {
		root = ""
	}
	found, err := bucket.List(ctx, root)
	if err != nil {
		return nil, err
	}
	dots := strings.HasPrefix(pattern, ".") || strings.Contains(pattern, "/.")
	for _, o := range found {
		name := strings.TrimPrefix(o.Key, root)
		hidden := strings.HasPrefix(name, ".") || strings.Contains(name, "/.")
		if o.Bytes == 0 || hidden && !dots || !matches(pattern, name) {
			continue
		}
		at := job.URL{Scheme: u.Scheme, Host: u.Host, Path: o.Key}
		if _, err := r.sources.For(user, at); err != nil {
			return nil, err
		}
		if all = append(all, pinned.Object{Entry: entry, URL: at.String(), Name: name, Bytes: o.Bytes, ETag: o.ETag}); len(all) > MaxObjects {
			return nil, refuse(u, fmt.Errorf("it stands for more than %d objects; join them to fewer and larger ones, as avgpipectl tokenize does", MaxObjects))
		}
	}
	if len(all) == 0 {
		return nil, &objectstore.Error{Kind: objectstore.NoObject, Op: "list", URL: u.Shown(), Err: fmt.Errorf("none of %d objects below %q has content and such a key", len(found), root)}
	}
	return all, nil
}

func matches(pattern, name string) bool {
	if pattern == "" {
		return true
	}
	ok, err := doublestar.Match(pattern, name)
	return ok && err == nil
}

// Allowed says whether a user may read an object on this host.
func (r *Remote) Allowed(user *access.User, o *pinned.Object) error {
	u, err := job.ParseURL(o.URL)
	if err == nil {
		_, err = r.sources.For(user, u)
	}
	return err
}

// Open opens an object from a byte on, or from another that it returns, if it is what it was. The caller closes it.
func (r *Remote) Open(ctx context.Context, user *access.User, o *pinned.Object, first int64) (io.ReadCloser, int64, error) {
	u, err := job.ParseURL(o.URL)
	if err != nil {
		return nil, 0, refuse(u, err)
	}
	if u.Scheme == job.SchemeHTTPS {
		return r.web.open(ctx, user, o, u, first)
	}
	bucket, err := r.bucket(user, u)
	if err != nil {
		return nil, 0, err
	}
	content, err := bucket.GetFrom(ctx, u.Path, o.ETag, first)
	return content, first, err
}

// bucket is that of a URL.
func (r *Remote) bucket(user *access.User, u job.URL) (objectstore.Bucket, error) {
	source, err := r.sources.For(user, u)
	if err != nil {
		return nil, err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	key := source.URL + " " + u.Host
	if b := r.buckets[key]; b != nil {
		return b, nil
	}
	b, err := r.open(source, u.Host)
	if err != nil {
		return nil, refuse(u, err)
	}
	r.buckets[key] = b
	return b, nil
}
