package cloud

import (
	"encoding/json"
	"fmt"
	"strings"
	"time"
)

// Operation is a change that the cloud carries out asynchronously. A caller can store an Operation, so that another
// process can follow it.
type Operation struct {
	// ID is opaque to callers, for example the URL of the status. Empty means that nothing is left to follow.
	ID string `json:"id,omitempty"`
	// Started is when the cloud accepted the request.
	Started time.Time `json:"started,omitzero"`
	// ProviderIDs are the provider IDs of the new instances, if the cloud names them at once.
	ProviderIDs []string `json:"machines,omitempty"`
}

// maxOperationID limits the length of an operation ID, in bytes. It is enough for the IDs of more than 1000 instances.
const maxOperationID = 64 << 10

// NewOperation returns an operation with the JSON encoding of id as its ID.
func NewOperation(id any, started time.Time) Operation {
	raw, err := json.Marshal(id)
	if err != nil { // impossible for strings and times
		return Operation{Started: started}
	}
	return Operation{ID: string(raw), Started: started}
}

// DecodeOperation decodes an operation ID from [NewOperation] into a value. It returns a [*RefusedError] for any other
// ID, because a user may have changed the stored ID.
func DecodeOperation(id string, into any) error {
	decoder := json.NewDecoder(strings.NewReader(id))
	decoder.DisallowUnknownFields()
	if len(id) > maxOperationID || decoder.Decode(into) != nil || decoder.More() {
		return NewInvalidOperationError(id)
	}
	return nil
}

// NewInvalidOperationError returns the [*RefusedError] for an operation ID that the provider did not create.
func NewInvalidOperationError(id string) error {
	return &RefusedError{Reason: Invalid, Err: fmt.Errorf("operation %.200q: want what Delete or Grow returned", id)}
}
