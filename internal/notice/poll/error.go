package poll

import "time"

// Class is the kind of a failed read. Only a few short values exist, so a class can be a metric label.
type Class string

// The classes of failed reads.
const (
	// Unreachable is a failed connection, or a connection that broke before the response.
	Unreachable Class = "unreachable"
	// Timeout is a response that did not come, or not completely, in time.
	Timeout Class = "timeout"
	// CutShort is a response with a connection that ended before the end of the body.
	CutShort Class = "cut_short"
	// HTTPStatus is a response with a status that the source cannot use, including redirects.
	HTTPStatus Class = "http_status"
	// TooLarge is a response that is larger than the source allows.
	TooLarge Class = "too_large"
	// NotJSON is a response that is not JSON, such as a web page or half a document.
	NotJSON Class = "not_json"
	// WrongShape is JSON that is not the expected document.
	WrongShape Class = "wrong_shape"
	// Canceled means that the caller's context ended, which is not a failure of the service.
	Canceled Class = "canceled"
)

// Classes returns every class that means a failure of the service itself.
func Classes() []Class {
	return []Class{Unreachable, Timeout, CutShort, HTTPStatus, TooLarge, NotJSON, WrongShape}
}

// Error means that notices could not be read. Unknown is not gone, so the last successful read stays valid (I7).
type Error struct {
	Class Class
	// Service is the name of the service, for the message; it may be empty.
	Service string
	// Status is the HTTP status if Class is HTTPStatus, else 0.
	Status int
	// RetryAfter is the pause that the service demands; 0 if none.
	RetryAfter time.Duration
	Err        error
}

func (e *Error) Error() string {
	if e.Service == "" {
		return e.Err.Error()
	}
	return e.Service + ": " + e.Err.Error()
}

func (e *Error) Unwrap() error { return e.Err }
