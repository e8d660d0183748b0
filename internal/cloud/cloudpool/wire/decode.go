package wire

import (
	"encoding/json"
	"fmt"
	"math"
)

// BadRequestError means that the body of a request is malformed. The client receives status 400.
type BadRequestError struct{ ErrorMessage }

func (e *BadRequestError) Error() string {
	if e.Detail == "" {
		return e.Message
	}
	return e.Message + ": " + e.Detail
}

func newBadRequest(message, format string, a ...any) error {
	return &BadRequestError{ErrorMessage{message, fmt.Sprintf(format, a...)}}
}

// decodeBody parses a JSON body. Keys are case-insensitive, unknown keys are ignored, and data after the object is an
// error. The caller forwards the decoded value instead of the original body. So the server cannot interpret the body
// differently.
func decodeBody(what string, raw []byte, into any) error {
	if err := json.Unmarshal(raw, into); err != nil {
		return newBadRequest("failed to decode "+what+" message", "%s", err)
	}
	return nil
}

// DecodeSetDesiredSize decodes the body of POST /pool/size. A missing size is an error, never 0.
func DecodeSetDesiredSize(raw []byte) (SetDesiredSize, error) {
	var read struct{ DesiredSize *int }
	if err := decodeBody("setDesiredSize", raw, &read); err != nil {
		return SetDesiredSize{}, err
	}
	switch {
	case read.DesiredSize == nil:
		return SetDesiredSize{}, newBadRequest("setDesiredSize message did not specify a desiredSize", "")
	case *read.DesiredSize < 0:
		return SetDesiredSize{}, newBadRequest("setDesiredSize message: desiredSize must be non-negative", "")
	case *read.DesiredSize > math.MaxInt32:
		return SetDesiredSize{}, newBadRequest("setDesiredSize message: desiredSize must be at most 2147483647", "")
	}
	return SetDesiredSize{*read.DesiredSize}, nil
}

// DecodeTerminate decodes the body of POST /pool/terminate.
func DecodeTerminate(raw []byte) (Removal, error) { return decodeRemoval("terminateMachine", raw) }

// DecodeDetach decodes the body of POST /pool/detach.
func DecodeDetach(raw []byte) (Removal, error) { return decodeRemoval("detachMachine", raw) }

func decodeRemoval(what string, raw []byte) (Removal, error) {
	var read struct {
		MachineID            *string
		DecrementDesiredSize *bool
	}
	if err := decodeBody(what, raw, &read); err != nil {
		return Removal{}, err
	}
	id, err := requireMachineID(what, read.MachineID)
	return Removal{id, read.DecrementDesiredSize != nil && *read.DecrementDesiredSize}, err
}

// requireMachineID returns the machine ID, or an error if the body has none.
func requireMachineID(what string, id *string) (string, error) {
	if id == nil || *id == "" {
		return "", newBadRequest(what+" message did not specify a machineId", "")
	}
	return *id, nil
}

// DecodeAttach decodes the body of POST /pool/attach.
func DecodeAttach(raw []byte) (Attachment, error) {
	var read struct{ MachineID *string }
	if err := decodeBody("attachMachine", raw, &read); err != nil {
		return Attachment{}, err
	}
	id, err := requireMachineID("attachMachine", read.MachineID)
	return Attachment{id}, err
}

// DecodeServiceState decodes the body of POST /pool/serviceState.
func DecodeServiceState(raw []byte) (SetServiceState, error) {
	const what = "setServiceState"
	var read struct {
		MachineID    *string
		ServiceState *ServiceState
	}
	if err := decodeBody(what, raw, &read); err != nil {
		return SetServiceState{}, err
	}
	id, err := requireMachineID(what, read.MachineID)
	switch {
	case err != nil:
		return SetServiceState{}, err
	case read.ServiceState == nil:
		return SetServiceState{}, newBadRequest(what+" message did not specify a serviceState", "")
	case !read.ServiceState.IsKnown():
		return SetServiceState{}, newBadRequest(what+" message: serviceState is not known",
			"%q: want BOOTING, IN_SERVICE, UNHEALTHY, OUT_OF_SERVICE or UNKNOWN", *read.ServiceState)
	}
	return SetServiceState{id, *read.ServiceState}, nil
}

// DecodeMembershipStatus decodes the body of POST /pool/membershipStatus. A flag that is missing in the body is true.
func DecodeMembershipStatus(raw []byte) (SetMembershipStatus, error) {
	const what = "setMembershipStatus"
	var read struct {
		MachineID        *string
		MembershipStatus *MembershipStatus
	}
	if err := decodeBody(what, raw, &read); err != nil {
		return SetMembershipStatus{}, err
	}
	id, err := requireMachineID(what, read.MachineID)
	switch {
	case err != nil:
		return SetMembershipStatus{}, err
	case read.MembershipStatus == nil:
		return SetMembershipStatus{}, newBadRequest(what+" message did not specify a membershipStatus", "")
	}
	return SetMembershipStatus{id, *read.MembershipStatus}, nil
}
