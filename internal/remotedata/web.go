package remotedata

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"path"
	"strconv"
	"strings"

	"github.com/avgpipe/avgpipe/internal/access"
	"github.com/avgpipe/avgpipe/internal/objectstore"
	"github.com/avgpipe/avgpipe/internal/pinned"
	"github.com/avgpipe/avgpipe/job"
)

// mostRedirects bounds how often a server may send us on.
const mostRedirects = 5

// web reads from servers of https.
type web struct {
	sources        Sources
	public, nearby http.RoundTripper // for sources without and with private addresses
}

// get asks for a file. Every URL that a server sends us on to has to be one that the user may read.
func (w *web) get(ctx context.Context, user *access.User, u job.URL, header http.Header) (*http.Response, error) {
	at := u
	for range mostRedirects + 1 {
		source, err := w.sources.For(user, at)
		if err != nil {
			if at.String() != u.String() {
				err = refuse(u, fmt.Errorf("its server says that it is at another place: %w", err))
			}
			return nil, err
		}
		q, err := http.NewRequestWithContext(ctx, http.MethodGet, at.String(), nil)
		if err != nil {
			return nil, refuse(u, errors.New("no request can be made of it"))
		}
		q.Header = header.Clone()
		if source.Token != "" {
			q.Header.Set("Authorization", "Bearer "+source.Token)
		}
		through := w.public
		if source.Private {
			through = w.nearby
		}
		answer, err := through.RoundTrip(q)
		if err != nil {
			return nil, unreached(ctx, u, err)
		}
		if answer.StatusCode < 300 || answer.StatusCode > 399 {
			return answer, nil
		}
		_ = answer.Body.Close() // nobody reads it
		next, err := q.URL.Parse(answer.Header.Get("Location"))
		if err == nil {
			next.Fragment = ""
			at, err = job.ParseURL(next.String())
		}
		if err != nil || at.Scheme != job.SchemeHTTPS {
			return nil, refuse(u, fmt.Errorf("its server answers with status %d and sends us on to no URL of https", answer.StatusCode))
		}
	}
	return nil, refuse(u, fmt.Errorf("its server sends us on more than %d times", mostRedirects))
}

// unreached is the error of a question without an answer. It does not repeat the URL, which may hold a secret.
func unreached(ctx context.Context, u job.URL, err error) error {
	if ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	if bad, ok := errors.AsType[*url.Error](err); ok {
		err = bad.Err
	}
	kind := objectstore.Unavailable
	if _, wrong := errors.AsType[*AddressError](err); wrong {
		kind = objectstore.Refused
	}
	if _, wrong := errors.AsType[*tls.CertificateVerificationError](err); wrong {
		kind = objectstore.Refused
	}
	return &objectstore.Error{Kind: kind, Op: "get", URL: u.Shown(), Err: err}
}

// statuses are the kinds of answers that are none. Others of the class 4xx refuse the request.
var statuses = map[int]objectstore.Kind{
	http.StatusNotFound: objectstore.NoObject, http.StatusGone: objectstore.NoObject, http.StatusPreconditionFailed: objectstore.Changed,
	http.StatusRequestTimeout: objectstore.Unavailable, http.StatusTooManyRequests: objectstore.Unavailable, http.StatusTooEarly: objectstore.Unavailable,
	http.StatusRequestedRangeNotSatisfiable: objectstore.Changed,
}

// answered is the error of an answer that is no content.
func answered(u job.URL, answer *http.Response) error {
	kind, known := statuses[answer.StatusCode]
	if !known {
		kind = objectstore.Unavailable
		if answer.StatusCode < 500 {
			kind = objectstore.Refused
		}
	}
	return &objectstore.Error{Kind: kind, Op: "get", URL: u.Shown(), Err: fmt.Errorf("status %d %s", answer.StatusCode, http.StatusText(answer.StatusCode))}
}

// etagOf is the strong ETag of an answer; "" where it has none.
func etagOf(answer *http.Response) string {
	tag := answer.Header.Get("ETag")
	if len(tag) < 3 || tag[0] != '"' || tag[len(tag)-1] != '"' || len(tag) > 256 {
		return ""
	}
	return tag[1 : len(tag)-1]
}

