package queue

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"

	"github.com/slipway-dev/slipway/internal/testing/must"
)

func TestRegionAndEndpointComeFromTheQueueURL(t *testing.T) {
	for queueURL, want := range map[string][2]string{
		"https://sqs.eu-west-1.amazonaws.com/1/q":                                      {"eu-west-1", ""},
		"https://sqs.cn-north-1.amazonaws.com.cn/1/q":                                  {"cn-north-1", ""},
		"https://us-east-2.queue.amazonaws.com/1/q":                                    {"us-east-2", ""},
		"https://sqs.us-iso-east-1.c2s.ic.gov/1/q":                                     {"us-iso-east-1", ""},
		"https://sqs.us-isob-east-1.sc2s.sgov.gov/1/q":                                 {"us-isob-east-1", ""},
		"https://sqs.eu-isoe-west-1.cloud.adc-e.uk/1/q":                                {"eu-isoe-west-1", ""},
		"https://sqs.us-isof-south-1.csp.hci.ic.gov/1/q":                               {"us-isof-south-1", ""},
		"https://vpce-0a.sqs.us-east-1.vpce.amazonaws.com/1/q":                         {"us-east-1", "https://vpce-0a.sqs.us-east-1.vpce.amazonaws.com"},
		"http://127.0.0.1:4100/1/q":                                                    {"", "http://127.0.0.1:4100"},
		"http://sqs.us-east-1.localhost.localstack.cloud:4566/000000000000/test-queue": {"", "http://sqs.us-east-1.localhost.localstack.cloud:4566"},
	} {
		if region, endpoint := findRegionAndEndpoint(queueURL); region != want[0] || endpoint != want[1] {
			t.Errorf("%s: region %q, endpoint %q", queueURL, region, endpoint)
		}
	}
}

func TestEC2ClientReadsAllPagesAndErrors(t *testing.T) {
	t.Setenv("AWS_ACCESS_KEY_ID", "key")
	t.Setenv("AWS_SECRET_ACCESS_KEY", "secret")
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_ = r.ParseForm()
		if !strings.Contains(r.Header.Get("Authorization"), "/eu-west-1/ec2/aws4_request") || r.Form.Get("Filter.1.Name") != "instance-id" {
			t.Errorf("%s, %v", r.Header.Get("Authorization"), r.Form)
		}
		switch id := r.Form.Get("Filter.1.Value.1"); {
		case id == "i-bad":
			w.WriteHeader(http.StatusForbidden)
			_, _ = fmt.Fprint(w, `<Response><Errors><Error><Code>UnauthorizedOperation</Code><Message>not you</Message></Error></Errors></Response>`)
		case id == "i-html":
			_, _ = fmt.Fprint(w, `<html><body>a proxy</body></html>`)
		case r.Form.Get("NextToken") == "":
			_, _ = fmt.Fprint(w, `<DescribeInstancesResponse><reservationSet><item><instancesSet><item><instanceId>i-0a</instanceId>`+
				`<privateDnsName>ip-10-0-0-1</privateDnsName><tagSet><item><key>team</key><value>a</value></item><item><key>managed</key></item></tagSet>`+
				`</item></instancesSet></item></reservationSet><nextToken>more</nextToken></DescribeInstancesResponse>`)
		default:
			_, _ = fmt.Fprint(w, `<DescribeInstancesResponse><reservationSet><item><instancesSet><item><instanceId>i-0b</instanceId></item></instancesSet></item></reservationSet></DescribeInstancesResponse>`)
		}
	}))
	defer server.Close()
	c := NewDefaultConfig()
	c.URL, c.Region, c.EC2Endpoint = "http://127.0.0.1:1/q", "eu-west-1", server.URL
	clients, err := NewClients(t.Context(), c, nil)
	must.NoError(t, err)
	all, err := clients.EC2.DescribeInstances(t.Context(), []string{"i-0a", "i-0b"})
	if err != nil || len(all) != 2 || all[0].PrivateDNSName != "ip-10-0-0-1" || strings.Join(all[0].TagKeys, " ") != "team managed" || all[1].ID != "i-0b" {
		t.Errorf("%+v, %v", all, err)
	}
	if _, err := clients.EC2.DescribeInstances(t.Context(), []string{"i-bad"}); err == nil || !strings.Contains(err.Error(), "UnauthorizedOperation: not you") {
		t.Error(err)
	}
	if all, err := clients.EC2.DescribeInstances(t.Context(), []string{"i-html"}); err == nil || !strings.Contains(err.Error(), "DescribeInstancesResponse") {
		t.Errorf("another document: %+v, %v", all, err)
	}
}

