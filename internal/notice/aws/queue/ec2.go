package queue

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/xml"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	v4 "github.com/aws/aws-sdk-go-v2/aws/signer/v4"
	"github.com/aws/aws-sdk-go-v2/service/autoscaling"

	"github.com/slipway-dev/slipway/internal/notice/poll"
)

// Instance is what EC2 tells about an instance.
type Instance struct {
	ID string
	// PrivateDNSName is empty for a terminated instance.
	PrivateDNSName string
	// TagKeys are the keys of its tags.
	TagKeys []string
}

// EC2 lists the requests about instances. *EC2Client implements it.
type EC2 interface {
	// DescribeInstances returns those of the instances that exist.
	DescribeInstances(ctx context.Context, ids []string) ([]Instance, error)
}

// EC2Client sends requests to the EC2 API
// (https://docs.aws.amazon.com/AWSEC2/latest/APIReference/API_DescribeInstances.html). The SDK's package for EC2 would be
// larger than all other packages of Slipway together, for this one request.
type EC2Client struct {
	config   aws.Config
	endpoint string
	signer   *v4.Signer
	// clock is the clock of EC2, which refuses a signature with another time.
	clock poll.Clock
}

const (
	ec2Version = "2016-11-15"
	// maxEC2Response limits a response in bytes. A page has at most 1000 instances.
	maxEC2Response = 16 << 20
	ec2Page        = "1000"
)

// newEC2Client returns a client. If endpoint is empty, it uses the public one of the region.
func newEC2Client(ctx context.Context, config aws.Config, endpoint string) (*EC2Client, error) {
	if endpoint == "" {
		// The SDK knows the domain of each region. Both services have the same.
		of, err := autoscaling.NewDefaultEndpointResolverV2().ResolveEndpoint(ctx, autoscaling.EndpointParameters{Region: &config.Region})
		if err != nil {
			return nil, fmt.Errorf("the endpoint of EC2 in the region %s: %w", config.Region, err)
		}
		endpoint = "https://ec2." + strings.TrimPrefix(of.URI.Host, "autoscaling.")
	}
	return &EC2Client{config: config, endpoint: endpoint, signer: v4.NewSigner()}, nil
}

// DescribeInstances implements EC2. It filters by ID, because a list of IDs fails for an instance that does not exist.
func (c *EC2Client) DescribeInstances(ctx context.Context, ids []string) ([]Instance, error) {
	form := url.Values{"Action": {"DescribeInstances"}, "Version": {ec2Version}, "MaxResults": {ec2Page}, "Filter.1.Name": {"instance-id"}}
	for i, id := range ids {
		form.Set(fmt.Sprintf("Filter.1.Value.%d", i+1), id)
	}
	return c.describe(ctx, form)
}

// DescribeTagged returns the instances that have a tag with this key.
func (c *EC2Client) DescribeTagged(ctx context.Context, key string) ([]Instance, error) {
	return c.describe(ctx, url.Values{
		"Action": {"DescribeInstances"}, "Version": {ec2Version}, "MaxResults": {ec2Page}, "Filter.1.Name": {"tag-key"}, "Filter.1.Value.1": {key},
	})
}

// describe returns all pages of the response to a request.
func (c *EC2Client) describe(ctx context.Context, form url.Values) (all []Instance, err error) {
	for {
		var page struct {
			XMLName      xml.Name `xml:"DescribeInstancesResponse"` // another document would say that no instance exists
			Reservations []struct {
				Instances []struct {
					ID   string   `xml:"instanceId"`
					Name string   `xml:"privateDnsName"`
					Tags []string `xml:"tagSet>item>key"`
				} `xml:"instancesSet>item"`
			} `xml:"reservationSet>item"`
			NextToken string `xml:"nextToken"`
		}
		if err := c.call(ctx, form, &page); err != nil {
			return nil, fmt.Errorf("EC2 DescribeInstances: %w", err)
		}
		for _, r := range page.Reservations {
			for _, i := range r.Instances {
				all = append(all, Instance{ID: i.ID, PrivateDNSName: i.Name, TagKeys: i.Tags})
			}
		}
		if page.NextToken == "" {
			return all, nil
		}
		form.Set("NextToken", page.NextToken)
	}
}

// call sends a signed request and parses its response.
func (c *EC2Client) call(ctx context.Context, form url.Values, into any) error {
	credentials, err := c.config.Credentials.Retrieve(ctx)
	if err != nil {
		return err
	}
	body := form.Encode()
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, strings.TrimSuffix(c.endpoint, "/")+"/", strings.NewReader(body))
	if err != nil {
		return err
	}
	request.Header.Set("Content-Type", "application/x-www-form-urlencoded; charset=utf-8")
	sum := sha256.Sum256([]byte(body))
	sent := time.Now()
	if err := c.signer.SignHTTP(ctx, credentials, request, hex.EncodeToString(sum[:]), "ec2", c.config.Region, c.clock.ToServiceTime(sent)); err != nil {
		return err
	}
	response, err := c.config.HTTPClient.Do(request)
	if err != nil {
		return err
	}
	defer func() { _ = response.Body.Close() }()
	if date, err := http.ParseTime(response.Header.Get("Date")); err == nil {
		c.clock.Update(sent, time.Now(), date)
	}
	answer, err := io.ReadAll(io.LimitReader(response.Body, maxEC2Response))
	if err != nil {
		return err
	}
	if response.StatusCode != http.StatusOK {
		var refusal struct {
			Code    string `xml:"Errors>Error>Code"`
			Message string `xml:"Errors>Error>Message"`
		}
		_ = xml.Unmarshal(answer, &refusal) // the status is enough
		return fmt.Errorf("%s: %s: %s", response.Status, refusal.Code, refusal.Message)
	}
	return xml.Unmarshal(answer, into)
}
