package notify

import (
	"errors"
	"fmt"
	"io"
	"net/url"
	"os"
	"strings"
)

// maxFileBytes is the size limit of a file.
const maxFileBytes = 1 << 20

// unreadableError is the error of a file that is unusable now. It may be replaced before the next try.
type unreadableError struct{ err error }

func (e *unreadableError) Error() string { return e.err.Error() }
func (e *unreadableError) Unwrap() error { return e.err }

// isUnreadable reports that an error is about a file.
func isUnreadable(err error) bool {
	var e *unreadableError
	return errors.As(err, &e)
}

// readFile reads a small file.
func readFile(path string) (string, error) {
	f, err := os.Open(path)
	if err != nil {
		return "", &unreadableError{err}
	}
	defer func() { _ = f.Close() }() // it was only read
	raw, err := io.ReadAll(io.LimitReader(f, maxFileBytes+1))
	switch {
	case err != nil:
		return "", &unreadableError{err}
	case len(raw) > maxFileBytes:
		return "", &unreadableError{fmt.Errorf("%s: has more than %d bytes: want at most that", path, maxFileBytes)}
	}
	return string(raw), nil
}

// readSecret reads a file with one secret, such as a token, without the line end that editors add.
func readSecret(path string) (string, error) {
	s, err := readFile(path)
	if err != nil {
		return "", err
	}
	s = strings.TrimSpace(s)
	if s == "" {
		return "", &unreadableError{fmt.Errorf("%s: is empty: want a secret", path)}
	}
	if strings.ContainsAny(s, "\r\n\x00") {
		return "", &unreadableError{fmt.Errorf("%s: has several lines: want one", path)}
	}
	return s, nil
}

// minSecretBytes is the length of the shortest secret that is redacted: shorter texts occur in ordinary words too.
const minSecretBytes = 4

// secrets are the texts that no log and no error may contain.
type secrets []string

func (s *secrets) add(words ...string) {
	for _, w := range words {
		if len(w) >= minSecretBytes {
			*s = append(*s, w)
		}
	}
}

// addURL adds the parts of a URL that can be secret: everything except its scheme and host. Slack's address is a key.
func (s *secrets) addURL(u *url.URL) {
	s.add(u.RequestURI(), u.Path, u.EscapedPath(), u.RawQuery)
	if u.User != nil {
		password, _ := u.User.Password()
		s.add(u.User.String(), password)
	}
}

// redact replaces every secret in a text.
func (s secrets) redact(text string) string {
	for _, w := range s {
		text = strings.ReplaceAll(text, w, "[secret]")
	}
	return text
}

// redactedError is an error without secrets. It does not unwrap, because the wrapped error may contain secrets.
type redactedError string

func (e redactedError) Error() string { return string(e) }

// redactError returns an error without secrets.
func (s secrets) redactError(err error) error {
	if err == nil {
		return nil
	}
	return redactedError(s.redact(err.Error()))
}
