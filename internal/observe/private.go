package observe

import (
	"crypto/sha256"
	"crypto/subtle"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"strings"
)

// errNotPrivate is the error for any other request.
var errNotPrivate = errors.New("want a request from the loopback interface, or a token: Authorization: Bearer TOKEN")

// NewLoopbackOrTokenCheck returns a function that admits a request from the loopback interface, or with the bearer token in a file.
// Without a file it admits only the loopback interface. It reads the file for every request, so that the token can be
// replaced. Private fails if the file cannot be read or is empty.
func NewLoopbackOrTokenCheck(tokenFile string) (func(*http.Request) error, error) {
	if tokenFile != "" {
		if _, err := readToken(tokenFile); err != nil {
			return nil, err
		}
	}
	return func(r *http.Request) error {
		if isFromLoopback(r) {
			return nil
		}
		given, bears := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
		if tokenFile == "" || !bears {
			return errNotPrivate
		}
		want, err := readToken(tokenFile)
		if err != nil {
			return errNotPrivate
		}
		a, b := sha256.Sum256([]byte(given)), sha256.Sum256([]byte(want))
		if subtle.ConstantTimeCompare(a[:], b[:]) != 1 {
			return errNotPrivate
		}
		return nil
	}, nil
}

// requireLoopback refuses a request that does not come from the loopback interface.
func requireLoopback(r *http.Request) error {
	if isFromLoopback(r) {
		return nil
	}
	return errors.New("want a request from the loopback interface, such as through kubectl port-forward")
}

func readToken(file string) (string, error) {
	raw, err := os.ReadFile(file)
	if err != nil {
		return "", err
	}
	token := strings.TrimSpace(string(raw))
	if token == "" {
		return "", fmt.Errorf("%s: is empty: want a token", file)
	}
	return token, nil
}

// isFromLoopback checks the address of the connection, because a header can have any content. A request that a local
// proxy forwarded has a header that shows it, and is not admitted.
func isFromLoopback(r *http.Request) bool {
	for _, forwarded := range []string{"Forwarded", "X-Forwarded-For", "Via"} {
		if r.Header.Get(forwarded) != "" {
			return false
		}
	}
	host, _, err := net.SplitHostPort(r.RemoteAddr)
	if err != nil {
		return false
	}
	ip := net.ParseIP(host)
	return ip != nil && ip.IsLoopback()
}
