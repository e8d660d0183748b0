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
	// APIVersion is the version of the service that this package can read.
	APIVersion = "2020-07-01"
	// DefaultTimeout suits a service on the instance's own host.
	DefaultTimeout = 5 * time.Second
	// DefaultFirstTimeout allows for the two minutes that the service may need for its first response.
	DefaultFirstTimeout = 130 * time.Second
)

// maxExcerpt limits how much of an error response is read, in bytes.
const maxExcerpt = 512

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

// Client calls the Scheduled Events service. Several goroutines may use it at once.
//
// It uses no proxy, because the service only answers the instance itself. It follows no redirect.
type Client struct {
	endpoint     string
	timeout      time.Duration
	firstTimeout time.Duration
	http         *http.Client
	answered     atomic.Bool
	clockAhead   atomic.Int64 // nanoseconds
}

// NewClient checks the options. Its errors name the option, its value and what is allowed.
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

// newTransport returns a transport that keeps one connection open between polls. It disables compression, because
// responses are small and local, and decompression would cost memory.
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

// Endpoint returns the URL of the service.
func (c *Client) Endpoint() string { return c.endpoint }

// Fetch reads the document. Every error is an [*Error].
func (c *Client) Fetch(ctx context.Context) (Document, error) {
	return c.sendRequest(ctx, http.MethodGet, nil)
}

// Approve tells the service that it may begin the events at once, before their NotBefore. It applies to every
// instance that an event names, not only this one. Approving an event again does no harm. Without an event it sends
// nothing. Every error is an [*Error].
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
	_, err = c.sendRequest(ctx, http.MethodPost, body)
	return err
}

// ClockAhead returns how far this instance's clock is ahead of the service's, by the Date of its responses; negative
// is behind. It is 0 for a difference of about a second, because Date has no fractions, and for more than a day
// ahead. It may be called from any goroutine.
func (c *Client) ClockAhead() time.Duration { return time.Duration(c.clockAhead.Load()) }

// maxClockAhead limits how far a clock is believed to be ahead, because that delays deadlines. Beyond it NotBefore is
// in the past, and the minimum notice applies.
const maxClockAhead = 24 * time.Hour

// updateClockAhead compares this instance's clock with the Date of a response. The response was made between sent and
// now, so a slow one gives only a rough estimate.
func (c *Client) updateClockAhead(sent, now time.Time, header http.Header) {
	date, err := http.ParseTime(header.Get("Date"))
	if err != nil {
		return
	}
	least, most := sent.Sub(date)-time.Second, now.Sub(date)
	if most > maxClockAhead {
		least, most = 0, 0
	}
	if known := c.ClockAhead(); known < least-time.Second || known > most+time.Second {
		c.clockAhead.Store(int64(((least + most) / 2).Round(time.Second)))
	}
}

// sendRequest sends one request and returns the body of a response with status 200.
func (c *Client) sendRequest(ctx context.Context, method string, body []byte) ([]byte, error) {
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
		return nil, c.newTransportError(ctx, Unreachable, limit, err)
	}
	defer func() { _ = response.Body.Close() }() // the body may not have been read to its end
	c.updateClockAhead(sent, time.Now(), response.Header)
	if response.StatusCode != http.StatusOK {
		return nil, newStatusError(response)
	}
	answer, err := io.ReadAll(io.LimitReader(response.Body, MaxDocumentSize+1))
	if err != nil {
		return nil, c.newTransportError(ctx, CutShort, limit, fmt.Errorf("after %d bytes: %w", len(answer), err))
	}
	if len(answer) > MaxDocumentSize {
		return nil, &Error{Class: TooLarge, Err: fmt.Errorf("%s: the response has more than %d bytes",
			c.endpoint, MaxDocumentSize)}
	}
	c.answered.Store(true)
	return answer, nil
}

// newTransportError distinguishes a timeout from the caller's cancellation and from other failures.
func (c *Client) newTransportError(ctx context.Context, otherwise Class, limit time.Duration, err error) error {
	var timeout net.Error
	switch {
	case ctx.Err() != nil:
		return &Error{Class: Canceled, Err: context.Cause(ctx)}
	case errors.Is(err, context.DeadlineExceeded), errors.As(err, &timeout) && timeout.Timeout():
		return &Error{Class: Timeout, Err: fmt.Errorf("no complete response within %s: %w", limit, err)}
	default:
		return &Error{Class: otherwise, Err: fmt.Errorf("%s: %w", c.endpoint, err)}
	}
}

func newStatusError(response *http.Response) error {
	excerpt, _ := io.ReadAll(io.LimitReader(response.Body, maxExcerpt)) // a partial excerpt is good enough
	err := fmt.Errorf("%s %s: status %s: %s", response.Request.Method, response.Request.URL, response.Status,
		quoteForError(excerpt))
	if to := response.Header.Get("Location"); to != "" {
		err = fmt.Errorf("%w; its redirect to %s is not followed", err, quoteForError(to))
	}
	return &Error{
		Class:      HTTPStatus,
		Status:     response.StatusCode,
		RetryAfter: parseRetryAfter(response, time.Now()),
		Err:        err,
	}
}

// parseRetryAfter parses the Retry-After header, in seconds or as a time; 0 if it is absent, unreadable or past.
func parseRetryAfter(response *http.Response, now time.Time) time.Duration {
	value := strings.TrimSpace(response.Header.Get("Retry-After"))
	if seconds, err := strconv.Atoi(value); err == nil {
		return time.Duration(min(max(seconds, 0), 86400)) * time.Second
	}
	if at, err := http.ParseTime(value); err == nil {
		return max(at.Sub(now), 0)
	}
	return 0
}
