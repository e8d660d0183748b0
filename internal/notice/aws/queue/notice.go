package queue

import (
	"crypto/sha256"
	"encoding/hex"
	"slices"
	"strings"
	"time"

	"github.com/slipway-dev/slipway/internal/notice"
	noticeaws "github.com/slipway-dev/slipway/internal/notice/aws"
	"github.com/slipway-dev/slipway/internal/notice/poll"
)

// SourceName is the value of [notice.Notice.Source] in the notices of this package.
const SourceName = notice.AWSQueue

const (
	// interruptionPeriod is how long before the interruption AWS sends a SpotInterruption or CapacityReservation.
	interruptionPeriod = 2 * time.Minute
	// defaultWindow is the length of a scheduled event that has no end.
	defaultWindow = time.Hour
	// maxWindow limits the length of a scheduled event. A wrong end, thousands of years away, would overflow the time when its
	// notice has ended.
	maxWindow = 365 * 24 * time.Hour
)

// NoticeID returns the ID of the notice for an instance. Messages of the same kind, and of the same hook or scheduled
// event, are one notice.
func (e *Event) NoticeID() string {
	switch e.Kind {
	case ASGTerminate, ASGLaunch:
		return newID(e.Kind, e.Hook.Group, e.Hook.Name, e.Hook.Token)
	case ScheduledEvent:
		if strings.HasPrefix(e.ID, "arn:") {
			return newID(e.Kind, e.ID)
		}
		return newID(e.Kind, e.Code, e.Starts.Format(time.RFC3339))
	}
	return string(e.Kind)
}

func newID(kind Kind, parts ...string) string {
	sum := sha256.Sum256([]byte(strings.Join(parts, "\n")))
	return string(kind) + "-" + hex.EncodeToString(sum[:8])
}

// KindOfNotice returns the kind of a notice from its ID; empty if the ID is of no kind.
func KindOfNotice(id string) Kind {
	for _, k := range Kinds() {
		if rest, found := strings.CutPrefix(id, string(k)); found && (rest == "" || rest[0] == '-') {
			return k
		}
	}
	return ""
}

// endingStates are the states of a StateChange that interrupt the instance.
var endingStates = []string{"stopping", "stopped", "shutting-down", "terminated"}

// IsInterruption reports whether the event announces an interruption of one of its instances.
func (e *Event) IsInterruption(instance string) bool {
	switch e.Kind {
	case StateChange:
		return slices.Contains(endingStates, e.State)
	case ScheduledEvent:
		return !e.Closed && !slices.Contains(e.Resolved, instance)
	}
	return e.Kind != ASGLaunch && slices.Contains(Kinds(), e.Kind)
}

// IsExpired reports whether the event is about a lifecycle hook that cannot wait any more. Its instance is terminated, or
// is one of a warm pool that may be in service again. now is by the clock of AWS.
func (e *Event) IsExpired(now time.Time) bool {
	return e.Hook.Name != "" && IsHookExpired(e.Time, now)
}

// IsHookExpired reports whether a lifecycle hook cannot wait any more that was announced at a time; zero is unknown. Both times
// are by the clock of AWS.
func IsHookExpired(announced, now time.Time) bool {
	return !announced.IsZero() && now.Sub(announced) > noticeaws.MaxHookHold
}

// NewNotice returns the notice for one instance of an interruption. A notice of an earlier time than now keeps its time. The notice
// of a lifecycle hook has no time: the hook's timeout is not in the event.
func (e *Event) NewNotice(instance string) notice.Notice {
	n := notice.Notice{
		ID: e.NoticeID(), Source: SourceName, Status: notice.Scheduled, Duration: poll.UnknownDuration,
		Resources: []string{instance}, NotApprovable: true,
	}
	switch e.Kind {
	case SpotInterruption, CapacityReservation:
		n.Type, n.Description = notice.Preempt, "Spot interruption: "+e.Action
		if e.Kind == CapacityReservation {
			n.Description = "the capacity reservation of the instance ends: " + e.Action
		}
		switch {
		case e.Action == "hibernate":
			n.Status, n.NotBefore = notice.Started, e.Time // it begins at once, without the two minutes
		case !e.Starts.IsZero():
			n.NotBefore = e.Starts
		case !e.Time.IsZero():
			n.NotBefore = e.Time.Add(interruptionPeriod)
		default:
			n.NoticePeriod = interruptionPeriod
		}
	case Rebalance:
		n.Type, n.NotBefore, n.Description = notice.Rebalance, e.Time, "AWS recommends to replace the instance, because it is likely to be interrupted"
	case StateChange:
		n.Type, n.Status, n.NotBefore, n.Description = notice.Terminate, notice.Started, e.Time, "the instance is "+e.State
	case ASGTerminate:
		n.Type, n.NotApprovable = notice.Terminate, false
		n.Description = "the Auto Scaling group " + e.Hook.Group + " terminates the instance, lifecycle hook " + e.Hook.Name
	case ScheduledEvent:
		n.Type, _ = noticeaws.TypeOfEvent(e.Code, "")
		n.NotBefore, n.Description = e.Starts, "scheduled event "+e.Code
		if length := e.Ends.Sub(e.Starts); !e.Starts.IsZero() && length > 0 && n.Type != notice.Freeze {
			n.Duration = min(length, maxWindow)
		}
		if e.Starts.IsZero() {
			n.NoticePeriod = defaultWindow // AWS announces these events days ahead
		}
	}
	return n
}

const (
	// survivalTime is how long a Ready node has to outlive the deadline of a notice until the notice has ended: AWS has not
	// interrupted the instance. AWS may retire an instance later than it announced.
	survivalTime           = time.Hour
	survivalTimeRetirement = 24 * time.Hour
	// shutdownTime is how long a node may still report Ready after its instance began to stop.
	shutdownTime = 30 * time.Second
)

// HasEnded reports whether a notice has ended although the instance still has a Node. due is when the interruption was due.
// The Node is Ready since readySince, zero if it is not. AWS sends no message about the end of most notices. So a notice has
// ended if the node has become Ready after the interruption, or has outlived it. A Rebalance ends with its instance.
func HasEnded(n notice.Notice, due, readySince, now time.Time) bool {
	if n.Type == notice.Rebalance || due.IsZero() || readySince.IsZero() {
		return false
	}
	if readySince.After(due.Add(shutdownTime)) && !readySince.After(now) { // a later time is of a node with a wrong clock
		return true
	}
	left := survivalTime
	if KindOfNotice(n.ID) == ScheduledEvent && n.Type == notice.Terminate {
		left = survivalTimeRetirement
	}
	return now.After(due.Add(max(0, n.Duration) + left))
}
