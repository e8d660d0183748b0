package notify

import (
	"errors"
	"fmt"
	"io"
	"net/url"
	"os"
	"strings"
)

// maxFileBytes is the maximum size of a template or secret file in bytes.
const maxFileBytes = 1 << 20

// unreadableError means that a file cannot be used now. A user may replace the file before the next try.
type unreadableError struct{ err error }

func (e *unreadableError) Error() string { return e.err.Error() }
func (e *unreadableError) Unwrap() error { return e.err }

// isUnreadable reports whether err contains an [unreadableError].
func isUnreadable(err error) bool {
	var e *unreadableError
	return errors.As(err, &e)
}

// readFile returns the content of a file of at most maxFileBytes.
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

// readSecret returns the secret in a file, such as a token. It removes the line end that editors add.
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

// minSecretBytes is the length of the shortest secret that is removed from texts, in bytes. A shorter secret also
// occurs in ordinary words.
const minSecretBytes = 4

// secrets holds the texts that must not appear in a log or an error.
type secrets []string

func (s *secrets) add(words ...string) {
	for _, w := range words {
		if len(w) >= minSecretBytes {
			*s = append(*s, w)
		}
	}
}

// addURL adds the parts of a URL that can be secret: everything except its scheme and host. Slack's address, for
// example, contains a key.
func (s *secrets) addURL(u *url.URL) {
	s.add(u.RequestURI(), u.Path, u.EscapedPath(), u.RawQuery)
	if u.User != nil {
		password, _ := u.User.Password()
		s.add(u.User.String(), password)
	}
}

// redact returns a text with every secret replaced.
func (s secrets) redact(text string) string {
	for _, w := range s {
		text = strings.ReplaceAll(text, w, "[secret]")
	}
	return text
}

// redactedError is an error text without secrets. It does not unwrap, because the original error may contain secrets.
type redactedError string

func (e redactedError) Error() string { return string(e) }

// redactError returns an error with the text of err, but without secrets. An [unreadableError] stays one.
func (s secrets) redactError(err error) error {
	if err == nil {
		return nil
	}
	redacted := redactedError(s.redact(err.Error()))
	if isUnreadable(err) {
		return &unreadableError{redacted}
	}
	return redacted
}
