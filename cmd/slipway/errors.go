package main

import (
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"syscall"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/slipway-dev/slipway/internal/kubeapi"
)

// exitError is an error that selects the exit code of the program. Every other error exits with code 1.
type exitError struct {
	code int
	err  error
}

func (e *exitError) Error() string { return e.err.Error() }
func (e *exitError) Unwrap() error { return e.err }

// toExitCode returns the exit code for an error. It returns 0 for nil.
func toExitCode(err error) int {
	var e *exitError
	switch {
	case err == nil:
		return 0
	case errors.As(err, &e):
		return e.code
	}
	return 1
}

// hintError is an error with a line of text that tells the user what to do.
type hintError struct {
	err  error
	hint string
}

func (e *hintError) Error() string { return e.err.Error() + "\n" + e.hint }
func (e *hintError) Unwrap() error { return e.err }

// connectError is the error of a request that made no connection to the API server.
type connectError struct {
	server string // host:port
	err    error
}

func (e *connectError) Error() string { return e.err.Error() }
func (e *connectError) Unwrap() error { return e.err }

// connectErrorTransport returns failures to connect as a connectError.
type connectErrorTransport struct{ http.RoundTripper }

// WrappedRoundTripper lets client-go cancel requests of the wrapped transport.
func (t connectErrorTransport) WrappedRoundTripper() http.RoundTripper { return t.RoundTripper }

func (t connectErrorTransport) RoundTrip(r *http.Request) (*http.Response, error) {
	resp, err := t.RoundTripper.RoundTrip(r)
	if isConnectFailure(err) {
		err = &connectError{r.URL.Host, err}
	}
	return resp, err
}

// isConnectFailure reports whether an error of net/http means that there was no connection: dialling or the TLS handshake
// failed.
func isConnectFailure(err error) bool {
	var (
		network *net.OpError
		wrong   *tls.CertificateVerificationError
		noTLS   tls.RecordHeaderError
	)
	return errors.As(err, &network) && network.Op != "read" && network.Op != "write" ||
		errors.As(err, &wrong) || errors.As(err, &noTLS) || errors.Is(err, http.ErrSchemeMismatch)
}

// firstReadTexts are in errors of the first request of a command, from client-go and from package doctor. What they say before
// the cause, kubectl's texts say too.
var firstReadTexts = []string{"failed to get server groups: ", "cannot read from the API server "}

// formatError returns the lines that a command prints for its error. Responses of the API server and failures to connect
// to it have kubectl's texts. If an error says more than the response, it is printed as it is.
func formatError(err error) string {
	isFirstRead := func(text string) bool { return strings.Contains(err.Error(), text) }
	for cause := errors.Unwrap(err); cause != nil && slices.ContainsFunc(firstReadTexts, isFirstRead); cause = errors.Unwrap(err) {
		err = cause
	}
	var connect *connectError
	switch e := err.(type) { //nolint:errorlint // the type decides about the text, not an error that it wraps
	case *exitError:
		return formatError(e.err)
	case *hintError:
		return formatError(e.err) + "\n" + e.hint
	case interface{ Unwrap() []error }:
		var lines []string
		for _, each := range e.Unwrap() {
			if line := formatError(each); !slices.Contains(lines, line) {
				lines = append(lines, line)
			}
		}
		return strings.Join(lines, "\n")
	case *kubeapi.StatusError:
		return formatStatus(toStatus(e), e)
	case apierrors.APIStatus:
		return formatStatus(e.Status(), err)
	}
	if timeout, ok := err.(*url.Error); ok && !errors.As(err, &connect) { //nolint:errorlint // see above
		return "Unable to connect to the server: " + timeout.Err.Error()
	}
	switch {
	case !errors.As(err, &connect):
		return "error: " + err.Error()
	case errors.Is(err, syscall.ECONNREFUSED):
		return fmt.Sprintf("The connection to the server %s was refused - did you specify the right host or port?", connect.server)
	}
	return "Unable to connect to the server: " + connect.Error()
}

// toStatus returns the parts of a response that kubectl prints.
func toStatus(e *kubeapi.StatusError) metav1.Status {
	details := &metav1.StatusDetails{Kind: e.Kind, Name: e.Name}
	for _, c := range e.Causes {
		details.Causes = append(details.Causes, metav1.StatusCause{Field: c.Field, Message: c.Message})
	}
	return metav1.Status{Reason: metav1.StatusReason(e.Reason), Message: e.Message, Details: details}
}

// formatStatus returns kubectl's text for a response. err is its error.
func formatStatus(s metav1.Status, err error) string {
	switch s.Reason {
	case metav1.StatusReasonUnauthorized:
		return fmt.Sprintf("error: You must be logged in to the server (%s)", s.Message)
	case metav1.StatusReasonInvalid:
		return formatInvalid(s)
	case metav1.StatusReasonUnknown: // no reason
		return "Error from server: " + err.Error()
	}
	return fmt.Sprintf("Error from server (%s): %s", s.Reason, s.Message)
}

// formatInvalid returns kubectl's text for an object that the API server refuses as invalid.
func formatInvalid(s metav1.Status) string {
	details := ptr.Deref(s.Details, metav1.StatusDetails{})
	text := "The request is invalid"
	if details.Kind != "" || details.Name != "" {
		text = fmt.Sprintf("The %s %q is invalid", details.Kind, details.Name)
	} else if s.Message != "" && len(details.Causes) == 0 {
		text += ": " + s.Message
	}
	var causes []string
	for _, c := range details.Causes {
		if cause := c.Field + ": " + c.Message; !slices.Contains(causes, cause) {
			causes = append(causes, cause)
		}
	}
	switch len(causes) {
	case 0:
		return text
	case 1:
		return text + ": " + causes[0]
	}
	return text + ": \n* " + strings.Join(causes, "\n* ")
}
