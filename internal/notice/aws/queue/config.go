package queue

import (
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/spf13/pflag"

	noticeaws "github.com/slipway-dev/slipway/internal/notice/aws"
)

// Config configures the queue mode. NewDefaultConfig returns the defaults.
type Config struct {
	// URL is the URL of the SQS queue. An empty URL disables the queue mode.
	URL string
	// Region is the AWS region; empty takes it from the URL, or else from the SDK's configuration.
	Region string
	// Endpoint is the URL of SQS, EC2 and Auto Scaling; empty is the public one of each service. EC2Endpoint and
	// AutoScalingEndpoint replace it for their services. If Endpoint is empty and the host of URL is not a public one of
	// AWS, it is the endpoint of SQS.
	Endpoint, EC2Endpoint, AutoScalingEndpoint string

	// Workers is the number of nodes that are drained at once if their drains can wait; urgent drains always run.
	Workers int

	// CheckTag handles only instances with the tag ManagedTag. It needs the permission ec2:DescribeInstances.
	CheckTag   bool
	ManagedTag string

	// UseNodeNameByDNS also finds a Node by the private DNS name of the instance, if no Node has the instance's ID in its
	// provider ID. It needs the permission ec2:DescribeInstances.
	UseNodeNameByDNS bool
	// DeleteIfNodeNotFound deletes the message of an instance without a Node at once, without UnknownNodeGrace.
	DeleteIfNodeNotFound bool
	// UnknownNodeGrace is how long an instance has to have no Node before its message is deleted. A Node may just join.
	UnknownNodeGrace time.Duration

	// Visibility is how long SQS hides a received message from other receivers. It is extended while the message is
	// handled. ParkedVisibility is the longest time that a message that cannot be handled is hidden.
	Visibility, ParkedVisibility time.Duration
	// WaitTime is how long SQS waits for messages in one request, 0 to 20s.
	WaitTime time.Duration

	// HookTimeout is how long a drain for an Auto Scaling group may take; 0 is the timeout of the lifecycle hook.
	HookTimeout time.Duration
	// HeartbeatInterval is the time between two heartbeats of a lifecycle hook; 0 is half of the hook's timeout.
	HeartbeatInterval time.Duration
	// HeartbeatUntil is how long heartbeats are sent for one instance; 0 is the limit of AWS: 48 hours, or 100 times the
	// timeout of the hook.
	HeartbeatUntil time.Duration
	// NoHeartbeats sends no heartbeats. The timeout of the hook then limits each drain.
	NoHeartbeats bool
	// CompletionDelay is the pause between the end of the drain and the completion of the lifecycle hook.
	CompletionDelay time.Duration
	// Acknowledge completes lifecycle hooks. Without it their own timeouts end them.
	Acknowledge bool

	// LeaseNamespace is the namespace of a Lease that lets only one of several processes handle the queue; empty is no
	// Lease. The manager has its own leader election and needs none.
	LeaseNamespace string

	// IgnoredKinds are the kinds of messages that are deleted without any action.
	IgnoredKinds []string
}

// The defaults of Config.
const (
	DefaultWorkers          = 10
	DefaultManagedTag       = "aws-node-termination-handler/managed"
	DefaultUnknownNodeGrace = 10 * time.Minute
	DefaultVisibility       = 30 * time.Second
	DefaultParkedVisibility = 15 * time.Minute
	DefaultWaitTime         = 20 * time.Second
)

// The limits of workers and of SQS.
const (
	maxWorkers = 1000
	// MinVisibility is the smallest visibility: it is extended at half of it, and this is checked once in writeInterval.
	MinVisibility       = 5 * time.Second
	minParkedVisibility = time.Second
	maxVisibility       = 12 * time.Hour // ChangeMessageVisibility
)

// NewDefaultConfig returns the configuration with the defaults of all flags.
func NewDefaultConfig() Config {
	var c Config
	c.AddFlags(pflag.NewFlagSet("", pflag.ContinueOnError))
	return c
}

