package cloudpool

import (
	"fmt"
	"net/http"
	"strings"
)

// maxRedirects is how many redirects of one request are followed: as many as Go's client follows.
const maxRedirects = 10

// redirects follows the redirects of what is read. What changes something goes where it was sent, or nowhere.
type redirects struct {
	next http.RoundTripper
	// plain is next without credentials of its own, the TLS certificate included: another host is shown none.
	plain http.RoundTripper
}

// RoundTrip implements http.RoundTripper.
func (t *redirects) RoundTrip(r *http.Request) (*http.Response, error) {
	from, next := r, t.next
	for range maxRedirects {
		answer, err := next.RoundTrip(from)
		if err != nil || !isRedirect(answer) || r.Method != http.MethodGet && r.Method != http.MethodHead {
			return answer, err
		}
		to, err := answer.Location()
		if err != nil { // it says no place
			return answer, nil //nolint:nilerr // which is the server's answer
		}
		_ = answer.Body.Close()
		follow := from.Clone(r.Context())
		follow.URL, follow.Host = to, ""
		if next = t.next; !isSameServer(r, follow) {
			next = t.plain
			dropCredentials(follow.Header)
		}
		from = follow
	}
	return nil, fmt.Errorf("stopped after %d redirects, the last one to %s", maxRedirects, from.URL.Redacted())
}

// dropCredentials drops what another server must not be shown: a request of a client that passes through may have each of them.
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

// isSameServer reports a request to the host of another one, over a connection that is no less safe.
func isSameServer(first, other *http.Request) bool {
	if !strings.EqualFold(first.URL.Hostname(), other.URL.Hostname()) {
		return false
	}
	return other.URL.Scheme == "https" && first.URL.Scheme == "http" || other.URL.Scheme == first.URL.Scheme && other.URL.Host == first.URL.Host
}
