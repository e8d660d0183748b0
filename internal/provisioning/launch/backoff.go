package launch

import (
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/slipway-dev/slipway/api/v1alpha1"
	"github.com/slipway-dev/slipway/internal/cloud"
	"github.com/slipway-dev/slipway/internal/elapsed"
	"github.com/slipway-dev/slipway/internal/observe"
)

// Reasons of a back-off beside those of [cloud.Refusal].
const (
	NeverJoined = "NeverJoined" // a machine had no Node in time
	NeverReady  = "NeverReady"  // a machine's Node was not Ready in time
	NeverUsable = "NeverUsable" // a machine's Node was Ready, and took no pods of the group in time
	Failed      = "Failed"      // the cloud could not make a machine, and did not say why
	Throttled   = "Throttled"   // the cloud wants to be left alone
	Unclear     = "Unclear"     // the order may or may not have been taken
	// InstanceVanished: the cloud has dropped an instance before its Node was usable.
	InstanceVanished = "InstanceVanished"
)

// backOffRange is how long a kind of machine is left alone after a failure: first, then twice as long each time, up to most.
type backOffRange struct{ min, max time.Duration }

// backOffRanges by reason: what somebody has to set right is asked for less often than what passes by itself.
var backOffRanges = map[string]backOffRange{
	string(cloud.NoCapacity): {2 * time.Minute, 30 * time.Minute},
	string(cloud.NoQuota):    {5 * time.Minute, time.Hour},
	string(cloud.NoRight):    {10 * time.Minute, time.Hour},
	string(cloud.Invalid):    {30 * time.Minute, 6 * time.Hour},
	string(cloud.AtLimit):    {time.Minute, 10 * time.Minute},
	string(cloud.Protected):  {10 * time.Minute, time.Hour},
	NeverJoined:              {5 * time.Minute, time.Hour},
	NeverReady:               {5 * time.Minute, time.Hour},
	NeverUsable:              {5 * time.Minute, time.Hour},
	Failed:                   {2 * time.Minute, 30 * time.Minute},
	Throttled:                {10 * time.Second, 5 * time.Minute},
	Unclear:                  {10 * time.Second, 5 * time.Minute},
	InstanceVanished:         {30 * time.Second, 10 * time.Minute},
}

// Pause is how long a kind is left alone after so many failures in a row for a reason, at least 1 of them.
func Pause(reason string, failures int32) time.Duration {
	p, ok := backOffRanges[reason]
	if !ok {
		p = backOffRanges[Unclear]
	}
	d := p.min
	for i := int32(1); i < failures && d < p.max; i++ {
		d *= 2
	}
	return min(d, p.max)
}

// Fail returns the back-off after a failure of a template; before is the one that there was, or nil. A failure that is heard of while the
// template is left alone anyway, such as that of the next instance of the same launch, does not count again.
func Fail(before *v1alpha1.BackOff, template, reason, message string, now time.Time) v1alpha1.BackOff {
	b := v1alpha1.BackOff{Template: template, Reason: reason, Message: clipMessage(message), Failures: 1}
	if before != nil && Forgiven(before, now) {
		before = nil
	}
	if before != nil {
		b.Failures = before.Failures
		if !now.Before(before.Until.Time) {
			b.Failures++
		}
	}
	b.Until = metav1.NewTime(now.Add(Pause(reason, b.Failures)))
	if before != nil && b.Until.Before(&before.Until) {
		b.Until = before.Until
	}
	return b
}

// recordFailure writes the back-off after a failure of a template, which lasts until least at the least.
func recordFailure(s *v1alpha1.ProvisioningStatus, template, reason, message string, least, now time.Time) {
	before := findBackOff(s, template)
	b := Fail(before, template, reason, message, now)
	if b.Until.Time.Before(least) {
		b.Until = metav1.NewTime(least)
	}
	b.Until = b.Until.Rfc3339Copy()
	if before != nil {
		*before = b
		return
	}
	s.BackOffs = append(s.BackOffs, b)
}

// findBackOff returns the back-off of a template; nil if there is none.
func findBackOff(s *v1alpha1.ProvisioningStatus, template string) *v1alpha1.BackOff {
	for i := range s.BackOffs {
		if SameKind(s.BackOffs[i].Template, template) {
			return &s.BackOffs[i]
		}
	}
	return nil
}

// SetReason notes why the cloud made no instances of a launch.
func SetReason(l *v1alpha1.Launch, err error) {
	l.Reason, l.Message = ReasonOf(err), clipMessage(err.Error())
}

// clipMessage shortens a message to what a record holds.
func clipMessage(message string) string {
	const longest = 512
	return observe.Clip(message, longest)
}

// maxCloudPause is the longest that a cloud may ask for beside the pauses of a reason.
const maxCloudPause = time.Hour

// Clamp shortens a back-off that ends later than any can, since the clock was set back after the failure.
func Clamp(b v1alpha1.BackOff, now time.Time) v1alpha1.BackOff {
	longest := now.Add(max(maxCloudPause, Pause(b.Reason, b.Failures)))
	if elapsed.Future(b.Until.Time, longest) {
		b.Until = metav1.NewTime(longest)
	}
	return b
}

// Forgiven reports whether a back-off has been over for so long that the next failure is the first again.
func Forgiven(b *v1alpha1.BackOff, now time.Time) bool {
	return now.After(b.Until.Add(2 * Pause(b.Reason, b.Failures)))
}

// Refuted reports whether a machine that has joined shows that its kind does not fail any more. One that was ordered before it
// failed shows nothing; those that were ordered after that came when the kind was not left alone any more.
func Refuted(b *v1alpha1.BackOff, joined *Instance) bool {
	return SameKind(b.Template, joined.Template) && !joined.Since.Before(&b.Until)
}

// ReasonOf names an error of a cloud as a reason for a back-off.
func ReasonOf(err error) string {
	switch {
	case cloud.IsThrottled(err):
		return Throttled
	case cloud.RefusalOf(err) != "":
		return string(cloud.RefusalOf(err))
	}
	return Unclear
}
