package cloudpool

import (
	"fmt"
	"net/http"
	"strings"
)

// maxRedirects is the limit of redirects per request, as in Go's client.
const maxRedirects = 10

// redirectTransport is a transport that follows the redirects of read requests. It does not redirect changes.
type redirectTransport struct {
	next http.RoundTripper
	// withoutCredentials is next without credentials and TLS client certificate. It is used for other hosts.
	withoutCredentials http.RoundTripper
}

// RoundTrip implements http.RoundTripper.
func (t *redirectTransport) RoundTrip(r *http.Request) (*http.Response, error) {
	from, next := r, t.next
	for range maxRedirects {
		answer, err := next.RoundTrip(from)
		if err != nil || !isRedirect(answer) || r.Method != http.MethodGet && r.Method != http.MethodHead {
			return answer, err
		}
		to, err := answer.Location()
		if err != nil { // no Location header
			return answer, nil //nolint:nilerr // return the server's response
		}
		_ = answer.Body.Close()
		follow := from.Clone(r.Context())
		follow.URL, follow.Host = to, ""
		if next = t.next; !canForwardCredentials(r, follow) {
			next = t.withoutCredentials
			dropCredentials(follow.Header)
		}
		from = follow
	}
	return nil, fmt.Errorf("stopped after %d redirects, the last one to %s", maxRedirects, from.URL.Redacted())
}

// dropCredentials removes credentials that another server must not receive. A proxied request of a client may contain
// each of them.
func dropCredentials(header http.Header) {
	for _, name := range []string{"Authorization", "Proxy-Authorization", "Cookie", "X-Auth-Token"} {
		header.Del(name)
	}
}

func isRedirect(answer *http.Response) bool {
	switch answer.StatusCode {
	case http.StatusMovedPermanently, http.StatusFound, http.StatusSeeOther, http.StatusTemporaryRedirect, http.StatusPermanentRedirect:
		return true
	}
	return false
}

// canForwardCredentials reports whether both requests have the same host and the second one is at least as secure.
func canForwardCredentials(first, other *http.Request) bool {
	if !strings.EqualFold(first.URL.Hostname(), other.URL.Hostname()) {
		return false
	}
	return other.URL.Scheme == "https" && first.URL.Scheme == "http" || other.URL.Scheme == first.URL.Scheme && other.URL.Host == first.URL.Host
}
