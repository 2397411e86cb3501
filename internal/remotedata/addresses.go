package remotedata

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"syscall"
	"time"
)

// never are addresses that no job's URL leads to: those of a link, among them those at which clouds tell a host its secrets, and the ones
// of that kind elsewhere.
var never = prefixes("169.254.0.0/16", "fe80::/10", "100.100.100.200/32", "fd00:ec2::254/128", "192.0.0.192/32", "168.63.129.16/32",
	"0.0.0.0/8", "224.0.0.0/4", "240.0.0.0/4", "::/128", "ff00::/8")

// private are addresses of this host and of networks that the internet does not reach (RFC 6890), and those that stand for others (NAT64, 6to4,
// Teredo).
var private = prefixes("127.0.0.0/8", "10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "100.64.0.0/10", "192.0.0.0/24", "192.0.2.0/24", "198.18.0.0/15",
	"198.51.100.0/24", "203.0.113.0/24", "::1/128", "fc00::/7", "64:ff9b::/96", "64:ff9b:1::/48", "2002::/16", "2001::/23", "2001:db8::/32")

func prefixes(texts ...string) (all []netip.Prefix) {
	for _, text := range texts {
		all = append(all, netip.MustParsePrefix(text))
	}
	return all
}

// AddressError is that of a host whose address must not be reached.
type AddressError struct {
	Address netip.Addr
	Never   bool
}

func (e *AddressError) Error() string {
	if e.Never {
		return fmt.Sprintf("its address is %s, of a link, a cloud's metadata or no host, which no job reads from", e.Address)
	}
	return fmt.Sprintf("its address is %s, of a private network or of this host; an administrator can let jobs read from there (private: true of the source)", e.Address)
}

// checkAddress judges an address that a name has led to.
func checkAddress(a netip.Addr, privateToo bool) error {
	a = a.Unmap().WithZone("")
	in := func(all []netip.Prefix) bool {
		return slices.ContainsFunc(all, func(p netip.Prefix) bool { return p.Contains(a) })
	}
	switch {
	case in(never):
		return &AddressError{a, true}
	case !privateToo && in(private):
		return &AddressError{a, false}
	}
	return nil
}

// patience bounds the way to an answer: each wait for a connection and for the header.
const patience = 30 * time.Second

// transport reaches hosts. An address is judged when it is connected to, so a name cannot lead elsewhere in between. There is no proxy: that would
// connect for us.
func transport(privateToo bool) *http.Transport {
	dialer := &net.Dialer{
		Timeout: patience / 3,
		ControlContext: func(_ context.Context, _, address string, _ syscall.RawConn) error {
			at, err := netip.ParseAddrPort(address)
			if err != nil {
				return fmt.Errorf("judge the address %q: %w", address, err)
			}
			return checkAddress(at.Addr(), privateToo)
		},
	}
	return &http.Transport{
		DialContext: dialer.DialContext, TLSHandshakeTimeout: patience / 3, ResponseHeaderTimeout: patience, IdleConnTimeout: time.Minute,
		MaxResponseHeaderBytes: 64 << 10, DisableCompression: true, ForceAttemptHTTP2: true, MaxIdleConnsPerHost: mostFetches,
	}
}
