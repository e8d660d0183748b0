package cloud

import (
	"encoding/json"
	"fmt"
	"strings"
	"time"
)

// Operation is a change that the cloud carries out in its own time. It is a value that can be written down, so that
// another process can find the operation again.
type Operation struct {
	// ID is the provider's own, opaque, such as the address to ask. Empty means that there is nothing to follow.
	ID string `json:"id,omitempty"`
	// Started is when the cloud took the request.
	Started time.Time `json:"started,omitzero"`
	// Machines are the provider IDs of the instances that an order has made, if the cloud names them at once.
	Machines []string `json:"machines,omitempty"`
}

// maxOperationID bounds the ID of an operation, in bytes. It holds the IDs of more than a thousand instances.
const maxOperationID = 64 << 10

// NewOperation returns an operation with a value, as JSON, as its ID.
func NewOperation(id any, started time.Time) Operation {
	raw, err := json.Marshal(id)
	if err != nil { // of strings and times it never is
		return Operation{Started: started}
	}
	return Operation{ID: string(raw), Started: started}
}

// DecodeOperation reads an ID that [NewOperation] made. Any other is a [*RefusedError]: it was kept where others may write.
func DecodeOperation(id string, into any) error {
	decoder := json.NewDecoder(strings.NewReader(id))
	decoder.DisallowUnknownFields()
	if len(id) > maxOperationID || decoder.Decode(into) != nil || decoder.More() {
		return InvalidOperation(id)
	}
	return nil
}

// InvalidOperation returns the [*RefusedError] for an ID that no operation of a provider has.
func InvalidOperation(id string) error {
	return &RefusedError{Reason: Invalid, Err: fmt.Errorf("operation %.200q: want what Delete or Grow returned", id)}
}
