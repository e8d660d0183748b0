package openstack

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/gophercloud/gophercloud/v2"

	"github.com/slipway-dev/slipway/internal/cloud"
)

// errIncomplete means that a response lacks a required field.
var errIncomplete = errors.New("the response is incomplete")

// errNoResponse is a failed request without a readable response.
var errNoResponse = errors.New("no readable response from OpenStack")

// apiError is an error response of a service. Kind is empty if the body does not have the format of the service, for
// example a page of a proxy. Such an error proves nothing.
type apiError struct {
	Status  int
	Kind    string // the JSON key of the error: itemNotFound, forbidden, NeutronError, error
	Message string
}

func (e *apiError) Error() string {
	text := strings.TrimSpace(fmt.Sprintf("%d %s", e.Status, e.Kind))
	if e.Message == "" {
		return text
	}
	return text + ": " + e.Message
}

const (
	maxKindLength    = 128
	maxMessageLength = 600
	// The retry delays if the service names none: after throttling, and while a server has a task in progress.
	defaultRetryDelay = 30 * time.Second
	busyRetryDelay    = 10 * time.Second
)

// parseErrorBody parses an error response, which has one key with the message below it. Nova ({"itemNotFound": …}), Neutron
// ({"NeutronError": …}) and Keystone ({"error": …}) use this format. Glance responds in HTML.
func parseErrorBody(status int, body []byte) *apiError {
	var outer map[string]json.RawMessage
	if err := json.Unmarshal(body, &outer); err != nil || len(outer) != 1 {
		return &apiError{Status: status, Message: cloud.SanitizeText(string(body), maxMessageLength)}
	}
	for kind, raw := range outer {
		var inner struct {
			Message string `json:"message"`
		}
		if err := json.Unmarshal(raw, &inner); err != nil || inner.Message == "" {
			break
		}
		return &apiError{Status: status, Kind: cloud.SanitizeText(kind, maxKindLength), Message: cloud.SanitizeText(inner.Message, maxMessageLength)}
	}
	return &apiError{Status: status, Message: cloud.SanitizeText(string(body), maxMessageLength)}
}

// fromAPIError converts an error of gophercloud to the errors of [cloud.Provider]. A 404 stays an [apiError], because its
// meaning depends on the request, see [isGone].
func fromAPIError(doing string, err error) error {
	var renewal *gophercloud.ErrUnableToReauthenticate
	if errors.As(err, &renewal) {
		return fromAPIError(doing+": renewing the token", renewal.ErrReauth)
	}
	var answer gophercloud.ErrUnexpectedResponseCode
	if errors.As(err, &answer) {
		return fmt.Errorf("%s: %w", doing, toProviderError(parseErrorBody(answer.Actual, answer.Body), answer.ResponseHeader))
	}
	if errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return fmt.Errorf("%s: %w", doing, err)
	}
	return fmt.Errorf("%s: %w: %s", doing, errNoResponse, cloud.SanitizeText(err.Error(), maxMessageLength))
}

// toProviderError converts an error response to the errors of [cloud.Provider].
func toProviderError(api *apiError, header http.Header) error {
	pause := cloud.ParseRetryAfter(header, time.Now())
	quota := isQuotaMessage(api.Message)
	switch {
	case (api.Status == http.StatusTooManyRequests || api.Status == http.StatusRequestEntityTooLarge) && !quota,
		api.Status == http.StatusServiceUnavailable && pause > 0:
		return &cloud.ThrottledError{RetryAfter: cmp.Or(pause, defaultRetryDelay), Err: api}
	case api.Status == http.StatusConflict && isBusyMessage(api.Message):
		return &cloud.ThrottledError{RetryAfter: cmp.Or(pause, busyRetryDelay), Err: api}
	}
	if reason := api.refusalReason(quota); reason != "" {
		return &cloud.RefusedError{Reason: reason, Err: api}
	}
	return api
}

// isBusyMessage reports whether a server has a task in progress.
func isBusyMessage(message string) bool {
	return strings.Contains(message, "task_state") || strings.Contains(message, "Conflict with")
}

// refusalReason returns the reason of a permanent error, and "" for an error that may be temporary.
func (e *apiError) refusalReason(quotaExceeded bool) cloud.Refusal {
	switch {
	case quotaExceeded && e.Status >= 400 && e.Status < 500:
		return cloud.NoQuota
	case e.Status == http.StatusUnauthorized, e.Status == http.StatusForbidden:
		return cloud.NoRight
	case e.Status == http.StatusConflict && strings.Contains(e.Message, "locked"):
		return cloud.Protected
	case e.Status == http.StatusConflict && classifyFault(e.Message) == cloud.NoCapacity: // Neutron has no free addresses
		return cloud.NoCapacity
	case e.Status == http.StatusBadRequest && e.Kind != "":
		return cloud.Invalid
	}
	return ""
}

// isQuotaMessage recognizes the quota errors of Nova, Neutron and Cinder by their messages, because they have no code.
func isQuotaMessage(message string) bool {
	lower := strings.ToLower(message)
	return strings.Contains(lower, "quota") || strings.Contains(lower, "maximum number of ports exceeded") ||
		strings.Contains(lower, "maximum number of volumes")
}

// classifyFault classifies the fault of a server in state ERROR; "" if unclear.
func classifyFault(message string) cloud.Refusal {
	lower := strings.ToLower(message)
	has := func(parts ...string) bool {
		return slices.ContainsFunc(parts, func(part string) bool { return strings.Contains(lower, part) })
	}
	switch {
	case message == "":
		return ""
	case isQuotaMessage(message):
		return cloud.NoQuota
	case has("no valid host", "exhausted all hosts", "exceeded maximum number of retries", "no more ip addresses",
		"no fixed ip addresses", "insufficient compute resources"):
		return cloud.NoCapacity
	case lower == "404: not found", has("image") && has("not found", "could not be found", "unacceptable", "unavailable"):
		return cloud.Invalid
	}
	return ""
}

// isGone reports whether err is a 404 of the service that names this ID. Any other 404, for example from a proxy or a
// wrong address, proves nothing (I7).
func isGone(err error, id string) bool {
	var api *apiError
	return errors.As(err, &api) && api.Status == http.StatusNotFound && api.Kind != "" &&
		strings.Contains(strings.ToLower(api.Message), strings.ToLower(id))
}

// isPermanentlyRejected reports whether a service rejected a request without carrying it out.
func isPermanentlyRejected(err error) bool {
	var api *apiError
	return errors.As(err, &api) && api.Kind != "" && api.Status >= 400 && api.Status < 500
}

// newInvalidError returns a [cloud.RefusedError] for a request that can never succeed.
func newInvalidError(format string, args ...any) error {
	return &cloud.RefusedError{Reason: cloud.Invalid, Err: fmt.Errorf(format, args...)}
}

// joinOrSingleError is errors.Join, but returns a single error unchanged.
func joinOrSingleError(errs []error) error {
	errs = slices.DeleteFunc(errs, func(err error) bool { return err == nil })
	if len(errs) == 1 {
		return errs[0]
	}
	return errors.Join(errs...)
}

func sortedKeys[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }
