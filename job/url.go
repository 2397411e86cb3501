package job

import (
	"encoding/hex"
	"errors"
	"fmt"
	"net/url"
	"regexp"
	"strings"
)

// IsURL reports whether an entry of data.files or data.validation says where on a network data are. Everything else is a path.
func IsURL(entry string) bool { return strings.Contains(entry, "://") }

// URL is such an entry.
type URL struct {
	Scheme string // SchemeS3 or SchemeHTTPS
	Host   string // or the bucket
	Path   string // that of an object of a bucket is as it is, that of https as it is sent; without the slash at its start
	SHA256 string // of the file, of https; "": its ETag tells whether it is the same
}

// The schemes of URLs.
const (
	SchemeS3    = "s3"
	SchemeHTTPS = "https"
)

var bucketName = regexp.MustCompile(`^[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]$`)

// maxURLBytes bounds an entry. Keys of objects have at most 1,024 bytes.
const maxURLBytes = 2048

// ParseURL reads s3://BUCKET/KEY, of which the key may be a pattern, or https://HOST/PATH, which may end in #sha256=DIGEST.
func ParseURL(entry string) (u URL, err error) {
	scheme, rest, _ := strings.Cut(entry, "://")
	switch {
	case len(entry) > maxURLBytes:
		return u, fmt.Errorf("a URL of %d bytes; at most %d", len(entry), maxURLBytes)
	case strings.ContainsFunc(entry, func(r rune) bool { return r < ' ' || r == 0x7f }):
		return u, errors.New("a URL with control characters")
	case scheme == SchemeS3:
		u.Scheme = scheme
		u.Host, u.Path, _ = strings.Cut(rest, "/")
		if !bucketName.MatchString(u.Host) {
			return u, fmt.Errorf("%q is no bucket: want s3://BUCKET/KEY, the bucket with 3 to 63 lower-case letters, digits, dots and dashes", u.Host)
		}
		return u, nil
	case scheme == SchemeHTTPS:
		return parseHTTPS(entry)
	}
	return u, fmt.Errorf("the scheme is %q; want %s or %s", scheme, SchemeS3, SchemeHTTPS)
}

func parseHTTPS(entry string) (u URL, err error) {
	parsed, err := url.Parse(entry)
	if err != nil {
		return u, errors.New("not a URL; want https://HOST/PATH") // without its text, which may hold a secret
	}
	u = URL{Scheme: SchemeHTTPS, Host: strings.TrimSuffix(strings.ToLower(parsed.Host), ":443"), Path: strings.TrimPrefix(parsed.EscapedPath(), "/")}
	if digest, ok := strings.CutPrefix(parsed.Fragment, "sha256="); ok {
		u.SHA256 = strings.ToLower(digest)
	}
	if raw, err := hex.DecodeString(u.SHA256); parsed.Fragment != "" && (err != nil || len(raw) != 32) {
		return u, errors.New("what follows # is no digest; want #sha256= and 64 hexadecimal digits, as sha256sum prints them")
	}
	switch {
	case parsed.User != nil:
		return u, errors.New("a URL with a user or a password, which the job's record would show; an administrator can give the daemon a token for it (data_sources)")
	case parsed.Hostname() == "":
		return u, errors.New("a URL without a host; want https://HOST/PATH")
	case strings.Contains(strings.ToLower(u.Path), "%2f"):
		return u, errors.New("a path with %2F: servers differ in what it means")
	}
	for part := range strings.SplitSeq(parsed.Path, "/") {
		if part == "." || part == ".." {
			return u, fmt.Errorf("a path with %q; write the path that it leads to", part)
		}
	}
	if parsed.RawQuery != "" {
		u.Path += "?" + parsed.RawQuery
	}
	return u, nil
}

// String is what names it, without the digest.
func (u URL) String() string { return u.Scheme + "://" + u.Host + "/" + u.Path }

// Shown is that for people and logs: a query may hold a secret.
func (u URL) Shown() string {
	text := u.String()
	if at := strings.IndexByte(text, '?'); u.Scheme == SchemeHTTPS && at >= 0 {
		return text[:at] + "?..."
	}
	return text
}

// Shown is an entry of data.files for people and logs.
func Shown(entry string) string {
	if u, err := ParseURL(entry); IsURL(entry) && err == nil {
		return u.Shown()
	}
	return entry
}

// checkURLs refuses URLs that nothing can be read from.
func (c *checker) checkURLs() {
	for _, of := range []struct {
		key     string
		entries []string
	}{{"data.files", c.Data.Files}, {"data.validation", c.Data.Validation}} {
		for i, entry := range of.entries {
			if !IsURL(entry) {
				continue
			}
			key := fmt.Sprintf("%s[%d]", of.key, i)
			if _, err := ParseURL(entry); err != nil {
				near := ""
				if rest, plain := strings.CutPrefix(entry, "http://"); plain {
					near = "https://" + rest
				}
				c.refuse(key, near, "%s: %v", key, err)
			}
		}
	}
}
