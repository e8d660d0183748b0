package kubeapi

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/slipway-dev/slipway/internal/testing/check"
)

const budgetDenied = `{"kind":"Status","apiVersion":"v1","metadata":{},"status":"Failure",
	"message":"Cannot evict pod as it would violate the pod's disruption budget.","reason":"TooManyRequests",
	"details":{"retryAfterSeconds":7,"causes":[{"reason":"DisruptionBudget",
	"message":"The disruption budget web needs 2 healthy pods and has 2 currently"}]},"code":429}`

func TestAPIServerResponseBecomesAStatusError(t *testing.T) {
	tests := map[string]struct {
		code       int
		retryAfter string
		body       string
		want       StatusError
		text       string
	}{
		"a Status": {
			404, "", status(404, "NotFound", `pods "web-0" not found`),
			StatusError{Code: 404, Reason: "NotFound", Message: `pods "web-0" not found`},
			`pods "web-0" not found (NotFound)`,
		},
		"details and causes": {429, "", budgetDenied, StatusError{
			Code: 429, Reason: "TooManyRequests",
			Message: "Cannot evict pod as it would violate the pod's disruption budget.",
			Causes: []Cause{{
				Reason:  "DisruptionBudget",
				Message: "The disruption budget web needs 2 healthy pods and has 2 currently",
			}},
			RetryAfter: 7 * time.Second,
		}, "Cannot evict pod as it would violate the pod's disruption budget. (TooManyRequests)"},
		"an invalid object": {
			422, "", `{"kind":"Status","reason":"Invalid","message":"Node \"n1\" is invalid: spec.taints: Required value","code":422,
				"details":{"name":"n1","kind":"Node","causes":[{"reason":"FieldValueRequired","message":"Required value","field":"spec.taints"}]}}`,
			StatusError{
				Code: 422, Reason: "Invalid", Message: `Node "n1" is invalid: spec.taints: Required value`, Kind: "Node", Name: "n1",
				Causes: []Cause{{Reason: "FieldValueRequired", Message: "Required value", Field: "spec.taints"}},
			}, `Node "n1" is invalid: spec.taints: Required value (Invalid)`,
		},
		"the header before the details": {429, "3", budgetDenied, StatusError{
			Code: 429, Reason: "TooManyRequests",
			Message: "Cannot evict pod as it would violate the pod's disruption budget.",
			Causes: []Cause{{
				Reason:  "DisruptionBudget",
				Message: "The disruption budget web needs 2 healthy pods and has 2 currently",
			}},
			RetryAfter: 3 * time.Second,
		}, "Cannot evict pod as it would violate the pod's disruption budget. (TooManyRequests)"},
		"the HTML of a proxy": {
			502, "", "<html>\n <h1>Bad\tGateway</h1>\n</html>",
			StatusError{Code: 502, Message: "<html> <h1>Bad Gateway</h1> </html>"},
			"GET /api/v1/nodes/n1: HTTP status 502 Bad Gateway: <html> <h1>Bad Gateway</h1> </html>",
		},
		"JSON that is not a Status": {
			404, "", `{"reason":"NotFound"}`,
			StatusError{Code: 404, Message: `{"reason":"NotFound"}`},
			`GET /api/v1/nodes/n1: HTTP status 404 Not Found: {"reason":"NotFound"}`,
		},
		"half a Status": {404, "", `{"kind":"Status","reason":"NotFound"`, StatusError{Code: 404, Message: `{"kind":"Status","reason":"NotFound"`}, `GET /api/v1/nodes/n1: HTTP status 404 Not Found: {"kind":"Status","reason":"NotFound"`},
		"a Status without a reason": {
			500, "", status(500, "", "This pod has more than one PodDisruptionBudget"),
			StatusError{Code: 500, Message: "This pod has more than one PodDisruptionBudget"},
			"This pod has more than one PodDisruptionBudget (HTTP status 500)",
		},
		"a Status without a message": {504, "", status(504, "Timeout", ""), StatusError{Code: 504, Reason: "Timeout"}, "Timeout"},
		"an empty Status":            {504, "", status(504, "", ""), StatusError{Code: 504}, "HTTP status 504"},
		"no body":                    {401, "", "", StatusError{Code: 401}, "GET /api/v1/nodes/n1: HTTP status 401 Unauthorized"},
		"a redirect":                 {302, "", "elsewhere", StatusError{Code: 302, Message: "elsewhere"}, "GET /api/v1/nodes/n1: HTTP status 302 Found: elsewhere"},
		"Retry-After that is a date": {503, "Fri, 31 Dec 1999 23:59:59 GMT", "x", StatusError{Code: 503, Message: "x"}, "GET /api/v1/nodes/n1: HTTP status 503 Service Unavailable: x"},
		"Retry-After below zero":     {503, "-5", "x", StatusError{Code: 503, Message: "x"}, "GET /api/v1/nodes/n1: HTTP status 503 Service Unavailable: x"},
		"Retry-After too large":      {503, "99999999999", "x", StatusError{Code: 503, Message: "x", RetryAfter: 24 * time.Hour}, "GET /api/v1/nodes/n1: HTTP status 503 Service Unavailable: x"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			c := serve(t, func(w http.ResponseWriter, _ *http.Request) {
				if tt.retryAfter != "" {
					w.Header().Set("Retry-After", tt.retryAfter)
				}
				w.Header().Set("Location", "https://elsewhere.test/")
				w.WriteHeader(tt.code)
				_, _ = io.WriteString(w, tt.body)
			})
			c.http.CheckRedirect = refuseRedirect
			_, err := c.GetNode(t.Context(), "n1")
			got := ToStatusError(fmt.Errorf("wrapped: %w", err))
			if got == nil {
				t.Fatalf("got %v, want a StatusError", err)
			}
			check.Equal(t, tt.want, *got, cmpopts.IgnoreUnexported(StatusError{}))
			check.Equal(t, tt.text, err.Error())
		})
	}
}

