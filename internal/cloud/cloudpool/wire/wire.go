// Package wire implements the cloudpool REST API, version 5 (https://cloudpoolrestapi.readthedocs.io): its types, the
// decoding of bodies, and a client.
package wire

import (
	"encoding/json"
	"time"
)

// MachineState is the phase of a machine's life.
type MachineState string

// The states of a machine.
const (
	Requested   MachineState = "REQUESTED"
	Rejected    MachineState = "REJECTED"
	Pending     MachineState = "PENDING"
	Running     MachineState = "RUNNING"
	Terminating MachineState = "TERMINATING"
	Terminated  MachineState = "TERMINATED"
)

// HasLeftPool reports whether a machine in this state no longer counts as a member of its pool and never will. An unknown
// state is not over (I7).
func (s MachineState) HasLeftPool() bool { return s == Rejected || s == Terminating || s == Terminated }

// ServiceState is a user's statement about the service on a machine. It has no effect.
type ServiceState string

// The service states.
const (
	Booting      ServiceState = "BOOTING"
	InService    ServiceState = "IN_SERVICE"
	Unhealthy    ServiceState = "UNHEALTHY"
	OutOfService ServiceState = "OUT_OF_SERVICE"
	UnknownState ServiceState = "UNKNOWN"
)

// IsKnown reports whether the state is one of the above.
func (s ServiceState) IsKnown() bool {
	switch s {
	case Booting, InService, Unhealthy, OutOfService, UnknownState:
		return true
	}
	return false
}

// MembershipStatus is what a pool may do with a machine. An active machine counts in the pool's size. An evictable
// machine may be terminated. A machine that is evictable and not active is disposable: it is replaced and terminated.
type MembershipStatus struct {
	Active    bool `json:"active"`
	Evictable bool `json:"evictable"`
}

// IsDisposable reports whether the pool replaces and terminates the machine.
func (m MembershipStatus) IsDisposable() bool { return !m.Active && m.Evictable }

// UnmarshalJSON sets missing flags to true, as the reference server does.
func (m *MembershipStatus) UnmarshalJSON(raw []byte) error {
	var read struct{ Active, Evictable *bool }
	if err := json.Unmarshal(raw, &read); err != nil {
		return err
	}
	*m = MembershipStatus{read.Active == nil || *read.Active, read.Evictable == nil || *read.Evictable}
	return nil
}

type Machine struct {
	ID           string            `json:"id"`
	State        MachineState      `json:"machineState"`
	Membership   *MembershipStatus `json:"membershipStatus"`
	ServiceState ServiceState      `json:"serviceState"`
	Provider     string            `json:"cloudProvider"`
	Region       string            `json:"region"`
	Size         string            `json:"machineSize"`
	RequestTime  *time.Time        `json:"requestTime,omitempty"`
	LaunchTime   *time.Time        `json:"launchTime,omitempty"`
	PublicIPs    []string          `json:"publicIps"`
	PrivateIPs   []string          `json:"privateIps"`
	// Metadata is the cloud's own description of the machine.
	Metadata json.RawMessage `json:"metadata,omitempty"`
}

// IsEvictable reports whether the machine may be terminated. If the server does not say, it may not.
func (m *Machine) IsEvictable() bool { return m.Membership != nil && m.Membership.Evictable }

// IsActive reports whether the machine counts in the pool's size.
func (m *Machine) IsActive() bool {
	return !m.State.HasLeftPool() && (m.Membership == nil || m.Membership.Active)
}

// Pool is an observation of the machines of a pool. It may be minutes old.
type Pool struct {
	Timestamp time.Time `json:"timestamp"`
	Machines  []Machine `json:"machines"`
}

// timestampFormat is the format of all times: UTC with three digits of milliseconds.
const timestampFormat = "2006-01-02T15:04:05.000Z"

func formatTime(t *time.Time) *string {
	if t == nil {
		return nil
	}
	text := t.UTC().Format(timestampFormat)
	return &text
}

// MarshalJSON formats times as the API does.
func (m Machine) MarshalJSON() ([]byte, error) {
	type plain Machine // avoids recursion
	return json.Marshal(struct {
		plain
		RequestTime *string `json:"requestTime,omitempty"`
		LaunchTime  *string `json:"launchTime,omitempty"`
	}{plain(m), formatTime(m.RequestTime), formatTime(m.LaunchTime)})
}

// MarshalJSON formats times as the API does.
func (p Pool) MarshalJSON() ([]byte, error) {
	type plain Pool
	return json.Marshal(struct {
		Timestamp *string `json:"timestamp"`
		plain
	}{formatTime(&p.Timestamp), plain(p)})
}

// MarshalJSON formats times as the API does.
func (s Size) MarshalJSON() ([]byte, error) {
	type plain Size
	return json.Marshal(struct {
		Timestamp *string `json:"timestamp"`
		plain
	}{formatTime(&s.Timestamp), plain(s)})
}

// Size is the current and the desired size of a pool.
type Size struct {
	Timestamp time.Time `json:"timestamp"`
	Desired   int       `json:"desiredSize"`
	Allocated int       `json:"allocated"`
	Active    int       `json:"active"`
}

// Status is the state of a pool.
type Status struct {
	Started    bool `json:"started"`
	Configured bool `json:"configured"`
}

// ErrorMessage is the body of every error.
type ErrorMessage struct {
	Message string `json:"message"`
	Detail  string `json:"detail"`
}

// SetDesiredSize is the body of POST /pool/size.
type SetDesiredSize struct {
	DesiredSize int `json:"desiredSize"`
}

// Removal is the body of POST /pool/terminate and POST /pool/detach.
type Removal struct {
	MachineID string `json:"machineId"`
	Decrement bool   `json:"decrementDesiredSize"`
}

// Attachment is the body of POST /pool/attach.
type Attachment struct {
	MachineID string `json:"machineId"`
}

// SetServiceState is the body of POST /pool/serviceState.
type SetServiceState struct {
	MachineID    string       `json:"machineId"`
	ServiceState ServiceState `json:"serviceState"`
}

// SetMembershipStatus is the body of POST /pool/membershipStatus.
type SetMembershipStatus struct {
	MachineID        string           `json:"machineId"`
	MembershipStatus MembershipStatus `json:"membershipStatus"`
}
