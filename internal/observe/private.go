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

// errNotPrivate is the answer to a stranger.
var errNotPrivate = errors.New("want a request from the loopback interface, or a token: Authorization: Bearer TOKEN")

// Private returns what tells a request that may do or see more from any other: one from the loopback interface, or one
// that bears the token which a file holds. Without a file only the first counts. The file is read for every request, so
// that the token can be replaced. It fails when the file cannot be read or is empty.
func Private(tokenFile string) (func(*http.Request) error, error) {
	if tokenFile != "" {
		if _, err := readToken(tokenFile); err != nil {
			return nil, err
		}
	}
	return func(r *http.Request) error {
		if fromLoopback(r) {
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

// loopbackOnly refuses a request that does not come from the loopback interface.
func loopbackOnly(r *http.Request) error {
	if fromLoopback(r) {
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

// fromLoopback goes by the address of the connection. A header can say anything, and a request that went through a
// proxy on this machine, which adds such a header, is not from here.
func fromLoopback(r *http.Request) bool {
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
