package aws

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/slipway-dev/slipway/internal/notice/poll"
)

const (
	// DefaultEndpoint is the instance metadata service of every EC2 instance.
	DefaultEndpoint = "http://169.254.169.254"
	// defaultIPv6Endpoint is the same service for instances without IPv4. It is tried if DefaultEndpoint is unreachable.
	defaultIPv6Endpoint = "http://[fd00:ec2::254]"
	// DefaultTimeout suits a service on the instance's own host.
	DefaultTimeout = 5 * time.Second

	serviceName = "instance metadata"
	// maxBytes limits a response. The list of scheduled events is the longest, and has some entries of 300 bytes.
	maxBytes = 256 << 10

	tokenPath      = "/latest/api/token"
	tokenHeader    = "X-Aws-Ec2-Metadata-Token"             //nolint:gosec // the name of a header
	tokenTTLHeader = "X-Aws-Ec2-Metadata-Token-Ttl-Seconds" //nolint:gosec // the name of a header
	// tokenTTL is the lifetime of a token, in seconds; the longest that the service allows.
	tokenTTL = 21600
	// maxTokenBytes limits a token. A real one has 56 bytes.
	maxTokenBytes = 1024
	// tokenFailurePause is how long the failure to get a token is returned for other reads, too.
	tokenFailurePause = time.Second
	// tokenRetryPause is how often a new token is requested while the old one is still valid.
	tokenRetryPause = time.Minute
	// probeTimeout limits the request that finds the cause of a failure.
	probeTimeout = time.Second
)

// ClientOptions configures a [Client]. Zero values are the defaults.
type ClientOptions struct {
	// Endpoint is the URL of the service without a path.
	Endpoint string
	// Timeout limits each request, from the connection to the last byte of the response.
	Timeout time.Duration
	// Wrap, if set, wraps the transport to measure requests.
	Wrap func(http.RoundTripper) http.RoundTripper
	Log  *slog.Logger // may be nil
}

// Client reads an EC2 instance's metadata with the session tokens of version 2 (IMDSv2). It is safe for concurrent use.
type Client struct {
	http *poll.Client
	log  *slog.Logger

	// lock holds a value while a goroutine uses the fields below, also during a request for a token. So there is one such
	// request at a time.
	lock      chan struct{}
	endpoints []string // the first is in use
	token     string
	renewAt   time.Time // a new token is requested before the old one expires
	expiresAt time.Time
	failedAt  time.Time // of the last request for a token, if it failed
	failure   error
}

// NewClient validates the options and returns a client. An error names the option, its value and what is allowed.
func NewClient(o ClientOptions) (*Client, error) {
	endpoints := []string{DefaultEndpoint, defaultIPv6Endpoint}
	if o.Endpoint != "" {
		u, err := url.Parse(o.Endpoint)
		if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Hostname() == "" || u.RawQuery != "" || strings.Trim(u.Path, "/") != "" {
			return nil, fmt.Errorf("endpoint: %q: want a URL without a path, such as %s", o.Endpoint, DefaultEndpoint)
		}
		endpoints = []string{u.Scheme + "://" + u.Host}
	}
	switch {
	case o.Timeout == 0:
		o.Timeout = DefaultTimeout
	case o.Timeout < 0:
		return nil, fmt.Errorf("timeout: %s: want more than 0", o.Timeout)
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	return &Client{
		http:      poll.NewClient(poll.ClientOptions{Service: serviceName, Timeout: o.Timeout, MaxBytes: maxBytes, Wrap: o.Wrap}),
		lock:      make(chan struct{}, 1),
		endpoints: endpoints, log: o.Log,
	}, nil
}

// Endpoint returns the URL of the service that is in use.
func (c *Client) Endpoint() string {
	c.lock <- struct{}{}
	defer func() { <-c.lock }()
	return c.endpoints[0]
}

// ClockAhead returns how far this instance's clock is ahead of the service's; see [poll.Client.ClockAhead].
func (c *Client) ClockAhead() time.Duration { return c.http.ClockAhead() }

// Get returns the metadata at a path. found is false if there is none, which the service tells with the status 404.
// Every error is an [*poll.Error].
func (c *Client) Get(ctx context.Context, path string) (body []byte, found bool, err error) {
	for attempt := 1; ; attempt++ {
		endpoint, token, err := c.useToken(ctx)
		if err != nil {
			return nil, false, err
		}
		response, err := c.http.Send(ctx, http.MethodGet, endpoint+path, http.Header{tokenHeader: {token}}, nil)
		switch {
		case err != nil:
			return nil, false, err
		case response.Status == http.StatusOK:
			return response.Body, true, nil
		case response.Status == http.StatusNotFound:
			return nil, false, nil
		case response.Status == http.StatusUnauthorized && attempt == 1:
			c.dropToken(token) // it expired early, for example after a hibernation
			continue
		}
		return nil, false, response.Err()
	}
}

// useToken returns the endpoint in use and a valid token for it.
func (c *Client) useToken(ctx context.Context) (endpoint, token string, err error) {
	select {
	case c.lock <- struct{}{}:
		defer func() { <-c.lock }()
	case <-ctx.Done():
		return "", "", c.http.NewError(poll.Canceled, context.Cause(ctx))
	}
	now := time.Now()
	if c.token != "" && now.Before(c.renewAt) {
		return c.endpoints[0], c.token, nil
	}
	if c.failure != nil && now.Sub(c.failedAt) < tokenFailurePause {
		err = c.failure
	} else if err = c.renewToken(ctx); err != nil && ctx.Err() == nil {
		c.failure, c.failedAt = err, time.Now()
	}
	if err != nil {
		if c.token == "" || !now.Before(c.expiresAt) {
			return "", "", err
		}
		c.renewAt = now.Add(tokenRetryPause) // the old one is used until it expires
	}
	return c.endpoints[0], c.token, nil
}

func (c *Client) dropToken(token string) {
	c.lock <- struct{}{}
	defer func() { <-c.lock }()
	if c.token == token {
		c.token = ""
	}
}

// renewToken requests a token from each endpoint until one has answered. The error is about the first endpoint.
func (c *Client) renewToken(ctx context.Context) error {
	var first error
	for i, endpoint := range c.endpoints {
		err := c.requestToken(ctx, endpoint)
		if err == nil {
			if i > 0 {
				c.log.Info("using another endpoint of the metadata service", "endpoint", endpoint, "insteadOf", c.endpoints[0])
				c.endpoints[0], c.endpoints[i] = endpoint, c.endpoints[0]
			}
			c.failure = nil
			return nil
		}
		if first == nil {
			first = err
		}
		if failed := (*poll.Error)(nil); errors.As(err, &failed) && failed.Class != poll.Unreachable && failed.Class != poll.Timeout {
			break // it has answered
		}
	}
	return first
}

func (c *Client) requestToken(ctx context.Context, endpoint string) error {
	response, err := c.http.Send(ctx, http.MethodPut, endpoint+tokenPath, http.Header{tokenTTLHeader: {strconv.Itoa(tokenTTL)}}, nil)
	if err != nil {
		return c.explainMissingToken(ctx, endpoint, err)
	}
	if err := response.Err(); err != nil {
		if response.Status == http.StatusForbidden {
			failed := *err.(*poll.Error) //nolint:errorlint,forcetypeassert // Response.Err returns no other type
			failed.Err = fmt.Errorf("%w; the instance metadata options may disable the service (HttpEndpoint), or a proxy forwards the request", failed.Err)
			return &failed
		}
		return err
	}
	token := strings.TrimSpace(string(response.Body))
	if !isToken(token) {
		return c.http.NewError(poll.WrongShape, fmt.Errorf("PUT %s%s: %s: want a token of at most %d printable characters", endpoint, tokenPath,
			poll.Quote(token), maxTokenBytes))
	}
	ttl := time.Duration(tokenTTL) * time.Second
	if seconds, err := strconv.Atoi(response.Header.Get(tokenTTLHeader)); err == nil && seconds > 0 && seconds < tokenTTL {
		ttl = time.Duration(seconds) * time.Second
	}
	now := time.Now()
	c.token, c.renewAt, c.expiresAt = token, now.Add(ttl*3/4), now.Add(ttl)
	return nil
}

// isToken reports whether a text can be sent as a token in a header.
func isToken(s string) bool {
	return s != "" && len(s) <= maxTokenBytes && !strings.ContainsFunc(s, func(r rune) bool { return r <= ' ' || r > '~' })
}

// explainMissingToken adds the probable cause to the error of a request for a token. The responses to these requests
// live for a limited number of network hops, and those to other requests do not. So if only the token does not arrive,
// the limit is too low for a pod network.
func (c *Client) explainMissingToken(ctx context.Context, endpoint string, err error) error {
	failed := (*poll.Error)(nil)
	if !errors.As(err, &failed) || failed.Class != poll.Timeout {
		return err
	}
	probe, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	if _, probeErr := c.http.Send(probe, http.MethodGet, endpoint+"/latest/meta-data/", nil, nil); probeErr != nil {
		return err
	}
	explained := *failed
	explained.Err = fmt.Errorf("%w; the service answers other requests, so the hop limit of the instance metadata options (HttpPutResponseHopLimit) "+
		"is probably 1: set it to 2, or run the agent with hostNetwork: true", failed.Err)
	return &explained
}
