package controller

import (
	"cmp"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"

	"github.com/slipway-dev/slipway/api/v1alpha1"
	"github.com/slipway-dev/slipway/internal/cloud"
	api "github.com/slipway-dev/slipway/internal/cloud/cloudpool/wire"
)

// Kind is the type of an update, as the cloudpool API names it.
type Kind string

const (
	SetSize   Kind = "setDesiredSize"
	Terminate Kind = "terminateMachine"
	// Dispose is a termination that a client has requested by making a machine disposable.
	Dispose          Kind = "disposeMachine"
	DetachMachine    Kind = "detachMachine"
	ChangeMembership Kind = "setMembershipStatus"
)

var updateTypeByKind = map[Kind]v1alpha1.PoolUpdateType{
	SetSize: v1alpha1.SetPoolSize, Terminate: v1alpha1.TerminateMachine, Dispose: v1alpha1.SetMachineMembership,
	DetachMachine: v1alpha1.DetachMachine, ChangeMembership: v1alpha1.SetMachineMembership,
}

// Update is a PoolUpdate as Slipway's own HTTP API shows it.
type Update struct {
	ID   string `json:"id"`
	Kind Kind   `json:"kind"`
	Pool string `json:"pool"`
	// DesiredSize is the requested size of a SetSize.
	DesiredSize int `json:"desiredSize,omitempty"`
	// MachineID, Decrement and Membership are set for the other kinds.
	MachineID   string                    `json:"machineId,omitempty"`
	Decrement   bool                      `json:"decrementDesiredSize,omitempty"`
	Membership  *v1alpha1.PoolMembership  `json:"membershipStatus,omitempty"`
	RequestedBy string                    `json:"requestedBy,omitempty"`
	StartedAt   time.Time                 `json:"startedAt"`
	SizeBefore  int                       `json:"sizeBefore"`
	Machines    []v1alpha1.PoolMachine    `json:"machines,omitempty"`
	Skipped     []v1alpha1.SkippedMachine `json:"skipped,omitempty"`
	// Message describes the current step or the reason for waiting.
	Message string `json:"message,omitempty"`
	// ReportedOutcome is the outcome that clients got if the update continued after their request ended.
	ReportedOutcome *Outcome `json:"reportedOutcome,omitempty"`
	// Outcome is the result; nil until the update has finished.
	Outcome *Outcome `json:"outcome,omitempty"`

	// ServerAnswer is the server's error answer to a forwarded request.
	ServerAnswer *v1alpha1.PoolAnswer `json:"-"`
	object       *v1alpha1.PoolUpdate
	updater      *Updater
}

// Result is the kind of result of an update.
type Result = v1alpha1.PoolUpdateResult

const (
	Done               = v1alpha1.PoolUpdateDone
	Partial            = v1alpha1.PoolUpdatePartial
	NotFound           = v1alpha1.PoolUpdateNotFound
	NotPossible        = v1alpha1.PoolUpdateNotPossible
	BackendUnavailable = v1alpha1.PoolUpdateBackendUnavailable
	ClusterUnavailable = v1alpha1.PoolUpdateClusterUnavailable
	Failed             = v1alpha1.PoolUpdateFailed
)

// Outcome is the final result of an update, with the reason. If a step returns an *Outcome as its error, the update is
// finished. After any other error, the step is retried.
type Outcome struct {
	Result  Result    `json:"result"`
	Detail  string    `json:"detail,omitempty"`
	Removed int       `json:"removed"`
	At      time.Time `json:"at"`
}

func (o *Outcome) Error() string { return o.Detail }

func newOutcome(r Result, format string, a ...any) error {
	return &Outcome{Result: r, Detail: fmt.Sprintf(format, a...)}
}

func (u *Updater) toUpdate(up *v1alpha1.PoolUpdate) *Update {
	st := &up.Status
	v := &Update{
		ID: up.Name, Kind: Dispose, Pool: up.Spec.Pool, DesiredSize: int(*cmp.Or(up.Spec.DesiredSize, new(int32))), MachineID: up.Spec.MachineID,
		Decrement: up.Spec.Decrement, Membership: up.Spec.Membership, RequestedBy: up.Spec.RequestedBy, StartedAt: up.CreationTimestamp.Time,
		SizeBefore: int(st.SizeBefore), Machines: st.Machines, Skipped: st.Skipped, Message: st.Message, ServerAnswer: st.Answer, object: up, updater: u,
	}
	for kind, is := range updateTypeByKind {
		if is == up.Spec.Type && kind != Dispose && !up.IsDisposal() {
			v.Kind = kind
		}
	}
	told := func(condition string) *Outcome {
		c := meta.FindStatusCondition(st.Conditions, condition)
		if c == nil {
			return nil
		}
		return &Outcome{Result: Result(c.Reason), Detail: c.Message, Removed: int(st.Removed), At: c.LastTransitionTime.Time}
	}
	v.ReportedOutcome = told(v1alpha1.PoolUpdateBlocked)
	if up.IsFinished() {
		if v.Outcome = told(v1alpha1.PoolUpdateComplete); v.Outcome != nil {
			v.Outcome.At = st.CompletedAt.Time
		}
	}
	return v
}

