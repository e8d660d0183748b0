package azure

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"sync/atomic"
	"time"
)

// Defaults of [Options].
const (
	DefaultEndpoint = "http://169.254.169.254/metadata/scheduledevents?api-version=" + APIVersion
	// APIVersion is the version of the service that its answers are read by.
	APIVersion = "2020-07-01"
	// DefaultTimeout suits a service on the machine's own host.
	DefaultTimeout = 5 * time.Second
	// DefaultFirstTimeout allows for the two minutes that the service may take to answer while it turns itself on.
	DefaultFirstTimeout = 130 * time.Second
)

// maxExcerpt is how much of an answer that is an error is read, in bytes.
const maxExcerpt = 512

// Options configure a [Client]. The zero value stands for the defaults.
type Options struct {
	// Endpoint is the full URL of the service, api-version included.
	Endpoint string
	// Timeout limits each request, from the connection to the last byte of the answer.
	Timeout time.Duration
	// FirstTimeout takes the place of Timeout until the service has answered once. Connecting to it is limited by
	// Timeout all the same, so that an endpoint that is not there is soon known.
	FirstTimeout time.Duration
	// Wrap, if set, wraps the transport, so that requests can be measured.
	Wrap func(http.RoundTripper) http.RoundTripper
}

// Client talks to the Scheduled Events service. It may be used by several goroutines at once.
//
// It never goes through a proxy, as the service answers only those on the machine itself, and follows no redirect.
type Client struct {
	endpoint     string
	timeout      time.Duration
	firstTimeout time.Duration
	http         *http.Client
	answered     atomic.Bool
	clockAhead   atomic.Int64 // nanoseconds
}

// NewClient checks the options; its errors name the option, its value and what is allowed.
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
	var transport http.RoundTripper = newTransport(o.Timeout)
	if o.Wrap != nil {
		transport = o.Wrap(transport)
	}
	return &Client{
		endpoint:     o.Endpoint,
		timeout:      o.Timeout,
		firstTimeout: o.FirstTimeout,
		http: &http.Client{
			Transport:     transport,
			CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		},
	}, nil
}

// newTransport keeps one connection open between polls. Answers are asked for uncompressed: they are small, come from
// the host next door, and unpacking would cost the agent memory.
func newTransport(dialTimeout time.Duration) *http.Transport {
	return &http.Transport{
		Proxy:                  nil,
		DialContext:            (&net.Dialer{Timeout: dialTimeout, KeepAlive: 30 * time.Second}).DialContext,
		TLSHandshakeTimeout:    dialTimeout,
		MaxIdleConns:           2,
		MaxIdleConnsPerHost:    2,
		IdleConnTimeout:        90 * time.Second,
		DisableCompression:     true,
		MaxResponseHeaderBytes: 16 << 10,
	}
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

// Endpoint is the URL that the client asks.
func (c *Client) Endpoint() string { return c.endpoint }

// Fetch reads the document. Every error is an [*Error].
func (c *Client) Fetch(ctx context.Context) (Document, error) {
	return c.do(ctx, http.MethodGet, nil)
}

// Approve tells the service that it may begin the events at once, without waiting for their NotBefore. It speaks for
// every machine that an event names, not for this one alone. Approving an event again does no harm. With no event
// nothing is sent. Every error is an [*Error].
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
		return &Error{Class: NotJSON, Err: err}
	}
	_, err = c.do(ctx, http.MethodPost, body)
	return err
}

// ClockAhead returns how far this machine's clock is ahead of the service's, by the Date of its answers; negative is
// behind. A difference of about a second is 0, as Date has no fractions, and so is one of more than a day ahead. It may be called from any goroutine.
func (c *Client) ClockAhead() time.Duration { return time.Duration(c.clockAhead.Load()) }

// mostAhead is the largest difference that is believed of a clock that is ahead, since it puts deadlines off. Beyond it NotBefore
// looks past, and the minimum notice counts.
const mostAhead = 24 * time.Hour

