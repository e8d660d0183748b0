package httpserver

import (
	"errors"
	"net"
	"net/http"
	"net/netip"
	"strings"
)

// checkOrigin returns an error if a browser sent the request for a page of another site. Such a page reaches listeners that
// its author cannot reach, for example one on the loopback interface without authentication. Clients that are not browsers
// send no origin headers.
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

// isAddressOrLocalhost reports whether a host, with or without a port, is an IP address or localhost. An attacker cannot
// redirect those.
func isAddressOrLocalhost(host string) bool {
	if name, _, err := net.SplitHostPort(host); err == nil {
		host = name
	}
	_, err := netip.ParseAddr(strings.Trim(host, "[]"))
	return err == nil || strings.EqualFold(host, "localhost")
}

// IsLoopback reports whether a listen address is reachable from this machine only.
func IsLoopback(host string) bool {
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && ip.IsLoopback()
}
