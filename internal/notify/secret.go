package notify

import (
	"errors"
	"fmt"
	"io"
	"net/url"
	"os"
	"strings"
)

// mostFile is the size of the largest file that is read, in bytes.
const mostFile = 1 << 20

// unreadable is a file whose content cannot be used now. It may be replaced by the next try.
type unreadable struct{ err error }

func (e *unreadable) Error() string { return e.err.Error() }
func (e *unreadable) Unwrap() error { return e.err }

// isUnreadable reports that an error is about a file.
func isUnreadable(err error) bool {
	var e *unreadable
	return errors.As(err, &e)
}

// readFile reads a small file whole.
func readFile(path string) (string, error) {
	f, err := os.Open(path)
	if err != nil {
		return "", &unreadable{err}
	}
	defer func() { _ = f.Close() }() // It was only read.
	raw, err := io.ReadAll(io.LimitReader(f, mostFile+1))
	switch {
	case err != nil:
		return "", &unreadable{err}
	case len(raw) > mostFile:
		return "", &unreadable{fmt.Errorf("%s: more than %d bytes: want less", path, mostFile)}
	}
	return string(raw), nil
}

// readSecret reads a file that holds one word, such as a token. The line end that editors add is not part of it.
func readSecret(path string) (string, error) {
	s, err := readFile(path)
	if err != nil {
		return "", err
	}
	s = strings.TrimSpace(s)
	if s == "" {
		return "", &unreadable{fmt.Errorf("%s: is empty: want what is to be kept secret", path)}
	}
	if strings.ContainsAny(s, "\r\n\x00") {
		return "", &unreadable{fmt.Errorf("%s: has several lines: want one", path)}
	}
	return s, nil
}

// leastSecret is the length of the shortest text that is blotted out: a shorter one is in ordinary words too.
const leastSecret = 4

// secrets are the texts that no log and no error may hold.
type secrets []string

func (s *secrets) add(words ...string) {
	for _, w := range words {
		if len(w) >= leastSecret {
			*s = append(*s, w)
		}
	}
}

// addURL adds what of a URL can be secret: everything but its scheme and host. Slack's address is a key by itself.
func (s *secrets) addURL(u *url.URL) {
	s.add(u.RequestURI(), u.Path, u.EscapedPath(), u.RawQuery)
	if u.User != nil {
		password, _ := u.User.Password()
		s.add(u.User.String(), password)
	}
}

// blot replaces every secret in a text.
func (s secrets) blot(text string) string {
	for _, w := range s {
		text = strings.ReplaceAll(text, w, "[secret]")
	}
	return text
}

// safe is an error whose text holds no secret. It does not unwrap, since what is below might.
type safe string

func (e safe) Error() string { return string(e) }

// clean makes an error safe.
func (s secrets) clean(err error) error {
	if err == nil {
		return nil
	}
	return safe(s.blot(err.Error()))
}
