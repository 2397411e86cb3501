package remotedata

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/avgpipe/avgpipe/internal/access"
	"github.com/avgpipe/avgpipe/internal/objectstore"
	"github.com/avgpipe/avgpipe/internal/pinned"
)

var content = []byte("0123456789")

// site is a server of https with files that are served in several ways.
func site(t *testing.T) (at string, through http.RoundTripper) {
	t.Helper()
	mux := http.NewServeMux()
	file := func(etag string) http.HandlerFunc {
		return func(w http.ResponseWriter, q *http.Request) {
			if etag != "" {
				w.Header().Set("ETag", etag)
			}
			http.ServeContent(w, q, "", time.Time{}, bytes.NewReader(content))
		}
	}
	mux.HandleFunc("/good.txt", file(`"one"`))
	mux.HandleFunc("/weak", file(`W/"one"`))
	mux.HandleFunc("/none", file(""))
	mux.HandleFunc("/token", func(w http.ResponseWriter, q *http.Request) {
		if q.Header.Get("Authorization") != "Bearer sesame" {
			w.WriteHeader(http.StatusForbidden)
			return
		}
		file(`"one"`)(w, q)
	})
	mux.HandleFunc("/public", func(w http.ResponseWriter, q *http.Request) {
		if q.Header.Get("Authorization") != "" {
			w.WriteHeader(http.StatusTeapot)
			return
		}
		file(`"one"`)(w, q)
	})
	mux.HandleFunc("/whole", func(w http.ResponseWriter, _ *http.Request) { // knows neither ranges nor conditions
		w.Header().Set("ETag", `"one"`)
		_, _ = w.Write(content)
	})
	mux.HandleFunc("/chunks", func(w http.ResponseWriter, _ *http.Request) { // whose length nobody knows
		w.Header().Set("ETag", `"one"`)
		_ = http.NewResponseController(w).Flush()
		_, _ = w.Write(content)
	})
	mux.HandleFunc("/empty", func(w http.ResponseWriter, q *http.Request) {
		w.Header().Set("ETag", `"one"`)
		http.ServeContent(w, q, "", time.Time{}, bytes.NewReader(nil))
	})
	for _, status := range []int{301, 302, 307, 308, 401, 403, 404, 429, 500, 503} {
		mux.HandleFunc(fmt.Sprintf("/%d", status), func(w http.ResponseWriter, q *http.Request) {
			w.Header().Set("Location", q.URL.Query().Get("to"))
			w.WriteHeader(status)
		})
	}
	s := httptest.NewTLSServer(mux)
	t.Cleanup(s.Close)
	return s.URL, s.Client().Transport
}

// reader is a Remote of sources, whose private ones are reached through a transport.
func reader(t *testing.T, through http.RoundTripper, sources ...Source) *Remote {
	t.Helper()
	r := New(sources)
	t.Cleanup(r.Close)
	r.web.nearby = through
	return r
}

