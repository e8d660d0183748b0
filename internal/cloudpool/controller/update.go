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

// Kind is what an update does, in the words of the cloudpool API.
type Kind string

const (
	SetSize   Kind = "setDesiredSize"
	Terminate Kind = "terminateMachine"
	// Dispose is a termination that was asked for by making a machine disposable.
	Dispose          Kind = "disposeMachine"
	DetachMachine    Kind = "detachMachine"
	ChangeMembership Kind = "setMembershipStatus"
)

var updateTypes = map[Kind]v1alpha1.PoolUpdateType{
	SetSize: v1alpha1.SetPoolSize, Terminate: v1alpha1.TerminateMachine, Dispose: v1alpha1.SetMachineMembership,
	DetachMachine: v1alpha1.DetachMachine, ChangeMembership: v1alpha1.SetMachineMembership,
}

// Update is a PoolUpdate in the words of the cloudpool API.
type Update struct {
	ID   string `json:"id"`
	Kind Kind   `json:"kind"`
	Pool string `json:"pool"`
	// DesiredSize is what SetSize asks for.
	DesiredSize int `json:"desiredSize,omitempty"`
	// MachineID, Decrement and Membership are what the others ask for.
	MachineID   string                   `json:"machineId,omitempty"`
	Decrement   bool                     `json:"decrementDesiredSize,omitempty"`
	Membership  *v1alpha1.PoolMembership `json:"membershipStatus,omitempty"`
	RequestedBy string                   `json:"requestedBy,omitempty"`
	Began       time.Time                `json:"began"`
	SizeBefore  int                      `json:"sizeBefore"`
	Machines    []v1alpha1.PoolMachine   `json:"machines,omitempty"`
	Passed      []v1alpha1.PoolPassed    `json:"passed,omitempty"`
	// Message says what is being done or waited for.
	Message string `json:"message,omitempty"`
	// Told is what its clients were told when it continued without them.
	Told *Outcome `json:"told,omitempty"`
	// Outcome is how it ended; nil until then.
	Outcome *Outcome `json:"outcome,omitempty"`

	// Answer is what the pool's server said to a request that was passed on.
	Answer *v1alpha1.PoolAnswer `json:"-"`
	object *v1alpha1.PoolUpdate
	by     *Updater
}

// Result is how an update ended.
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

// Outcome is how an update ended, and why. As an error of a step it ends the update; any other error is tried again.
type Outcome struct {
	Result  Result    `json:"result"`
	Detail  string    `json:"detail,omitempty"`
	Removed int       `json:"removed"`
	At      time.Time `json:"at"`
}

func (o *Outcome) Error() string { return o.Detail }

func end(r Result, format string, a ...any) error {
	return &Outcome{Result: r, Detail: fmt.Sprintf(format, a...)}
}

// view returns a PoolUpdate in the words of the API.
func (u *Updater) view(up *v1alpha1.PoolUpdate) *Update {
	st := &up.Status
	v := &Update{
		ID: up.Name, Kind: Dispose, Pool: up.Spec.Pool, DesiredSize: int(*cmp.Or(up.Spec.DesiredSize, new(int32))), MachineID: up.Spec.MachineID,
		Decrement: up.Spec.Decrement, Membership: up.Spec.Membership, RequestedBy: up.Spec.RequestedBy, Began: up.CreationTimestamp.Time,
		SizeBefore: int(st.SizeBefore), Machines: st.Machines, Passed: st.Passed, Message: st.Message, Answer: st.Answer, object: up, by: u,
	}
	for kind, is := range updateTypes {
		if is == up.Spec.Type && kind != Dispose && !up.Disposes() {
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
	v.Told = told(v1alpha1.PoolUpdateBlocked)
	if up.Finished() {
		if v.Outcome = told(v1alpha1.PoolUpdateComplete); v.Outcome != nil {
			v.Outcome.At = st.CompletedAt.Time
		}
	}
	return v
}

// spec returns the PoolUpdate that an update asks for.
func (u *Update) spec(pool string) v1alpha1.PoolUpdateSpec {
	s := v1alpha1.PoolUpdateSpec{
		Pool: pool, Type: updateTypes[u.Kind], MachineID: u.MachineID, Decrement: u.Decrement, Membership: u.Membership,
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

// isSame reports whether two PoolUpdates ask for the same thing. The clients may differ.
func isSame(a, b v1alpha1.PoolUpdateSpec) bool {
	a.RequestedBy = b.RequestedBy
	return equality.Semantic.DeepEqual(a, b)
}

// Doing is what an update asks for, as the cloudpool API calls it.
func (u *Update) Doing() string {
	if u.Kind == SetSize {
		return fmt.Sprintf("%s %d", u.Kind, u.DesiredSize)
	}
	return fmt.Sprintf("%s %s", u.Kind, u.MachineID)
}

// String is what an update asks for.
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

// answered returns the update with what its clients are told as its outcome. False means that they have to wait.
func (u *Update) answered() (*Update, bool) {
	return u.with(cmp.Or(u.Outcome, u.Told)), u.Outcome != nil || u.Told != nil
}

// with returns the update with an outcome.
func (u *Update) with(o *Outcome) *Update {
	c := *u
	c.Outcome = o
	return &c
}

// HasFailed reports whether a machine was to go and did not.
func HasFailed(up *Update) bool {
	return slices.ContainsFunc(up.Machines, func(m v1alpha1.PoolMachine) bool { return m.State == v1alpha1.MachineRefused })
}

// Failure is why a request was not carried out.
type Failure struct {
	Result
	Detail string
	// Err is what went wrong, if something did.
	Err error
}

func (f *Failure) Error() string { return f.Detail }
func (f *Failure) Unwrap() error { return f.Err }

// Failuref returns a Failure by what a client is told.
func Failuref(r Result, format string, a ...any) *Failure {
	return &Failure{Result: r, Detail: fmt.Sprintf(format, a...)}
}

// BackendFailure is a pool's server that did not answer, or not well.
func BackendFailure(doing string, err error) *Failure {
	return &Failure{Result: BackendUnavailable, Detail: doing + ": " + err.Error(), Err: err}
}

// ClusterFailure is an API server that did not answer.
func ClusterFailure(doing string, err error) *Failure {
	return &Failure{Result: ClusterUnavailable, Detail: doing + ": " + err.Error(), Err: err}
}

// ErrAlready is what was asked for being so already.
var ErrAlready = errors.New("it is so already")

// BusyError is a pool that is being changed in another way, by an update that is under way.
type BusyError struct{ By *Update }

func (e *BusyError) Error() string {
	return "the pool is being updated: " + e.By.String() + " is under way"
}

// isFinal reports a no of the pool's cloud, or of its server, that asking again does not change. Credentials may be replaced,
// and what is in conflict now need not be later.
func isFinal(err error) bool {
	status := api.AsStatus(err)
	return cloud.RefusalOf(err) != "" || status != nil && status.Own && slices.Contains([]int{
		http.StatusBadRequest, http.StatusNotFound, http.StatusMethodNotAllowed, http.StatusUnprocessableEntity, http.StatusNotImplemented,
	}, status.Code)
}

// ResultOf says what an error means to a client.
func ResultOf(err error) Result {
	var f *Failure
	var unread *UnreadError
	switch {
	case errors.As(err, &f):
		return f.Result
	case errors.As(err, &unread):
		return ClusterUnavailable
	case cloud.IsNotFound(err):
		return NotFound
	case api.AsStatus(err) != nil, cloud.IsThrottled(err), cloud.RefusalOf(err) != "":
		return BackendUnavailable
	}
	return Failed
}

// answerOf returns the answer of the pool's server, or of its cloud, to a refused request; nil for an error of this process.
func answerOf(doing string, err error) *v1alpha1.PoolAnswer {
	var own *Failure
	status := api.AsStatus(err)
	switch {
	case err == nil || errors.As(err, &own):
		return nil
	case status != nil && status.Own && status.Code >= 400 && status.Code < 600:
		return &v1alpha1.PoolAnswer{Code: int32(status.Code), Message: status.Message, Detail: status.Detail}
	case cloud.RefusalOf(err) == cloud.AtLimit, cloud.RefusalOf(err) == cloud.Invalid:
		return &v1alpha1.PoolAnswer{Code: 400, Message: "illegal input: " + doing, Detail: err.Error()}
	}
	return &v1alpha1.PoolAnswer{}
}
