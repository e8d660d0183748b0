package azure

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"time"

	"github.com/slipway-dev/slipway/internal/notice/poll"
)

// Defaults of [Options].
const (
	DefaultEndpoint = "http://169.254.169.254/metadata/scheduledevents?api-version=" + APIVersion
	// APIVersion is the version of the service that this package can read.
	APIVersion = "2020-07-01"
	// DefaultTimeout suits a service on the instance's own host.
	DefaultTimeout = 5 * time.Second
	// DefaultFirstTimeout allows for the two minutes that the service may need for its first response.
	DefaultFirstTimeout = 130 * time.Second
)

// Options configures a [Client]. Zero values are the defaults.
type Options struct {
	// Endpoint is the full URL of the service, including api-version.
	Endpoint string
	// Timeout limits each request, from the connection to the last byte of the response.
	Timeout time.Duration
	// FirstTimeout replaces Timeout until the service has responded once. Timeout still limits the connection, so a
	// missing endpoint is detected soon.
	FirstTimeout time.Duration
	// Wrap, if set, wraps the transport to measure requests.
	Wrap func(http.RoundTripper) http.RoundTripper
}

// Client calls the Scheduled Events service. It is safe for concurrent use.
//
// It uses no proxy, because the service answers only the instance itself. It follows no redirect.
type Client struct {
	endpoint string
	http     *poll.Client
}

// NewClient validates the options and returns a client. An error names the option, its value and what is allowed.
func NewClient(o Options) (*Client, error) {
	if o.Endpoint == "" {
		o.Endpoint = DefaultEndpoint
	}
	if err := checkEndpoint(o.Endpoint); err != nil {
		return nil, err
	}
	if o.Timeout == 0 {
		o.Timeout = DefaultTimeout
	}
	if o.FirstTimeout == 0 {
		o.FirstTimeout = max(DefaultFirstTimeout, o.Timeout)
	}
	if o.Timeout < 0 {
		return nil, fmt.Errorf("timeout: %s: want more than 0", o.Timeout)
	}
	if o.FirstTimeout < o.Timeout {
		return nil, fmt.Errorf("first timeout: %s: want at least the timeout of later requests, %s",
			o.FirstTimeout, o.Timeout)
	}
	return &Client{endpoint: o.Endpoint, http: poll.NewClient(poll.ClientOptions{
		Service: serviceName, Timeout: o.Timeout, FirstTimeout: o.FirstTimeout, MaxBytes: MaxDocumentSize, Wrap: o.Wrap,
	})}, nil
}

func checkEndpoint(endpoint string) error {
	u, err := url.Parse(endpoint)
	if err != nil {
		return fmt.Errorf("endpoint: %q: %w; want a URL such as %s", endpoint, err, DefaultEndpoint)
	}
	switch {
	case u.Scheme != "http" && u.Scheme != "https":
		return fmt.Errorf("endpoint: %q: has scheme %q; want http or https, as in %s",
			endpoint, u.Scheme, DefaultEndpoint)
	case u.Hostname() == "":
		return fmt.Errorf("endpoint: %q: has no host; want a URL such as %s", endpoint, DefaultEndpoint)
	case u.Query().Get("api-version") == "":
		return fmt.Errorf("endpoint: %q: has no api-version; want one, as in %s", endpoint, DefaultEndpoint)
	}
	return nil
}

// Endpoint returns the URL of the Scheduled Events service.
func (c *Client) Endpoint() string { return c.endpoint }

// Fetch reads the Scheduled Events document. Every error is an [*poll.Error].
func (c *Client) Fetch(ctx context.Context) (Document, error) {
	return c.sendRequest(ctx, http.MethodGet, nil)
}

// Approve allows the service to begin the events at once, before their NotBefore. An approval applies to every instance
// that an event names, not only to this one. A repeated approval does no harm. Without event IDs Approve sends nothing.
// Every error is an [*poll.Error].
func (c *Client) Approve(ctx context.Context, eventIDs ...string) error {
	if len(eventIDs) == 0 {
		return nil
	}
	type start struct {
		EventID string `json:"EventId"`
	}
	request := struct{ StartRequests []start }{make([]start, len(eventIDs))}
	for i, id := range eventIDs {
		request.StartRequests[i].EventID = id
	}
	body, err := json.Marshal(request)
	if err != nil {
		return newError(poll.NotJSON, err)
	}
	_, err = c.sendRequest(ctx, http.MethodPost, body)
	return err
}

// ClockAhead returns how far this instance's clock is ahead of the service's; see [poll.Client.ClockAhead].
func (c *Client) ClockAhead() time.Duration { return c.http.ClockAhead() }

// sendRequest sends one request and returns the body of a response with status 200. Every error is an [*poll.Error].
func (c *Client) sendRequest(ctx context.Context, method string, body []byte) ([]byte, error) {
	header := http.Header{"Metadata": {"true"}}
	if body != nil {
		header.Set("Content-Type", "application/json")
	}
	response, err := c.http.Send(ctx, method, c.endpoint, header, body)
	if err == nil {
		err = response.Err()
	}
	if err != nil {
		return nil, err
	}
	return response.Body, nil
}
