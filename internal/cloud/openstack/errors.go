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

// errIncomplete is an answer that lacks what it has to have.
var errIncomplete = errors.New("the answer is not whole")

// errOfTransport is what went wrong on the way to OpenStack and back.
var errOfTransport = errors.New("no answer that can be read from OpenStack")

// apiError is an error as a service describes it. Kind is empty for what is not in a service's own form, such as the page
// of a proxy, of which nothing can be concluded.
type apiError struct {
	Status  int
	Kind    string // the key around it: itemNotFound, forbidden, NeutronError, error
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
	maxKind    = 128
	maxMessage = 600
	// defaultPause is how long a service is left alone that wants it and does not say for how long, and busyPause the
	// same while a server has something else to do.
	defaultPause = 30 * time.Second
	busyPause    = 10 * time.Second
)

// parseError reads the body of an error: one key, and below it the message. So do Nova ({"itemNotFound": …}), Neutron
// ({"NeutronError": …}) and Keystone ({"error": …}). Glance answers in HTML.
func parseError(status int, body []byte) *apiError {
	var outer map[string]json.RawMessage
	if err := json.Unmarshal(body, &outer); err != nil || len(outer) != 1 {
		return &apiError{Status: status, Message: cloud.Printable(string(body), maxMessage)}
	}
	for kind, raw := range outer {
		var inner struct {
			Message string `json:"message"`
		}
		if err := json.Unmarshal(raw, &inner); err != nil || inner.Message == "" {
			break
		}
		return &apiError{Status: status, Kind: cloud.Printable(kind, maxKind), Message: cloud.Printable(inner.Message, maxMessage)}
	}
	return &apiError{Status: status, Message: cloud.Printable(string(body), maxMessage)}
}

// ofAPI makes of an error of the client what [cloud.Provider] promises, and of a 404 a plain error: what it means depends
// on what was asked for, see [saysGone].
func ofAPI(doing string, err error) error {
	var renewal *gophercloud.ErrUnableToReauthenticate
	if errors.As(err, &renewal) {
		return ofAPI(doing+": renewing the token", renewal.ErrReauth)
	}
	var answer gophercloud.ErrUnexpectedResponseCode
	if errors.As(err, &answer) {
		return fmt.Errorf("%s: %w", doing, classify(parseError(answer.Actual, answer.Body), answer.ResponseHeader))
	}
	if errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return fmt.Errorf("%s: %w", doing, err)
	}
	return fmt.Errorf("%s: %w: %s", doing, errOfTransport, cloud.Printable(err.Error(), maxMessage))
}

// classify says what an answer means to a caller.
func classify(api *apiError, header http.Header) error {
	pause := cloud.RetryAfter(header, time.Now())
	quota := aboutQuota(api.Message)
	switch {
	case (api.Status == http.StatusTooManyRequests || api.Status == http.StatusRequestEntityTooLarge) && !quota,
		api.Status == http.StatusServiceUnavailable && pause > 0:
		return &cloud.ThrottledError{After: cmp.Or(pause, defaultPause), Err: api}
	case api.Status == http.StatusConflict && busy(api.Message):
		return &cloud.ThrottledError{After: cmp.Or(pause, busyPause), Err: api}
	}
	if reason := api.refusal(quota); reason != "" {
		return &cloud.RefusedError{Reason: reason, Err: api}
	}
	return api
}

// busy reports that a server has something else to do first.
func busy(message string) bool {
	return strings.Contains(message, "task_state") || strings.Contains(message, "Conflict with")
}

// refusal says why a service will not do what it was asked; "" for an error that may pass.
func (e *apiError) refusal(quota bool) cloud.Refusal {
	switch {
	case quota && e.Status >= 400 && e.Status < 500:
		return cloud.NoQuota
	case e.Status == http.StatusUnauthorized, e.Status == http.StatusForbidden:
		return cloud.NoRight
	case e.Status == http.StatusConflict && strings.Contains(e.Message, "locked"):
		return cloud.Protected
	case e.Status == http.StatusConflict && ofFault(e.Message) == cloud.NoCapacity: // Neutron has no more addresses
		return cloud.NoCapacity
	case e.Status == http.StatusBadRequest && e.Kind != "":
		return cloud.Invalid
	}
	return ""
}

// aboutQuota knows the quotas of Nova, Neutron and Cinder by their messages, as none of them has a code.
func aboutQuota(message string) bool {
	lower := strings.ToLower(message)
	return strings.Contains(lower, "quota") || strings.Contains(lower, "maximum number of ports exceeded") ||
		strings.Contains(lower, "maximum number of volumes")
}

// ofFault says what the fault of a server in ERROR amounts to; "" when that is not clear.
func ofFault(message string) cloud.Refusal {
	lower := strings.ToLower(message)
	has := func(parts ...string) bool {
		return slices.ContainsFunc(parts, func(part string) bool { return strings.Contains(lower, part) })
	}
	switch {
	case message == "":
		return ""
	case aboutQuota(message):
		return cloud.NoQuota
	case has("no valid host", "exhausted all hosts", "exceeded maximum number of retries", "no more ip addresses",
		"no fixed ip addresses", "insufficient compute resources"):
		return cloud.NoCapacity
	case lower == "404: not found", has("image") && has("not found", "could not be found", "unacceptable", "unavailable"):
		return cloud.Invalid
	}
	return ""
}

// saysGone reports whether an error is the service's own word that the thing of this ID does not exist: it names the ID.
// Any other 404, such as that of a proxy or of a wrong address, says nothing about it (I7).
func saysGone(err error, id string) bool {
	var api *apiError
	return errors.As(err, &api) && api.Status == http.StatusNotFound && api.Kind != "" &&
		strings.Contains(strings.ToLower(api.Message), strings.ToLower(id))
}

// refusedForGood reports that a service has read a request and did not carry it out.
func refusedForGood(err error) bool {
	var api *apiError
	return errors.As(err, &api) && api.Kind != "" && api.Status >= 400 && api.Status < 500
}

// invalid is the refusal of what can never succeed as it stands.
func invalid(format string, args ...any) error {
	return &cloud.RefusedError{Reason: cloud.Invalid, Err: fmt.Errorf(format, args...)}
}

// joined is errors.Join that leaves a single error as it is.
func joined(errs []error) error {
	errs = slices.DeleteFunc(errs, func(err error) bool { return err == nil })
	if len(errs) == 1 {
		return errs[0]
	}
	return errors.Join(errs...)
}

func sortedKeys[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }
