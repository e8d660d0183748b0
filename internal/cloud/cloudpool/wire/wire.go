// Package wire implements the cloudpool REST API, version 5 (https://cloudpoolrestapi.readthedocs.io): its types, the
// decoding of bodies, and a client.
package wire

import (
	"encoding/json"
	"time"
)

// MachineState is the lifecycle phase of a machine.
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

// HasLeftPool reports whether a machine in this state will never count as a member of its pool again. It returns false
// for an unknown state (I7: unknown is not gone).
func (s MachineState) HasLeftPool() bool { return s == Rejected || s == Terminating || s == Terminated }

// ServiceState is what a user reports about the service on a machine. The pool does not act on it.
type ServiceState string

// The service states.
const (
	Booting      ServiceState = "BOOTING"
	InService    ServiceState = "IN_SERVICE"
	Unhealthy    ServiceState = "UNHEALTHY"
	OutOfService ServiceState = "OUT_OF_SERVICE"
	UnknownState ServiceState = "UNKNOWN"
)

// IsKnown reports whether the state is one of the service states of the API.
func (s ServiceState) IsKnown() bool {
	switch s {
	case Booting, InService, Unhealthy, OutOfService, UnknownState:
		return true
	}
	return false
}

// MembershipStatus restricts what a pool may do with a machine. An active machine counts in the pool's size. The pool
// may terminate an evictable machine. A machine that is evictable and not active is disposable: the pool replaces and
// terminates it.
type MembershipStatus struct {
	Active    bool `json:"active"`
	Evictable bool `json:"evictable"`
}

// IsDisposable reports whether the pool replaces and terminates the machine, because it is evictable and not active.
func (m MembershipStatus) IsDisposable() bool { return !m.Active && m.Evictable }

// UnmarshalJSON implements json.Unmarshaler. A flag that is missing is true, as in the reference server.
func (m *MembershipStatus) UnmarshalJSON(raw []byte) error {
	var read struct{ Active, Evictable *bool }
	if err := json.Unmarshal(raw, &read); err != nil {
		return err
	}
	*m = MembershipStatus{read.Active == nil || *read.Active, read.Evictable == nil || *read.Evictable}
	return nil
}

// Machine is one machine of a pool, as the API describes it. Membership is nil if the server does not report it.
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

// IsEvictable reports whether the pool may terminate the machine. It returns false if the server does not report this.
func (m *Machine) IsEvictable() bool { return m.Membership != nil && m.Membership.Evictable }

// IsActive reports whether the machine counts in the pool's size.
func (m *Machine) IsActive() bool {
	return !m.State.HasLeftPool() && (m.Membership == nil || m.Membership.Active)
}

// Pool is the list of a pool's machines at the time of an observation. It may be minutes old.
type Pool struct {
	Timestamp time.Time `json:"timestamp"`
	Machines  []Machine `json:"machines"`
}

// timestampFormat is the format of all times: UTC with milliseconds.
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

// ErrorMessage is the body of every error response.
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
