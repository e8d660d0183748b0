package azure

import "github.com/slipway-dev/slipway/internal/notice/poll"

// serviceName is the name of the service in error messages.
const serviceName = "Scheduled Events"

// newError returns an error about a document.
func newError(class poll.Class, err error) error {
	return &poll.Error{Class: class, Service: serviceName, Err: err}
}
