package queue

import (
	"cmp"
	"context"
	"fmt"
	"net/http"
	"net/url"
	"regexp"

	"github.com/aws/aws-sdk-go-v2/aws"
	awshttp "github.com/aws/aws-sdk-go-v2/aws/transport/http"
	"github.com/aws/aws-sdk-go-v2/config"
	"github.com/aws/aws-sdk-go-v2/service/autoscaling"
	"github.com/aws/aws-sdk-go-v2/service/sqs"
)

// SQS lists the requests to the queue. *sqs.Client implements it.
type SQS interface {
	ReceiveMessage(context.Context, *sqs.ReceiveMessageInput, ...func(*sqs.Options)) (*sqs.ReceiveMessageOutput, error)
	DeleteMessageBatch(context.Context, *sqs.DeleteMessageBatchInput, ...func(*sqs.Options)) (*sqs.DeleteMessageBatchOutput, error)
	ChangeMessageVisibilityBatch(context.Context, *sqs.ChangeMessageVisibilityBatchInput, ...func(*sqs.Options)) (*sqs.ChangeMessageVisibilityBatchOutput, error)
}

// AutoScaling lists the requests about lifecycle hooks. *autoscaling.Client implements it.
type AutoScaling interface {
	CompleteLifecycleAction(context.Context, *autoscaling.CompleteLifecycleActionInput, ...func(*autoscaling.Options)) (*autoscaling.CompleteLifecycleActionOutput, error)
	RecordLifecycleActionHeartbeat(context.Context, *autoscaling.RecordLifecycleActionHeartbeatInput, ...func(*autoscaling.Options)) (*autoscaling.RecordLifecycleActionHeartbeatOutput, error)
	DescribeLifecycleHooks(context.Context, *autoscaling.DescribeLifecycleHooksInput, ...func(*autoscaling.Options)) (*autoscaling.DescribeLifecycleHooksOutput, error)
}

// Clients are the clients of one region.
type Clients struct {
	SQS         SQS
	EC2         EC2
	AutoScaling AutoScaling
}

// NewClients returns the clients for a configuration. The credentials are from the SDK's default chain: environment,
// shared files, IRSA, Pod Identity, or the role of the instance. wrap wraps the transport; nil does not.
func NewClients(ctx context.Context, c Config, wrap func(http.RoundTripper) http.RoundTripper) (Clients, error) {
	region, sqsEndpoint := findRegionAndEndpoint(c.URL)
	options := []func(*config.LoadOptions) error{config.WithEC2IMDSRegion()}
	if region = cmp.Or(c.Region, region); region != "" {
		options = append(options, config.WithRegion(region))
	}
	loaded, err := config.LoadDefaultConfig(ctx, options...)
	if err != nil {
		return Clients{}, fmt.Errorf("AWS configuration: %w", err)
	}
	if loaded.Region == "" {
		return Clients{}, fmt.Errorf("--aws-queue-region: is empty, and the URL %s of the queue names no region: want a region such as eu-west-1", c.URL)
	}
	if loaded.HTTPClient == nil {
		loaded.HTTPClient = awshttp.NewBuildableClient()
	}
	if wrap != nil { // with the authorities of AWS_CA_BUNDLE
		loaded.HTTPClient = &http.Client{Transport: wrap(clientTransport{loaded.HTTPClient})}
	}
	base := func(own, fallback string, set **string) {
		if endpoint := cmp.Or(own, fallback); endpoint != "" {
			*set = aws.String(endpoint)
		}
	}
	ec2, err := newEC2Client(ctx, loaded, cmp.Or(c.EC2Endpoint, c.Endpoint))
	if err != nil {
		return Clients{}, err
	}
	return Clients{
		SQS:         sqs.NewFromConfig(loaded, func(o *sqs.Options) { base(c.Endpoint, sqsEndpoint, &o.BaseEndpoint) }),
		EC2:         ec2,
		AutoScaling: autoscaling.NewFromConfig(loaded, func(o *autoscaling.Options) { base(c.AutoScalingEndpoint, c.Endpoint, &o.BaseEndpoint) }),
	}, nil
}

// clientTransport is the transport of a client.
type clientTransport struct{ client aws.HTTPClient }

// RoundTrip implements http.RoundTripper.
func (r clientTransport) RoundTrip(request *http.Request) (*http.Response, error) {
	return r.client.Do(request)
}

// publicHost matches the public hosts of SQS, and its group is the region. The second form is an older one.
var publicHost = regexp.MustCompile(`^(?:sqs\.([a-z0-9-]+)|([a-z0-9-]+)\.queue)\.(?:` +
	`amazonaws\.com(?:\.cn)?|amazonaws\.eu|api\.aws|c2s\.ic\.gov|sc2s\.sgov\.gov|cloud\.adc-e\.uk|csp\.hci\.ic\.gov)$`)

// findRegionAndEndpoint returns the region of a queue's URL, or else the endpoint of SQS for it. That is a VPC endpoint or
// an emulator.
func findRegionAndEndpoint(queueURL string) (region, endpoint string) {
	u, err := url.Parse(queueURL)
	if err != nil {
		return "", ""
	}
	if m := publicHost.FindStringSubmatch(u.Hostname()); m != nil {
		return cmp.Or(m[1], m[2]), ""
	}
	if m := vpcHost.FindStringSubmatch(u.Hostname()); m != nil {
		region = m[1]
	}
	return region, u.Scheme + "://" + u.Host
}

var vpcHost = regexp.MustCompile(`\.sqs\.([a-z0-9-]+)\.vpce\.`)
