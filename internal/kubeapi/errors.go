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

// StatusError is a response of the API server with a status other than 2xx. It holds the fields of metav1.Status that
// are used.
type StatusError struct {
	Code    int    // HTTP status
	Reason  string // metav1.StatusReason, such as "NotFound"; empty if the body was not a Status
	Message string
	// Kind and Name are of the object in the details. They are empty if the details name none.
	Kind, Name string
	Causes     []Cause
	// RetryAfter is the value of the header; zero without it.
	RetryAfter time.Duration

	// method and path are of the request. They are empty if the response has a Status, whose message names the object.
	method, path string
}

// Cause holds the fields of metav1.StatusCause.
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

// newStatusError returns the error for a response. If the body is not a Status, such as a proxy's HTML, the error
// quotes the beginning of the body.
func newStatusError(resp *http.Response) error {
	e := &StatusError{Code: resp.StatusCode}
	e.RetryAfter = parseRetryAfter(resp.Header.Get("Retry-After"))
	raw, _ := io.ReadAll(io.LimitReader(resp.Body, 64<<10))
	var s struct {
		Kind    string `json:"kind"`
		Reason  string `json:"reason"`
		Message string `json:"message"`
		Details struct {
			Kind              string  `json:"kind"`
			Name              string  `json:"name"`
			RetryAfterSeconds int     `json:"retryAfterSeconds"`
			Causes            []Cause `json:"causes"`
		} `json:"details"`
	}
	if err := json.Unmarshal(raw, &s); err != nil || s.Kind != "Status" {
		e.method, e.path, e.Message = resp.Request.Method, resp.Request.URL.Path, clipBody(raw)
		return e
	}
	e.Reason, e.Message, e.Kind, e.Name, e.Causes = s.Reason, s.Message, s.Details.Kind, s.Details.Name, s.Details.Causes
	if e.RetryAfter == 0 {
		e.RetryAfter = toSeconds(s.Details.RetryAfterSeconds)
	}
	return e
}

// parseRetryAfter returns the delay in a Retry-After header in seconds, or 0 if it is not a number. The API server
// sends no dates.
func parseRetryAfter(h string) time.Duration {
	s, err := strconv.Atoi(h)
	if err != nil {
		return 0
	}
	return toSeconds(s)
}

// toSeconds returns a number of seconds as a Duration, at least 0 and at most one day. The limit prevents an overflow.
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

// ToStatusError returns the *StatusError in err. It returns nil if err contains none, for example because the request
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

// IsNotFound reports whether the API server itself answered that the object does not exist. A 404 without a Status in
// its body does not count. It may come from a proxy or a starting server.
func IsNotFound(err error) bool {
	e := ToStatusError(err)
	return e != nil && e.Code == http.StatusNotFound && e.Reason == "NotFound"
}

// IsConflict reports whether the API server itself answered that a resourceVersion or a precondition does not match.
func IsConflict(err error) bool {
	e := ToStatusError(err)
	return e != nil && e.Code == http.StatusConflict && e.Reason == "Conflict"
}

// IsAlreadyExists reports whether the API server itself answered that an object with this name exists.
func IsAlreadyExists(err error) bool {
	e := ToStatusError(err)
	return e != nil && e.Code == http.StatusConflict && e.Reason == "AlreadyExists"
}

// IsForbidden reports whether the API server refused the request because of a missing permission.
func IsForbidden(err error) bool { return hasCode(err, http.StatusForbidden) }

// IsUnauthorized reports whether the API server rejected the credentials.
func IsUnauthorized(err error) bool { return hasCode(err, http.StatusUnauthorized) }
