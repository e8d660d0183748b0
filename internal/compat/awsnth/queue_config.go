package awsnth

import (
	"time"

	"github.com/slipway-dev/slipway/internal/notice/aws/queue"
)

// ToQueueConfig returns the configuration of the queue mode. It is only valid with EnableSQSTerminationDraining.
func (o *Options) ToQueueConfig() queue.Config {
	q := queue.NewDefaultConfig()
	q.URL, q.Region, q.Endpoint = o.QueueURL, o.AWSRegion, o.AWSEndpoint
	if q.Region == "" {
		q.Region = regionInURL(o.QueueURL)
	}
	q.LeaseNamespace = o.PodNamespace // the tool may have several replicas
	q.Workers = o.Workers
	q.CheckTag, q.ManagedTag = o.CheckTagBeforeDraining, o.ManagedTag
	q.UseNodeNameByDNS = !o.UseProviderID
	q.DeleteIfNodeNotFound = o.DeleteSQSMsgIfNodeNotFound
	q.Visibility = toSeconds(o.SQSMsgVisibilityTimeoutSec)
	q.CompletionDelay = toSeconds(o.CompleteLifecycleActionDelaySeconds)
	q.Acknowledge = o.Acknowledge
	if o.HeartbeatInterval == notSet {
		q.NoHeartbeats = true
		return q
	}
	// Heartbeats exist for drains that take longer than one timeout of the hook. The queue mode limits this value by
	// HeartbeatUntil.
	q.HookTimeout = maxHeartbeatUntil
	q.HeartbeatInterval, q.HeartbeatUntil = toSeconds(o.HeartbeatInterval), maxHeartbeatUntil
	if o.HeartbeatUntil != notSet {
		q.HeartbeatUntil = toSeconds(o.HeartbeatUntil)
	}
	return q
}

// toSeconds returns a number of seconds as a duration. Negative numbers count as 0.
func toSeconds(n int) time.Duration { return time.Duration(max(n, 0)) * time.Second }