func (u *Update) toSpec(pool string) v1alpha1.PoolUpdateSpec {
	s := v1alpha1.PoolUpdateSpec{
		Pool: pool, Type: updateTypeByKind[u.Kind], MachineID: u.MachineID, Decrement: u.Decrement, Membership: u.Membership,
		RequestedBy: u.RequestedBy[:min(len(u.RequestedBy), 1024)],
	}
	switch u.Kind {
	case SetSize:
		s.DesiredSize = new(int32(u.DesiredSize))
	case Dispose:
		s.Membership = &v1alpha1.PoolMembership{Evictable: true}
	}
	return s
}

// isSameRequest reports whether two PoolUpdates request the same change. They may have different requesters.
func isSameRequest(a, b v1alpha1.PoolUpdateSpec) bool {
	a.RequestedBy = b.RequestedBy
	return equality.Semantic.DeepEqual(a, b)
}

// APIOperation returns the requested operation with its argument, as the cloudpool API names it.
func (u *Update) APIOperation() string {
	if u.Kind == SetSize {
		return fmt.Sprintf("%s %d", u.Kind, u.DesiredSize)
	}
	return fmt.Sprintf("%s %s", u.Kind, u.MachineID)
}

// String describes the requested operation in words.
func (u *Update) String() string {
	switch u.Kind {
	case SetSize:
		return fmt.Sprintf("setting the desired size to %d (update %s)", u.DesiredSize, u.ID)
	case DetachMachine:
		return fmt.Sprintf("detaching machine %s (update %s)", u.MachineID, u.ID)
	case ChangeMembership:
		return fmt.Sprintf("setting the membership of machine %s (update %s)", u.MachineID, u.ID)
	}
	return fmt.Sprintf("terminating machine %s (update %s)", u.MachineID, u.ID)
}

// withClientOutcome returns the update with the outcome to report to its clients. It returns false as long as the
// clients must wait.
func (u *Update) withClientOutcome() (*Update, bool) {
	return u.withOutcome(cmp.Or(u.Outcome, u.ReportedOutcome)), u.Outcome != nil || u.ReportedOutcome != nil
}

func (u *Update) withOutcome(o *Outcome) *Update {
	c := *u
	c.Outcome = o
	return &c
}

// HasRefusedMachine reports whether at least one machine of the update could not be removed.
func HasRefusedMachine(up *Update) bool {
	return slices.ContainsFunc(up.Machines, func(m v1alpha1.PoolMachine) bool { return m.State == v1alpha1.MachineRefused })
}

// Failure is an error that says why a request was not carried out, with a Result for the client.
type Failure struct {
	Result
	Detail string
	// Err is the cause, if there is one.
	Err error
}

func (f *Failure) Error() string { return f.Detail }
func (f *Failure) Unwrap() error { return f.Err }

// NewFailuref returns a Failure with a message for the client.
func NewFailuref(r Result, format string, a ...any) *Failure {
	return &Failure{Result: r, Detail: fmt.Sprintf(format, a...)}
}

// NewBackendFailure returns a Failure for an error of the pool's server or cloud. doing says what failed.
func NewBackendFailure(doing string, err error) *Failure {
	return &Failure{Result: BackendUnavailable, Detail: doing + ": " + err.Error(), Err: err}
}

// NewClusterFailure returns a Failure for an error of the API server. doing says what failed.
func NewClusterFailure(doing string, err error) *Failure {
	return &Failure{Result: ClusterUnavailable, Detail: doing + ": " + err.Error(), Err: err}
}

// ErrAlreadyTerminating is the error if the requested termination of a machine has already begun.
var ErrAlreadyTerminating = errors.New("the machine is being terminated already")

// BusyError is the error if another update of the pool is unfinished.
type BusyError struct{ Current *Update }

func (e *BusyError) Error() string {
	return "the pool is being updated: " + e.Current.String() + " has not finished"
}

// isPermanentError reports whether the pool's cloud or server refuses a request permanently, so that a retry cannot
// succeed. Authentication errors and conflicts are not permanent.
func isPermanentError(err error) bool {
	status := api.AsStatusError(err)
	return cloud.RefusalOf(err) != "" || status != nil && status.FromServer && slices.Contains([]int{
		http.StatusBadRequest, http.StatusNotFound, http.StatusMethodNotAllowed, http.StatusUnprocessableEntity, http.StatusNotImplemented,
	}, status.Code)
}

// ToResult returns the Result to report to a client for an error.
func ToResult(err error) Result {
	var f *Failure
	var unread *NotSyncedError
	switch {
	case errors.As(err, &f):
		return f.Result
	case errors.As(err, &unread):
		return ClusterUnavailable
	case cloud.IsNotFound(err):
		return NotFound
	case api.AsStatusError(err) != nil, cloud.IsThrottled(err), cloud.RefusalOf(err) != "":
		return BackendUnavailable
	}
	return Failed
}

// toPoolAnswer returns the refusal by the pool's server or its cloud as a PoolAnswer. It returns nil without an error,
// or if this process itself has refused.
func toPoolAnswer(doing string, err error) *v1alpha1.PoolAnswer {
	var own *Failure
	status := api.AsStatusError(err)
	switch {
	case err == nil || errors.As(err, &own):
		return nil
	case status != nil && status.FromServer && status.Code >= 400 && status.Code < 600:
		return &v1alpha1.PoolAnswer{Code: int32(status.Code), Message: status.Message, Detail: status.Detail}
	case cloud.RefusalOf(err) == cloud.AtLimit, cloud.RefusalOf(err) == cloud.Invalid:
		return &v1alpha1.PoolAnswer{Code: 400, Message: "illegal input: " + doing, Detail: err.Error()}
	}
	return &v1alpha1.PoolAnswer{}
}
