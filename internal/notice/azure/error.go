package azure

import "time"

// Class is the kind of a failure, short and from a small set, so as to serve as a metric's label.
type Class string

// The ways in which asking the service fails.
const (
	// Unreachable is no connection, or one that broke before an answer began.
	Unreachable Class = "unreachable"
	// Timeout is an answer that did not come, or not to its end, in time.
	Timeout Class = "timeout"
	// CutShort is an answer whose connection ended in its midst.
	CutShort Class = "cut_short"
	// HTTPStatus is an answer with a status other than 200, a redirect among them.
	HTTPStatus Class = "http_status"
	// TooLarge is an answer of more than MaxDocumentSize.
	TooLarge Class = "too_large"
	// NotJSON is an answer that is no JSON, such as a web page or half a document.
	NotJSON Class = "not_json"
	// WrongShape is JSON that is no Scheduled Events document.
	WrongShape Class = "wrong_shape"
	// Canceled is the caller's own context having ended; the service is not to blame.
	Canceled Class = "canceled"
)

// Classes lists every class that counts against the service.
func Classes() []Class {
	return []Class{Unreachable, Timeout, CutShort, HTTPStatus, TooLarge, NotJSON, WrongShape}
}

// Error is a failure to get or to understand a whole document. Nothing is known from it: the last good state stands
// (invariant I7).
type Error struct {
	Class Class
	// Status is the HTTP status when Class is HTTPStatus, else 0.
	Status int
	// RetryAfter is how long the service asked to be left alone, as it said; 0 when it did not.
	RetryAfter time.Duration
	Err        error
}

func (e *Error) Error() string { return "Scheduled Events: " + e.Err.Error() }

func (e *Error) Unwrap() error { return e.Err }
