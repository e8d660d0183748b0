package launch

import (
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/slipway-dev/slipway/api/v1alpha1"
	"github.com/slipway-dev/slipway/internal/cloud"
	"github.com/slipway-dev/slipway/internal/elapsed"
	"github.com/slipway-dev/slipway/internal/observe"
)

// Reasons of a back-off. [cloud.Refusal] has more.
const (
	NeverJoined = "NeverJoined" // an instance had no Node in time
	NeverReady  = "NeverReady"  // an instance's Node was not Ready in time
	NeverUsable = "NeverUsable" // an instance's Node was Ready, but took no pods of the group in time
	Failed      = "Failed"      // the cloud could not create an instance, for an unknown reason
	Throttled   = "Throttled"   // the cloud asked for a pause
	Unclear     = "Unclear"     // the cloud may or may not have accepted the launch
	// InstanceVanished means that the cloud removed an instance before its Node was usable.
	InstanceVanished = "InstanceVanished"
)

// backOffRange is how long a back-off lasts: min after the first failure, twice as long after each further one, and at
// most max.
type backOffRange struct{ min, max time.Duration }

// backOffRanges are the ranges by reason. They are longer for failures that a person must fix.
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

// BackOffDuration returns the duration of the back-off after a number of consecutive failures, at least 1.
func BackOffDuration(reason string, failures int32) time.Duration {
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

// NextBackOff returns the back-off after a failure of a template. before is the previous back-off, or nil. A failure
// during the previous back-off does not double the duration, because it probably concerns another instance of the same
// launch.
func NextBackOff(before *v1alpha1.BackOff, template, reason, message string, now time.Time) v1alpha1.BackOff {
	b := v1alpha1.BackOff{Template: template, Reason: reason, Message: clipMessage(message), Failures: 1}
	if before != nil && IsBackOffExpired(before, now) {
		before = nil
	}
	if before != nil {
		b.Failures = before.Failures
		if !now.Before(before.Until.Time) {
			b.Failures++
		}
	}
	b.Until = metav1.NewTime(now.Add(BackOffDuration(reason, b.Failures)))
	if before != nil && b.Until.Before(&before.Until) {
		b.Until = before.Until
	}
	return b
}

// recordBackOff writes the back-off after a failure of a template into the status. The back-off lasts at least until
// notBefore.
func recordBackOff(s *v1alpha1.ProvisioningStatus, template, reason, message string, notBefore, now time.Time) {
	before := findBackOff(s, template)
	b := NextBackOff(before, template, reason, message, now)
	if b.Until.Time.Before(notBefore) {
		b.Until = metav1.NewTime(notBefore)
	}
	b.Until = b.Until.Rfc3339Copy()
	if before != nil {
		*before = b
		return
	}
	s.BackOffs = append(s.BackOffs, b)
}

// findBackOff returns the back-off of a template. It returns nil if there is none.
func findBackOff(s *v1alpha1.ProvisioningStatus, template string) *v1alpha1.BackOff {
	for i := range s.BackOffs {
		if IsSameTemplate(s.BackOffs[i].Template, template) {
			return &s.BackOffs[i]
		}
	}
	return nil
}

// SetLaunchReason sets why the cloud created no instances for a launch.
func SetLaunchReason(l *v1alpha1.Launch, err error) {
	l.Reason, l.Message = BackOffReason(err), clipMessage(err.Error())
}

// clipMessage shortens a message to the limit of a record.
func clipMessage(message string) string {
	const longest = 512
	return observe.ClipBytes(message, longest)
}

// maxCloudPause is the longest pause that a cloud may ask for.
const maxCloudPause = time.Hour

// ClampBackOff shortens a back-off whose end is too far in the future, because the clock was set back after the failure.
func ClampBackOff(b v1alpha1.BackOff, now time.Time) v1alpha1.BackOff {
	longest := now.Add(max(maxCloudPause, BackOffDuration(b.Reason, b.Failures)))
	if elapsed.IsFuture(b.Until.Time, longest) {
		b.Until = metav1.NewTime(longest)
	}
	return b
}

// IsBackOffExpired reports whether a back-off ended so long ago that the next failure counts as the first.
func IsBackOffExpired(b *v1alpha1.BackOff, now time.Time) bool {
	return now.After(b.Until.Add(2 * BackOffDuration(b.Reason, b.Failures)))
}

// IsBackOffRefuted reports whether an instance that has joined proves that its template works again. Only an instance
// that was first seen after the end of the back-off is a proof.
func IsBackOffRefuted(b *v1alpha1.BackOff, joined *Instance) bool {
	return IsSameTemplate(b.Template, joined.Template) && !joined.Since.Before(&b.Until)
}

// BackOffReason returns the reason of a back-off for a cloud's error.
func BackOffReason(err error) string {
	switch {
	case cloud.IsThrottled(err):
		return Throttled
	case cloud.RefusalOf(err) != "":
		return string(cloud.RefusalOf(err))
	}
	return Unclear
}
