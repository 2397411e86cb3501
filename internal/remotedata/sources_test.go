package remotedata

import (
	"errors"
	"net/netip"
	"strings"
	"testing"

	"github.com/avgpipe/avgpipe/internal/access"
	"github.com/avgpipe/avgpipe/internal/objectstore"
	"github.com/avgpipe/avgpipe/job"
)

var keys = &objectstore.Config{AccessKey: "a", SecretKey: "b"}

func urlOf(t *testing.T, text string) job.URL {
	t.Helper()
	u, err := job.ParseURL(text)
	if err != nil {
		t.Fatal(err)
	}
	return u
}

// TestTheLongestSourceDecides who may read what.
func TestTheLongestSourceDecides(t *testing.T) {
	all := Sources{
		{URL: "s3://data/", Bucket: keys},
		{URL: "s3://data/secret", UIDs: []uint32{7}, Bucket: keys},
		{URL: "s3://data/secret", GIDs: []uint32{50}, Bucket: keys},
		{URL: "https://a.example/public/"},
	}
	for _, s := range all {
		if err := s.Validate(); err != nil {
			t.Errorf("%s: %v", s.URL, err)
		}
	}
	anybody, seven, fifty := &access.User{UID: 1, GIDs: []uint32{1}}, &access.User{UID: 7}, &access.User{UID: 2, GIDs: []uint32{2, 50}}
	for _, c := range []struct {
		user *access.User
		url  string
		says string // "": he may
	}{
		{anybody, "s3://data/x", ""},
		{anybody, "s3://data", ""},
		{anybody, "s3://data2/x", "no source"},
		{anybody, "s3://data/secrets", ""}, // another key
		{anybody, "s3://data/secret", "user 1 is not among"},
		{anybody, "s3://data/secret/x", "user 1 is not among"},
		{seven, "s3://data/secret/x", ""},
		{fifty, "s3://data/secret/x", ""},
		{nil, "s3://data/secret/x", ""},
		{anybody, "https://a.example/public/x?y", ""},
		{anybody, "https://A.example:443/public/x", ""},
		{anybody, "https://a.example/publicly", "no source"},
		{anybody, "https://a.example.org/public/x", "no source"},
	} {
		_, err := all.For(c.user, urlOf(t, c.url))
		if (err == nil) != (c.says == "") || err != nil && (!strings.Contains(err.Error(), c.says) || objectstore.KindOf(err) != objectstore.Refused) {
			t.Errorf("%s: %v, expected %q", c.url, err, c.says)
		}
	}
	everyHost := Sources{{URL: "https://"}}
	if _, err := everyHost.For(anybody, urlOf(t, "https://b.example/x")); err != nil {
		t.Error(err)
	}
	if _, err := everyHost.For(anybody, urlOf(t, "s3://bucket/x")); err == nil {
		t.Error("a bucket is read by a source of https")
	}
}

func TestWhatIsNoSource(t *testing.T) {
	for says, s := range map[string]Source{
		"without credentials":  {URL: "s3://data/"},
		"without ? and #":      {URL: "https://a.example/x?y"},
		"the scheme is":        {URL: "http://a.example/"},
		"for every host":       {URL: "https://", Token: "x"},
		"private address":      {URL: "https://", Private: true},
		"are for s3":           {URL: "https://a.example/", Bucket: keys},
		"private are for http": {URL: "s3://data/", Bucket: keys, Private: true},
	} {
		if err := s.Validate(); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%+v: %v, expected %q", s, err, says)
		}
	}
}

// TestAddressesThatAreNotReached: those of this host and of private networks only where a source says so, and those at which clouds tell secrets never.
func TestAddressesThatAreNotReached(t *testing.T) {
	for text, want := range map[string][2]bool{ // reached by a public source, and by a private one
		"93.184.216.34": {true, true}, "2606:2800:220:1::1": {true, true}, "172.15.0.1": {true, true}, "172.32.0.1": {true, true},
		"127.0.0.1": {false, true}, "10.1.2.3": {false, true}, "172.16.0.1": {false, true}, "192.168.1.1": {false, true}, "100.64.0.1": {false, true},
		"::1": {false, true}, "fd12::1": {false, true}, "::ffff:10.0.0.1": {false, true}, "64:ff9b::a00:1": {false, true}, "2002:a00:1::": {false, true},
		"169.254.169.254": {}, "169.254.1.1": {}, "::ffff:169.254.169.254": {}, "fe80::1": {}, "fe80::1%eth0": {}, "fd00:ec2::254": {}, "100.100.100.200": {},
		"0.0.0.0": {}, "::": {}, "224.0.0.1": {}, "255.255.255.255": {}, "168.63.129.16": {},
	} {
		for i, privateToo := range []bool{false, true} {
			err := checkAddress(netip.MustParseAddr(text), privateToo)
			if _, refused := errors.AsType[*AddressError](err); refused == want[i] {
				t.Errorf("%s, private %v: %v", text, privateToo, err)
			}
		}
	}
}