// lengthOf is the length of the whole file, of which an answer has a part that begins at first; negative: nobody knows.
func lengthOf(answer *http.Response) (first, length int64) {
	if answer.StatusCode != http.StatusPartialContent {
		return 0, answer.ContentLength
	}
	span, total, ok := strings.Cut(strings.TrimPrefix(answer.Header.Get("Content-Range"), "bytes "), "/")
	from, _, dash := strings.Cut(span, "-")
	first, err := strconv.ParseInt(from, 10, 64)
	length, wrong := strconv.ParseInt(total, 10, 64)
	if !ok || !dash || err != nil || wrong != nil {
		return 0, -1
	}
	return first, length
}

// resolve finds out what a file is. It asks for the first byte: not every server answers to HEAD.
func (w *web) resolve(ctx context.Context, user *access.User, entry string, u job.URL) ([]pinned.Object, error) {
	answer, err := w.get(ctx, user, u, http.Header{"Range": {"bytes=0-0"}})
	if err != nil {
		return nil, err
	}
	defer answer.Body.Close() //nolint:errcheck // nobody reads it
	if answer.StatusCode == http.StatusRequestedRangeNotSatisfiable {
		return nil, refuse(u, errors.New("it is empty"))
	}
	if answer.StatusCode != http.StatusOK && answer.StatusCode != http.StatusPartialContent {
		return nil, answered(u, answer)
	}
	name, err := url.PathUnescape(path.Base(strings.TrimSuffix(u.Path, queryOf(u.Path))))
	if err != nil || name == "." || name == "/" {
		name = u.Host
	}
	o := pinned.Object{Entry: entry, URL: u.String(), Name: name, SHA256: u.SHA256}
	if _, o.Bytes = lengthOf(answer); o.Bytes < 0 {
		return nil, refuse(u, errors.New("its server does not say how long it is"))
	}
	if o.SHA256 == "" {
		o.ETag = etagOf(answer)
	}
	switch {
	case o.Bytes == 0:
		return nil, refuse(u, errors.New("it is empty"))
	case o.SHA256 == "" && o.ETag == "":
		return nil, refuse(u, errors.New("its server has no strong ETag for it, so nobody could tell whether it is the same later; add #sha256= and its digest, as sha256sum prints it"))
	}
	return []pinned.Object{o}, nil
}

// queryOf is the query of a path, with its question mark.
func queryOf(p string) string {
	if at := strings.IndexByte(p, '?'); at >= 0 {
		return p[at:]
	}
	return ""
}

// open opens a file from a byte on, or from its start where the server cannot do that.
func (w *web) open(ctx context.Context, user *access.User, o *pinned.Object, u job.URL, first int64) (io.ReadCloser, int64, error) {
	header := http.Header{"Accept-Encoding": {"identity"}}
	if o.ETag != "" {
		header.Set("If-Match", `"`+o.ETag+`"`)
	}
	if first > 0 {
		header.Set("Range", fmt.Sprintf("bytes=%d-", first))
	}
	answer, err := w.get(ctx, user, u, header)
	if err != nil {
		return nil, 0, err
	}
	changed := func(format string, args ...any) error {
		return &objectstore.Error{Kind: objectstore.Changed, Op: "get", URL: u.Shown(), Err: fmt.Errorf(format, args...)}
	}
	from, length := lengthOf(answer)
	switch {
	case answer.StatusCode != http.StatusOK && answer.StatusCode != http.StatusPartialContent:
		err = answered(u, answer)
	case o.ETag != "" && etagOf(answer) != o.ETag: // a server that does not know If-Match
		err = changed("its ETag is %q, expected %q", etagOf(answer), o.ETag)
	case length != o.Bytes:
		err = changed("it has %d bytes, expected %d", length, o.Bytes)
	case from != 0 && from != first:
		err = &objectstore.Error{Kind: objectstore.Unavailable, Op: "get", URL: u.Shown(), Err: fmt.Errorf("its server answers with the bytes from %d on, asked for those from %d on", from, first)}
	}
	if err != nil {
		return nil, 0, errors.Join(err, answer.Body.Close())
	}
	return &body{answer.Body, u}, from, nil
}

// body says what goes wrong while a file is read.
type body struct {
	io.ReadCloser
	url job.URL
}

func (b *body) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if err != nil && !errors.Is(err, io.EOF) {
		err = &objectstore.Error{Kind: objectstore.Unavailable, Op: "get", URL: b.url.Shown(), Err: err}
	}
	return n, err
}
