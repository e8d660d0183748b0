package queue

import "errors"

// Parse reads the body of a message. It returns an error if the message is malformed, or if its form is unknown. The
// error names the field, its value and what is allowed.
func Parse(body string) (Event, error) {
	return Event{}, errors.New("not implemented")
}
