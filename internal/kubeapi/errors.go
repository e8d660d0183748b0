package kubeapi

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// StatusError is an answer of the API server that is not 2xx: metav1.Status, as far as it is used.
type StatusError struct {
	Code    int    // HTTP status
	Reason  string // metav1.StatusReason, such as "NotFound"; empty when the body was no Status
	Message string
	Causes  []Cause
	// RetryAfter is what the header asked for; zero when it did not.
	RetryAfter time.Duration

	method, path string // empty for the ERROR event of a watch
}

// Cause is metav1.StatusCause.
type Cause struct {
	Reason  string `json:"reason"`
	Message string `json:"message"`
	Field   string `json:"field"`
}

func (e *StatusError) Error() string {
	what := strings.TrimSpace(fmt.Sprintf("%d %s", e.Code, e.Reason))
	if e.method != "" {
		what = e.method + " " + e.path + ": " + what
	}
	return what + ": " + e.Message
}

// statusError reads the error out of resp. A body that is no Status (a proxy's HTML, say) is quoted, cut short.
func statusError(resp *http.Response) error {
	e := &StatusError{Code: resp.StatusCode, method: resp.Request.Method, path: resp.Request.URL.Path}
	e.RetryAfter = retryAfter(resp.Header.Get("Retry-After"))
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
		e.Message = excerpt(raw)
		return e
	}
	e.Reason, e.Message, e.Causes = s.Reason, s.Message, s.Details.Causes
	if e.RetryAfter == 0 {
		e.RetryAfter = seconds(s.Details.RetryAfterSeconds)
	}
	return e
}

// retryAfter reads the header in seconds; the API server sends no dates.
func retryAfter(h string) time.Duration {
	s, err := strconv.Atoi(h)
	if err != nil {
		return 0
	}
	return seconds(s)
}

// seconds bounds what a server asks for to between nothing and a day, where a Duration cannot overflow.
func seconds(s int) time.Duration {
	return time.Duration(min(max(s, 0), 24*60*60)) * time.Second
}

func excerpt(raw []byte) string {
	s := strings.Join(strings.Fields(strings.ToValidUTF8(string(raw), "?")), " ")
	if len(s) > 200 {
		s = strings.ToValidUTF8(s[:200], "") + "…"
	}
	return s
}

// AsStatus returns the API server's own error in err's chain, or nil: a request that failed on its way has none.
func AsStatus(err error) *StatusError {
	var e *StatusError
	if errors.As(err, &e) {
		return e
	}
	return nil
}

func hasCode(err error, code int) bool {
	e := AsStatus(err)
	return e != nil && e.Code == code
}

// IsNotFound reports that the API server itself said that the object is not there. An answer 404 that is no Status
// (a proxy's, or a server that is still starting) does not count.
func IsNotFound(err error) bool {
	e := AsStatus(err)
	return e != nil && e.Code == http.StatusNotFound && e.Reason == "NotFound"
}

// IsConflict reports that the API server itself said that a resourceVersion or precondition no longer holds.
func IsConflict(err error) bool {
	e := AsStatus(err)
	return e != nil && e.Code == http.StatusConflict && e.Reason == "Conflict"
}

// IsExists reports that the API server itself said that an object of this name is there already.
func IsExists(err error) bool {
	e := AsStatus(err)
	return e != nil && e.Code == http.StatusConflict && e.Reason == "AlreadyExists"
}

// IsForbidden reports a missing right.
func IsForbidden(err error) bool { return hasCode(err, http.StatusForbidden) }

// IsUnauthorized reports credentials that the API server does not take.
func IsUnauthorized(err error) bool { return hasCode(err, http.StatusUnauthorized) }
