package remotedata

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/avgpipe/avgpipe/internal/access"
	"github.com/avgpipe/avgpipe/internal/objectstore"
	"github.com/avgpipe/avgpipe/job"
)

// Source is a part of what can be reached that jobs may read.
type Source struct {
	// URL is what the URLs of the source begin with: s3://BUCKET/PREFIX, https://HOST/PATH or, for every host, https://.
	URL string
	// UIDs and GIDs may read it. Both empty: whoever may submit a job.
	UIDs, GIDs []uint32
	// Private lets a host of https have a private address, or that of this host.
	Private bool
	// Token is sent to a host of https as a bearer token. Empty: none.
	Token string
	// Bucket says where the server of a bucket is, and who asks there. Required of s3.
	Bucket *objectstore.Config
}

// Validate reports what cannot be a source.
func (s *Source) Validate() error {
	if s.URL == anyHost {
		if s.Token != "" || s.Private {
			return fmt.Errorf("%s stands for every host, and none gets a token there or may have a private address; name a host", s.URL)
		}
		return nil
	}
	u, err := job.ParseURL(s.URL)
	switch {
	case err != nil:
		return err
	case u.SHA256 != "" || strings.Contains(u.Path, "?"):
		return errors.New("a source is what URLs begin with, without ? and #")
	case u.Scheme == job.SchemeS3 && s.Bucket == nil:
		return errors.New("a bucket without credentials")
	case u.Scheme == job.SchemeS3 && (s.Token != "" || s.Private):
		return errors.New("a bucket has credentials and an endpoint; a token and private are for https")
	case u.Scheme == job.SchemeHTTPS && s.Bucket != nil:
		return errors.New("credentials and an endpoint are for s3; a host of https has a token")
	}
	return nil
}

// anyHost is the URL of a source for every host.
const anyHost = job.SchemeHTTPS + "://"

// covers reports whether a URL is one of the source.
func (s *Source) covers(u string) bool {
	if s.URL == anyHost {
		return strings.HasPrefix(u, anyHost)
	}
	own, err := job.ParseURL(s.URL)
	if err != nil {
		return false
	}
	if u+"/" == own.String() { // a directory, by its name
		return true
	}
	rest, ok := strings.CutPrefix(u, own.String())
	return ok && (strings.HasSuffix(own.String(), "/") || rest == "" || rest[0] == '/' || rest[0] == '?')
}

// allows reports whether a user may read from the source; nil is the daemon's own.
func (s *Source) allows(u *access.User) bool {
	if u == nil || len(s.UIDs)+len(s.GIDs) == 0 {
		return true
	}
	return slices.Contains(s.UIDs, u.UID) || slices.ContainsFunc(u.GIDs, func(g uint32) bool { return slices.Contains(s.GIDs, g) })
}

// Sources are those of a host.
type Sources []Source

// For is the source of a URL for a user. Of several the longest counts: whoever may not read a part of a bucket does not get it by what surrounds
// it.
func (all Sources) For(user *access.User, u job.URL) (*Source, error) {
	longest, found := -1, (*Source)(nil)
	for i := range all {
		s := &all[i]
		if n := len(s.URL); s.covers(u.String()) && n >= longest {
			if n > longest {
				longest, found = n, nil
			}
			if found == nil && s.allows(user) {
				found = s
			}
		}
	}
	switch {
	case longest < 0:
		return nil, refuse(u, errors.New("no source of this host covers it; an administrator can add one (data_sources)"))
	case found == nil:
		return nil, refuse(u, fmt.Errorf("user %d is not among those who may read it (data_sources)", user.UID))
	}
	return found, nil
}

// refuse is the error of a URL that must not be read.
func refuse(u job.URL, err error) error {
	return &objectstore.Error{Kind: objectstore.Refused, Op: "read", URL: u.Shown(), Err: err}
}
