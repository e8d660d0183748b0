package kubeapi

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// StatusError is a response of the API server with a status other than 2xx: the used part of metav1.Status.
type StatusError struct {
	Code    int    // HTTP status
	Reason  string // metav1.StatusReason, such as "NotFound"; empty if the body was not a Status
	Message string
	Causes  []Cause
	// RetryAfter is the value of the header; zero without it.
	RetryAfter time.Duration

	// method and path are of the request. They are empty if the response has a Status, whose message names the object.
	method, path string
}

// Cause is metav1.StatusCause.
type Cause struct {
	Reason  string `json:"reason"`
	Message string `json:"message"`
	Field   string `json:"field"`
}

// Error returns kubectl's text for a Status, and the reason: `nodes "n1" not found (NotFound)`. For any other response, such
// as one from a proxy, it returns the request, the HTTP status and the body.
func (e *StatusError) Error() string {
	switch {
	case e.method != "":
		text := fmt.Sprintf("%s %s: HTTP status %d %s", e.method, e.path, e.Code, http.StatusText(e.Code))
		return strings.TrimSuffix(strings.TrimSpace(text)+": "+e.Message, ": ")
	case e.Message == "":
		return cmp.Or(e.Reason, fmt.Sprintf("HTTP status %d", e.Code))
	}
	return fmt.Sprintf("%s (%s)", e.Message, cmp.Or(e.Reason, fmt.Sprintf("HTTP status %d", e.Code)))
}

// newStatusError reads the error from resp. A body that is not a Status, such as a proxy's HTML, is quoted and
// clipped.
func newStatusError(resp *http.Response) error {
	e := &StatusError{Code: resp.StatusCode}
	e.RetryAfter = parseRetryAfter(resp.Header.Get("Retry-After"))
	raw, _ := io.ReadAll(io.LimitReader(resp.Body, 64<<10))
	var s struct {
		Kind    string `json:"kind"`
		Reason  string `json:"reason"`
		Message string `json:"message"`
		Details struct {
			RetryAfterSeconds int     `json:"retryAfterSeconds"`
			Causes            []Cause `json:"causes"`
		} `json:"details"`
	}
	if err := json.Unmarshal(raw, &s); err != nil || s.Kind != "Status" {
		e.method, e.path, e.Message = resp.Request.Method, resp.Request.URL.Path, clipBody(raw)
		return e
	}
	e.Reason, e.Message, e.Causes = s.Reason, s.Message, s.Details.Causes
	if e.RetryAfter == 0 {
		e.RetryAfter = toSeconds(s.Details.RetryAfterSeconds)
	}
	return e
}

// parseRetryAfter parses the header in seconds; the API server sends no dates.
func parseRetryAfter(h string) time.Duration {
	s, err := strconv.Atoi(h)
	if err != nil {
		return 0
	}
	return toSeconds(s)
}

// toSeconds limits a number of seconds to between 0 and a day, so that a Duration cannot overflow.
func toSeconds(s int) time.Duration {
	return time.Duration(min(max(s, 0), 24*60*60)) * time.Second
}

func clipBody(raw []byte) string {
	s := strings.Join(strings.Fields(strings.ToValidUTF8(string(raw), "?")), " ")
	if len(s) > 200 {
		s = strings.ToValidUTF8(s[:200], "") + "…"
	}
	return s
}

// ToStatusError returns the StatusError in err's chain. It returns nil if there is none, for example because the request
// got no response.
func ToStatusError(err error) *StatusError {
	var e *StatusError
	if errors.As(err, &e) {
		return e
	}
	return nil
}

func hasCode(err error, code int) bool {
	e := ToStatusError(err)
	return e != nil && e.Code == code
}

// IsNotFound reports that the API server itself answered that the object does not exist. A 404 that is not a Status
// does not count, such as a proxy's, or from a starting server.
func IsNotFound(err error) bool {
	e := ToStatusError(err)
	return e != nil && e.Code == http.StatusNotFound && e.Reason == "NotFound"
}

// IsConflict reports that the API server itself answered that a resourceVersion or precondition does not match.
func IsConflict(err error) bool {
	e := ToStatusError(err)
	return e != nil && e.Code == http.StatusConflict && e.Reason == "Conflict"
}

// IsAlreadyExists reports that the API server itself answered that an object with this name exists already.
func IsAlreadyExists(err error) bool {
	e := ToStatusError(err)
	return e != nil && e.Code == http.StatusConflict && e.Reason == "AlreadyExists"
}

// IsForbidden reports a missing permission.
func IsForbidden(err error) bool { return hasCode(err, http.StatusForbidden) }

// IsUnauthorized reports invalid credentials.
func IsUnauthorized(err error) bool { return hasCode(err, http.StatusUnauthorized) }
