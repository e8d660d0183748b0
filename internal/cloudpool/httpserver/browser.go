package httpserver

import (
	"errors"
	"net"
	"net/http"
	"net/netip"
	"strings"
)

// foreign says why a request is of a page that a browser shows for somebody else's site; nil of any other. Whoever looks at such
// a page can reach what its author cannot: a listener on the loopback interface that asks nobody who he is. Clients that are no
// browsers say of themselves neither where they are from nor to where.
func (s *Server) foreign(r *http.Request) error {
	if err := s.origins.Check(r); err != nil {
		return err
	}
	// A name can be made to lead to this machine. Its page is of the same site then, by the name; no browser has a certificate of
	// ours for it, and over plain HTTP to such a name none says more of itself than the origin.
	if s.o.Local && !reads(r.Method) && r.Header.Get("Origin") != "" && r.Header.Get("Sec-Fetch-Site") == "" && !ofThisMachine(r.Host) {
		return errors.New("the request is of a browser, and its Host is a name that is not this machine's: want localhost or an address")
	}
	return nil
}

// ofThisMachine reports a host, with a port or without, that is no name which somebody could have made to lead here.
func ofThisMachine(host string) bool {
	if name, _, err := net.SplitHostPort(host); err == nil {
		host = name
	}
	_, err := netip.ParseAddr(strings.Trim(host, "[]"))
	return err == nil || strings.EqualFold(host, "localhost")
}

// IsLoopback reports an address to listen at that this machine alone reaches.
func IsLoopback(host string) bool {
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && ip.IsLoopback()
}
