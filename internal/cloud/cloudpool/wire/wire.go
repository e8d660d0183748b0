// Package wire is the cloudpool REST API, version 5 (https://cloudpoolrestapi.readthedocs.io): its types, how its bodies
// are read, and a client.
package wire

import (
	"encoding/json"
	"time"
)

// MachineState is how far a machine's life has come.
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

// Over reports a state in which a machine does not count to its pool any more, nor will again. A state that is not known
// is not over (I7).
func (s MachineState) Over() bool { return s == Rejected || s == Terminating || s == Terminated }

// ServiceState is what somebody says of the service on a machine. It has no effect.
type ServiceState string

// The states of service.
const (
	Booting      ServiceState = "BOOTING"
	InService    ServiceState = "IN_SERVICE"
	Unhealthy    ServiceState = "UNHEALTHY"
	OutOfService ServiceState = "OUT_OF_SERVICE"
	UnknownState ServiceState = "UNKNOWN"
)

// Known reports one of the states above.
func (s ServiceState) Known() bool {
	switch s {
	case Booting, InService, Unhealthy, OutOfService, UnknownState:
		return true
	}
	return false
}

// MembershipStatus is what a pool may do with a machine: one that is active counts to the pool's size, one that is
// evictable may be taken away. One that is evictable and not active is disposable: it is replaced and terminated.
type MembershipStatus struct {
	Active    bool `json:"active"`
	Evictable bool `json:"evictable"`
}

// Disposable reports a machine that its pool replaces and terminates.
func (m MembershipStatus) Disposable() bool { return !m.Active && m.Evictable }

// UnmarshalJSON takes what is missing for true, as the reference server does.
func (m *MembershipStatus) UnmarshalJSON(raw []byte) error {
	var read struct{ Active, Evictable *bool }
	if err := json.Unmarshal(raw, &read); err != nil {
		return err
	}
	*m = MembershipStatus{read.Active == nil || *read.Active, read.Evictable == nil || *read.Evictable}
	return nil
}

// Machine is one machine of a pool.
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
	// Metadata is the cloud's own description, in the cloud's own form.
	Metadata json.RawMessage `json:"metadata,omitempty"`
}

// Evictable reports that the machine may be taken away. Of one that does not say, it is not known, and so may not.
func (m *Machine) Evictable() bool { return m.Membership != nil && m.Membership.Evictable }

// Active reports that the machine counts to its pool's size.
func (m *Machine) Active() bool {
	return !m.State.Over() && (m.Membership == nil || m.Membership.Active)
}

// Pool is the machines of a pool, as they were observed at a time. It may be some minutes old.
type Pool struct {
	Timestamp time.Time `json:"timestamp"`
	Machines  []Machine `json:"machines"`
}

// timestamp is the form of all times: UTC, to the millisecond, all three digits of which are there.
const timestamp = "2006-01-02T15:04:05.000Z"

func inUTC(t *time.Time) *string {
	if t == nil {
		return nil
	}
	text := t.UTC().Format(timestamp)
	return &text
}

// MarshalJSON writes times in the API's form.
func (m Machine) MarshalJSON() ([]byte, error) {
	type plain Machine // without this method
	return json.Marshal(struct {
		plain
		RequestTime *string `json:"requestTime,omitempty"`
		LaunchTime  *string `json:"launchTime,omitempty"`
	}{plain(m), inUTC(m.RequestTime), inUTC(m.LaunchTime)})
}

// MarshalJSON writes times in the API's form.
func (p Pool) MarshalJSON() ([]byte, error) {
	type plain Pool
	return json.Marshal(struct {
		Timestamp *string `json:"timestamp"`
		plain
	}{inUTC(&p.Timestamp), plain(p)})
}

// MarshalJSON writes times in the API's form.
func (s Size) MarshalJSON() ([]byte, error) {
	type plain Size
	return json.Marshal(struct {
		Timestamp *string `json:"timestamp"`
		plain
	}{inUTC(&s.Timestamp), plain(s)})
}

// Size is how large a pool is and is meant to be.
type Size struct {
	Timestamp time.Time `json:"timestamp"`
	Desired   int       `json:"desiredSize"`
	Allocated int       `json:"allocated"`
	Active    int       `json:"active"`
}

// Status is whether a pool works.
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