func TestFilesOfWebServers(t *testing.T) {
	at, through := site(t)
	sum := sha256.Sum256(content)
	digest := "#sha256=" + hex.EncodeToString(sum[:])
	r := reader(t, through, Source{URL: at + "/", Private: true}, Source{URL: at + "/token", Private: true, Token: "sesame"},
		Source{URL: at + "/closed", Private: true, UIDs: []uint32{7}})
	for entry, want := range map[string]string{ // the kind of an error and what it says, or what is pinned
		"/good.txt":                             `good.txt 10 "one" ""`,
		"/good.txt?a=b/c":                       `good.txt 10 "one" ""`,
		"/whole":                                `whole 10 "one" ""`,
		"/weak":                                 "refused: no strong ETag",
		"/weak" + digest:                        fmt.Sprintf(`weak 10 "" %q`, hex.EncodeToString(sum[:])),
		"/none":                                 "refused: add #sha256=",
		"/chunks":                               "refused: how long",
		"/empty":                                "refused: empty",
		"/token":                                `token 10 "one" ""`,
		"/404":                                  "no_object: status 404",
		"/403":                                  "refused: status 403",
		"/401":                                  "refused: status 401",
		"/429":                                  "unavailable: status 429",
		"/500":                                  "unavailable: status 500",
		"/503":                                  "unavailable: status 503",
		"/302?to=/good.txt":                     `302 10 "one" ""`,
		"/301?to=" + at + "/good.txt":           `301 10 "one" ""`,
		"/307?to=https://127.0.0.1:1/":          "refused: at another place",
		"/308?to=http://127.0.0.1/good.txt":     "refused: no URL of https",
		"/302?to=https://169.254.169.254/x":     "refused: at another place",
		"/302?to=/closed/x":                     "refused: user 1 is not among",
		"/302?to=/302?to=/302":                  "refused: more than 5 times",
		"/302?to=https://user:secret@h.example": "refused: no URL of https",
	} {
		found, err := r.Resolve(t.Context(), &access.User{UID: 1}, at+entry)
		got := ""
		if err != nil {
			got = fmt.Sprintf("%s: %v", objectstore.KindOf(err), err)
			if strings.Contains(got, "?to=") || strings.Contains(got, "a=b") || strings.Contains(got, "secret") {
				t.Errorf("%s: the error repeats the query: %s", entry, got)
			}
			kind, says, _ := strings.Cut(want, ": ")
			if !strings.HasPrefix(got, kind+": ") || !strings.Contains(got, says) {
				t.Errorf("%s: %s, expected %s", entry, got, want)
			}
			continue
		}
		o := found[0]
		if got = fmt.Sprintf("%s %d %q %q", o.Name, o.Bytes, o.ETag, o.SHA256); len(found) != 1 || got != want || o.Entry != at+entry {
			t.Errorf("%s is %s (%+v), expected %s", entry, got, o, want)
		}
	}
}

// TestATokenStaysWithItsSource: it does not go where a server sends us on to.
func TestATokenStaysWithItsSource(t *testing.T) {
	at, through := site(t)
	r := reader(t, through, Source{URL: at + "/", Private: true}, Source{URL: at + "/302", Private: true, Token: "sesame"})
	if _, err := r.Resolve(t.Context(), nil, at+"/302?to=/public"); err != nil {
		t.Error(err)
	}
}

// TestAPrivateHostIsNotReached by a source that does not say so, whatever its name leads to.
func TestAPrivateHostIsNotReached(t *testing.T) {
	at, _ := site(t)
	_, port, _ := strings.Cut(strings.TrimPrefix(at, "https://"), ":")
	r := reader(t, nil, Source{URL: "https://"})
	for _, host := range []string{"127.0.0.1", "localhost"} {
		_, err := r.Resolve(t.Context(), nil, "https://"+host+":"+port+"/good.txt")
		if objectstore.KindOf(err) != objectstore.Refused || err == nil || !strings.Contains(err.Error(), "private: true") {
			t.Errorf("%s: %v", host, err)
		}
	}
}

func TestFilesAreReadAsTheyWere(t *testing.T) {
	at, through := site(t)
	r := reader(t, through, Source{URL: at + "/", Private: true})
	for _, c := range []struct {
		path, etag string
		bytes      int64
		first      int64
		want       string // the kind of an error, or the content and where it begins
	}{
		{"/good.txt", "one", 10, 0, "0: 0123456789"},
		{"/good.txt", "one", 10, 4, "4: 456789"},
		{"/good.txt", "", 10, 4, "4: 456789"},
		{"/whole", "one", 10, 4, "0: 0123456789"},
		{"/good.txt", "two", 10, 0, "changed"},
		{"/good.txt", "two", 10, 4, "changed"},
		{"/whole", "two", 10, 4, "changed"},
		{"/good.txt", "", 11, 0, "changed"},
		{"/good.txt", "", 11, 10, "changed"},
		{"/404", "one", 10, 4, "no_object"},
		{"/503", "one", 10, 4, "unavailable"},
	} {
		body, from, err := r.Open(t.Context(), nil, &pinned.Object{URL: at + c.path, Bytes: c.bytes, ETag: c.etag}, c.first)
		got := string(objectstore.KindOf(err))
		if err == nil {
			text, readErr := io.ReadAll(body)
			if err := body.Close(); err != nil || readErr != nil {
				t.Error(err, readErr)
			}
			got = fmt.Sprintf("%d: %s", from, text)
		}
		if got != c.want {
			t.Errorf("%s, %q, from %d: %s (%v), expected %s", c.path, c.etag, c.first, got, err, c.want)
		}
	}
}
