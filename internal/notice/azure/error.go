package azure

import "time"

// Class is the kind of a failure. It is short and from a small set, so it can be a metric label.
type Class string

// The classes of failures of the service.
const (
	// Unreachable is a failed connection, or a connection that broke before the response.
	Unreachable Class = "unreachable"
	// Timeout is a response that did not come, or not completely, in time.
	Timeout Class = "timeout"
	// CutShort is a response with a connection that ended before the end of the body.
	CutShort Class = "cut_short"
	// HTTPStatus is a response with a status other than 200, including redirects.
	HTTPStatus Class = "http_status"
	// TooLarge is a response of more than MaxDocumentSize.
	TooLarge Class = "too_large"
	// NotJSON is a response that is not JSON, such as a web page or half a document.
	NotJSON Class = "not_json"
	// WrongShape is JSON that is not a Scheduled Events document.
	WrongShape Class = "wrong_shape"
	// Canceled means that the caller's context ended, which is not a failure of the service.
	Canceled Class = "canceled"
)

// Classes returns every class that counts as a failure of the service.
func Classes() []Class {
	return []Class{Unreachable, Timeout, CutShort, HTTPStatus, TooLarge, NotJSON, WrongShape}
}

// Error is a failure to read a document. It proves nothing, so the last good state stays valid (invariant I7).
type Error struct {
	Class Class
	// Status is the HTTP status if Class is HTTPStatus, else 0.
	Status int
	// RetryAfter is the pause that the service demands; 0 if none.
	RetryAfter time.Duration
	Err        error
}

func (e *Error) Error() string { return "Scheduled Events: " + e.Err.Error() }

func (e *Error) Unwrap() error { return e.Err }