// compareClocks takes in when a request was sent, by this machine's clock, and the Date of its answer. The answer was
// made between sent and now, so that a slow one says little.
func (c *Client) compareClocks(sent, now time.Time, header http.Header) {
	date, err := http.ParseTime(header.Get("Date"))
	if err != nil {
		return
	}
	least, most := sent.Sub(date)-time.Second, now.Sub(date)
	if most > mostAhead {
		least, most = 0, 0
	}
	if known := c.ClockAhead(); known < least-time.Second || known > most+time.Second {
		c.clockAhead.Store(int64(((least + most) / 2).Round(time.Second)))
	}
}

// do sends one request and returns the body of its answer, whose status is 200.
func (c *Client) do(ctx context.Context, method string, body []byte) ([]byte, error) {
	limit := c.timeout
	if !c.answered.Load() {
		limit = c.firstTimeout
	}
	attempt, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	request, err := http.NewRequestWithContext(attempt, method, c.endpoint, bytes.NewReader(body))
	if err != nil {
		return nil, &Error{Class: Unreachable, Err: err}
	}
	request.Header.Set("Metadata", "true")
	if body != nil {
		request.Header.Set("Content-Type", "application/json")
	}
	sent := time.Now()
	response, err := c.http.Do(request)
	if err != nil {
		return nil, c.transportError(ctx, Unreachable, limit, err)
	}
	defer func() { _ = response.Body.Close() }() // after a read to the end, or in place of one
	c.compareClocks(sent, time.Now(), response.Header)
	if response.StatusCode != http.StatusOK {
		return nil, statusError(response)
	}
	answer, err := io.ReadAll(io.LimitReader(response.Body, MaxDocumentSize+1))
	if err != nil {
		return nil, c.transportError(ctx, CutShort, limit, fmt.Errorf("after %d bytes: %w", len(answer), err))
	}
	if len(answer) > MaxDocumentSize {
		return nil, &Error{Class: TooLarge, Err: fmt.Errorf("%s: the answer has more than %d bytes",
			c.endpoint, MaxDocumentSize)}
	}
	c.answered.Store(true)
	return answer, nil
}

// transportError tells a time-out of ours from the caller's own cancellation, and both from other trouble.
func (c *Client) transportError(ctx context.Context, otherwise Class, limit time.Duration, err error) error {
	var timeout net.Error
	switch {
	case ctx.Err() != nil:
		return &Error{Class: Canceled, Err: context.Cause(ctx)}
	case errors.Is(err, context.DeadlineExceeded), errors.As(err, &timeout) && timeout.Timeout():
		return &Error{Class: Timeout, Err: fmt.Errorf("no full answer within %s: %w", limit, err)}
	default:
		return &Error{Class: otherwise, Err: fmt.Errorf("%s: %w", c.endpoint, err)}
	}
}

func statusError(response *http.Response) error {
	excerpt, _ := io.ReadAll(io.LimitReader(response.Body, maxExcerpt)) // what could be read is what there is to show
	err := fmt.Errorf("%s %s: answered %s: %s", response.Request.Method, response.Request.URL, response.Status,
		quote(excerpt))
	if to := response.Header.Get("Location"); to != "" {
		err = fmt.Errorf("%w; its redirect to %s is not followed", err, quote(to))
	}
	return &Error{
		Class:      HTTPStatus,
		Status:     response.StatusCode,
		RetryAfter: retryAfter(response, time.Now()),
		Err:        err,
	}
}

// retryAfter reads the header of that name, in seconds or as a time; 0 when absent, unreadable or past.
func retryAfter(response *http.Response, now time.Time) time.Duration {
	value := strings.TrimSpace(response.Header.Get("Retry-After"))
	if seconds, err := strconv.Atoi(value); err == nil {
		return time.Duration(min(max(seconds, 0), 86400)) * time.Second
	}
	if at, err := http.ParseTime(value); err == nil {
		return max(at.Sub(now), 0)
	}
	return 0
}
