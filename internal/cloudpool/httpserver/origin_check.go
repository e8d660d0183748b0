package httpserver

import (
	"errors"
	"net"
	"net/http"
	"net/netip"
	"strings"
)

// checkOrigin returns an error if a browser has sent the request for a page of another site. Through the browser, such
// a page can reach a listener that its author cannot reach, for example on the loopback interface without
// authentication. Clients that are not browsers send no origin headers, and are accepted.
func (s *Server) checkOrigin(r *http.Request) error {
	if err := s.originCheck.Check(r); err != nil {
		return err
	}
	// DNS rebinding: an attacker's host name may resolve to this machine, and its page then counts as the same site. Over plain HTTP
	// to such a name a browser sends the Origin header but no Sec-Fetch-Site.
	if s.opts.LoopbackOnly && !isReadOnly(r.Method) && r.Header.Get("Origin") != "" && r.Header.Get("Sec-Fetch-Site") == "" && !isAddressOrLocalhost(r.Host) {
		return errors.New("the request comes from a browser and its Host is neither localhost nor an IP address: want one of these")
	}
	return nil
}

// isAddressOrLocalhost reports whether a host, with or without a port, is an IP address or localhost. With any other
// name, an attacker could change the address in DNS.
func isAddressOrLocalhost(host string) bool {
	if name, _, err := net.SplitHostPort(host); err == nil {
		host = name
	}
	_, err := netip.ParseAddr(strings.Trim(host, "[]"))
	return err == nil || strings.EqualFold(host, "localhost")
}

// IsLoopback reports whether a listen address can be reached only from this host.
func IsLoopback(host string) bool {
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && ip.IsLoopback()
}