func TestEC2ClientSignsWithTheClockOfEC2(t *testing.T) {
	t.Setenv("AWS_ACCESS_KEY_ID", "key")
	t.Setenv("AWS_SECRET_ACCESS_KEY", "secret")
	for _, ahead := range []time.Duration{time.Hour, -time.Hour} { // of EC2
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			now := time.Now().Add(ahead)
			w.Header().Set("Date", now.UTC().Format(http.TimeFormat))
			signed, err := time.Parse("20060102T150405Z", r.Header.Get("X-Amz-Date"))
			if err != nil || now.Sub(signed).Abs() > 5*time.Minute {
				w.WriteHeader(http.StatusBadRequest)
				_, _ = fmt.Fprint(w, `<Response><Errors><Error><Code>RequestExpired</Code></Error></Errors></Response>`)
				return
			}
			_, _ = fmt.Fprint(w, `<DescribeInstancesResponse/>`)
		}))
		defer server.Close()
		c := NewDefaultConfig()
		c.URL, c.Region, c.EC2Endpoint = "http://127.0.0.1:1/q", "eu-west-1", server.URL
		clients, err := NewClients(t.Context(), c, nil)
		must.NoError(t, err)
		if _, err := clients.EC2.DescribeInstances(t.Context(), []string{"i-0a"}); err == nil || !strings.Contains(err.Error(), "RequestExpired") {
			t.Errorf("EC2 is %v ahead: the first request: %v; want the refusal that tells the clock of EC2", ahead, err)
		}
		if _, err := clients.EC2.DescribeInstances(t.Context(), []string{"i-0a"}); err != nil {
			t.Errorf("EC2 is %v ahead: the second request: %v", ahead, err)
		}
	}
}

func TestEC2EndpointHasDomainOfRegion(t *testing.T) {
	for region, want := range map[string]string{
		"eu-west-1": "https://ec2.eu-west-1.amazonaws.com", "cn-north-1": "https://ec2.cn-north-1.amazonaws.com.cn",
		"us-gov-west-1": "https://ec2.us-gov-west-1.amazonaws.com", "eusc-de-east-1": "https://ec2.eusc-de-east-1.amazonaws.eu",
	} {
		c, err := newEC2Client(t.Context(), aws.Config{Region: region}, "")
		must.NoError(t, err)
		if c.endpoint != want {
			t.Errorf("%s: %s, want %s", region, c.endpoint, want)
		}
	}
}

func TestConfigErrorsNameFlagAndValue(t *testing.T) {
	c := NewDefaultConfig()
	c.URL, c.Workers, c.WaitTime, c.Visibility, c.IgnoredKinds = "queue", 0, 1<<40, 2*time.Second, []string{"spot"}
	err := c.Validate()
	for _, want := range []string{`--aws-queue-url: "queue"`, "--aws-queue-workers: 0: want 1 to", "--aws-queue-wait-time", "--aws-queue-visibility: 2s: want 5s to 12h0m0s", `--aws-queue-ignore: "spot"`} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v; want %q", err, want)
		}
	}
	c = NewDefaultConfig()
	c.URL = "https://sqs.eu-west-1.amazonaws.com/1/q"
	must.NoError(t, c.Validate())
}