// AddFlags registers the flags with their defaults.
func (c *Config) AddFlags(fs *pflag.FlagSet) {
	fs.StringVar(&c.URL, "aws-queue-url", "", "URL of an AWS SQS queue with notices of EC2 and Auto Scaling; empty means none")
	fs.StringVar(&c.Region, "aws-queue-region", "", "AWS region of the queue (default: from the URL)")
	fs.StringVar(&c.Endpoint, "aws-queue-endpoint", "", "URL of SQS, EC2 and Auto Scaling; empty means the public ones")
	fs.StringVar(&c.EC2Endpoint, "aws-queue-ec2-endpoint", "", "URL of EC2, if it is not the one of --aws-queue-endpoint")
	fs.StringVar(&c.AutoScalingEndpoint, "aws-queue-autoscaling-endpoint", "", "URL of Auto Scaling, if it is not the one of --aws-queue-endpoint")
	fs.IntVar(&c.Workers, "aws-queue-workers", DefaultWorkers, fmt.Sprintf("how many nodes may drain at once if the drain can wait, 1 to %d", maxWorkers))
	fs.BoolVar(&c.CheckTag, "aws-queue-check-tag", false, "handle only instances with the tag --aws-queue-managed-tag")
	fs.StringVar(&c.ManagedTag, "aws-queue-managed-tag", DefaultManagedTag, "key of the tag for --aws-queue-check-tag")
	fs.BoolVar(&c.UseNodeNameByDNS, "aws-queue-use-dns-name", false, "also find the node of an instance by its private DNS name")
	fs.BoolVar(&c.DeleteIfNodeNotFound, "aws-queue-delete-if-node-not-found", false, "delete the message of an instance without a node at once")
	fs.DurationVar(&c.UnknownNodeGrace, "aws-queue-unknown-node-grace", DefaultUnknownNodeGrace, "how long an instance must have no node before its message is deleted, 0 to 1h")
	fs.DurationVar(&c.Visibility, "aws-queue-visibility", DefaultVisibility, "how long a received message is hidden from other receivers, 5s to 12h; it is extended while the message is handled")
	fs.DurationVar(&c.ParkedVisibility, "aws-queue-parked-visibility", DefaultParkedVisibility, "the longest time that a message that cannot be handled is hidden, 1s to 12h")
	fs.DurationVar(&c.WaitTime, "aws-queue-wait-time", DefaultWaitTime, "how long one request waits for messages, 0 to 20s")
	fs.DurationVar(&c.HookTimeout, "aws-queue-hook-timeout", 0, "how long a drain for an Auto Scaling group may take; 0 means the timeout of its lifecycle hook")
	fs.DurationVar(&c.HeartbeatInterval, "aws-queue-heartbeat-interval", 0, "time between two heartbeats of a lifecycle hook; 0 means half of the hook's timeout")
	fs.DurationVar(&c.HeartbeatUntil, "aws-queue-heartbeat-until", 0, "how long to send heartbeats for an instance; 0 means the limit of AWS")
	fs.BoolVar(&c.NoHeartbeats, "aws-queue-no-heartbeats", false, "send no heartbeats of lifecycle hooks")
	fs.DurationVar(&c.CompletionDelay, "aws-queue-completion-delay", 0, "pause between the drain and the completion of the lifecycle hook, 0 to 1h")
	fs.BoolVar(&c.Acknowledge, "aws-queue-acknowledge", true, "complete lifecycle hooks when their nodes are drained or ready")
	fs.StringSliceVar(&c.IgnoredKinds, "aws-queue-ignore", nil, "kinds of messages to delete without any action: "+strings.Join(kindNames(), ", "))
}

// Validate returns all errors of the configuration.
func (c *Config) Validate() error {
	var errs []error
	bad := func(flag string, value any, want string) {
		errs = append(errs, fmt.Errorf("--aws-queue-%s: %v: want %s", flag, value, want))
	}
	if !isHTTPURL(c.URL) {
		bad("url", fmt.Sprintf("%q", c.URL), "a URL such as https://sqs.eu-west-1.amazonaws.com/123456789012/notices")
	}
	for flag, value := range map[string]string{"endpoint": c.Endpoint, "ec2-endpoint": c.EC2Endpoint, "autoscaling-endpoint": c.AutoScalingEndpoint} {
		if value != "" && !isHTTPURL(value) {
			bad(flag, fmt.Sprintf("%q", value), "a URL, or nothing")
		}
	}
	if c.Workers < 1 || c.Workers > maxWorkers {
		bad("workers", c.Workers, fmt.Sprintf("1 to %d", maxWorkers))
	}
	if c.CheckTag && c.ManagedTag == "" {
		bad("managed-tag", `""`, "the key of a tag")
	}
	for _, d := range []struct {
		flag     string
		value    time.Duration
		zero     bool
		min, max time.Duration
	}{
		{"unknown-node-grace", c.UnknownNodeGrace, true, 0, time.Hour},
		{"visibility", c.Visibility, false, MinVisibility, maxVisibility},
		{"parked-visibility", c.ParkedVisibility, false, minParkedVisibility, maxVisibility},
		{"wait-time", c.WaitTime, true, 0, 20 * time.Second},
		{"hook-timeout", c.HookTimeout, true, noticeaws.MinHookTimeout, noticeaws.MaxHookHold},
		{"heartbeat-interval", c.HeartbeatInterval, true, time.Second, noticeaws.MaxHookHold},
		{"heartbeat-until", c.HeartbeatUntil, true, time.Second, noticeaws.MaxHookHold},
		{"completion-delay", c.CompletionDelay, true, 0, time.Hour},
	} {
		if (d.value < d.min || d.value > d.max) && !(d.zero && d.value == 0) {
			bad(d.flag, d.value, fmt.Sprintf("%s to %s", d.min, d.max))
		}
	}
	for _, kind := range c.IgnoredKinds {
		if !slices.Contains(kindNames(), kind) {
			bad("ignore", fmt.Sprintf("%q", kind), "one of "+strings.Join(kindNames(), ", "))
		}
	}
	return errors.Join(errs...)
}

func isHTTPURL(text string) bool {
	u, err := url.Parse(text)
	return err == nil && (u.Scheme == "http" || u.Scheme == "https") && u.Host != ""
}