func TestI7OnlyTheAPIServerReportsGone(t *testing.T) {
	tests := map[string]struct {
		code     int
		body     string
		notFound bool
		conflict bool
	}{
		"NotFound":                   {404, status(404, "NotFound", "gone"), true, false},
		"a proxy's 404":              {404, "<html>not found</html>", false, false},
		"the mux's 404":              {404, "404 page not found\n", false, false},
		"Conflict":                   {409, status(409, "Conflict", "UID"), false, true},
		"AlreadyExists":              {409, status(409, "AlreadyExists", "there"), false, false},
		"a proxy's 409":              {409, "conflict", false, false},
		"a 500 with reason NotFound": {500, status(500, "NotFound", "upstream"), false, false},
		"forbidden is neither":       {403, status(403, "Forbidden", "no"), false, false},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			_, err := serve(t, answer(tt.code, tt.body)).GetNode(t.Context(), "n1")
			if got := IsNotFound(err); got != tt.notFound {
				t.Errorf("IsNotFound(%v) = %v", err, got)
			}
			if got := IsConflict(err); got != tt.conflict {
				t.Errorf("IsConflict(%v) = %v", err, got)
			}
			if got := IsAlreadyExists(err); got != (name == "AlreadyExists") {
				t.Errorf("IsExists(%v) = %v", err, got)
			}
			if got := IsForbidden(err); got != (tt.code == 403) {
				t.Errorf("IsForbidden(%v) = %v", err, got)
			}
			if got := IsUnauthorized(err); got != (tt.code == 401) {
				t.Errorf("IsUnauthorized(%v) = %v", err, got)
			}
		})
	}
	for _, err := range []error{nil, io.ErrUnexpectedEOF, errors.New("404 NotFound")} {
		if IsNotFound(err) || IsConflict(err) || IsForbidden(err) || IsUnauthorized(err) {
			t.Errorf("%v counts as a response of the API server", err)
		}
	}
}

func TestLongBodyIsClippedAtWholeCharacters(t *testing.T) {
	_, err := serve(t, answer(500, "x"+strings.Repeat("é", 1000))).GetNode(t.Context(), "n1")
	got := ToStatusError(err).Message
	if len(got) > 210 || !strings.HasSuffix(got, "é…") || !utf8.ValidString(got) {
		t.Errorf("quoted as %q", got)
	}
}
