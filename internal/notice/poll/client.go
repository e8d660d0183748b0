package poll

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync/atomic"
	"time"
)

// maxClockAhead is the largest difference between the clocks that is used to correct deadlines. A larger difference is
// ignored. Then NotBefore lies in the past, and the minimum notice time applies.
const maxClockAhead = 24 * time.Hour

// maxExcerpt limits how much of an error response an error message quotes, in bytes.
const maxExcerpt = 512

// ClientOptions configures a [Client].
type ClientOptions struct {
	// Service is the name of the service in error messages.
	Service string
	// Timeout limits each request, from the connection to the last byte of the response.
	Timeout time.Duration
	// FirstTimeout replaces Timeout until the service has responded once with the status 200. Timeout still limits the
	// connection, so a missing endpoint is detected soon. 0 is Timeout.
	FirstTimeout time.Duration
	// MaxBytes is the maximum size of a response with the status 200, in bytes.
	MaxBytes int
	// Wrap, if set, wraps the transport to measure requests.
	Wrap func(http.RoundTripper) http.RoundTripper
}

// Client sends requests to an instance's metadata service. It is safe for concurrent use.
//
// It uses no proxy, because the service answers only the instance itself. It follows no redirect. It measures how far
// the clocks of the instance and of the service are apart.
type Client struct {
	options   ClientOptions
	transport *http.Transport
	http      *http.Client
	answered  atomic.Bool
	clock     Clock
}

// NewClient returns a client.
func NewClient(o ClientOptions) *Client {
	if o.FirstTimeout == 0 {
		o.FirstTimeout = o.Timeout
	}
	own := newTransport(o.Timeout)
	var transport http.RoundTripper = own
	if o.Wrap != nil {
		transport = o.Wrap(transport)
	}
	return &Client{
		options: o, transport: own, clock: Clock{MaxAhead: maxClockAhead},
		http: &http.Client{
			Transport:     transport,
			CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		},
	}
}

// newTransport returns a transport that keeps connections open between polls. It disables compression. Responses are
// small and local, and decompression would cost memory.
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

// CloseIdleConnections closes the connections that no request uses.
func (c *Client) CloseIdleConnections() { c.transport.CloseIdleConnections() }

// ClockAhead returns how far this instance's clock is ahead of the service's clock, as [Clock.Ahead].
func (c *Client) ClockAhead() time.Duration { return c.clock.Ahead() }

// updateClockAhead compares the clocks, if a response has a Date header.
func (c *Client) updateClockAhead(sent, now time.Time, header http.Header) {
	if date, err := http.ParseTime(header.Get("Date")); err == nil {
		c.clock.Update(sent, now, date)
	}
}

// Response is a complete response of the service.
type Response struct {
	Status int
	Header http.Header
	// Body is complete for the status 200. For other statuses it is at most the first 512 bytes.
	Body []byte

	service, method, url, text string
}

// Err returns nil for the status 200, and otherwise an [*Error] of class [HTTPStatus].
func (r *Response) Err() error {
	if r.Status == http.StatusOK {
		return nil
	}
	err := fmt.Errorf("%s %s: status %s: %s", r.method, r.url, r.text, Quote(r.Body))
	if to := r.Header.Get("Location"); to != "" {
		err = fmt.Errorf("%w; its redirect to %s is not followed", err, Quote(to))
	}
	return &Error{
		Class: HTTPStatus, Service: r.service, Status: r.Status, RetryAfter: parseRetryAfter(r.Header, time.Now()), Err: err,
	}
}

// Send sends one request and returns the response with any status. Every error is an [*Error].
func (c *Client) Send(ctx context.Context, method, url string, header http.Header, body []byte) (*Response, error) {
	limit := c.options.Timeout
	if !c.answered.Load() {
		limit = c.options.FirstTimeout
	}
	attempt, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	request, err := http.NewRequestWithContext(attempt, method, url, bytes.NewReader(body))
	if err != nil {
		return nil, c.NewError(Unreachable, err)
	}
	for key, values := range header {
		request.Header[key] = values
	}
	sent := time.Now()
	response, err := c.http.Do(request)
	if err != nil {
		return nil, c.newTransportError(ctx, Unreachable, url, limit, err)
	}
	defer func() { _ = response.Body.Close() }() // the body may not have been read to its end
	c.updateClockAhead(sent, time.Now(), response.Header)
	r := &Response{
		Status: response.StatusCode, Header: response.Header,
		service: c.options.Service, method: method, url: request.URL.String(), text: response.Status,
	}
	if response.StatusCode != http.StatusOK {
		r.Body, _ = io.ReadAll(io.LimitReader(response.Body, maxExcerpt)) // a partial excerpt is good enough
		return r, nil
	}
	r.Body, err = io.ReadAll(io.LimitReader(response.Body, int64(c.options.MaxBytes)+1))
	if err != nil {
		return nil, c.newTransportError(ctx, CutShort, url, limit, fmt.Errorf("after %d bytes: %w", len(r.Body), err))
	}
	if len(r.Body) > c.options.MaxBytes {
		return nil, c.NewError(TooLarge, fmt.Errorf("%s: the response has more than %d bytes", url, c.options.MaxBytes))
	}
	c.answered.Store(true)
	return r, nil
}

// NewError returns an [*Error] of this client's service.
func (c *Client) NewError(class Class, err error) *Error {
	return &Error{Class: class, Service: c.options.Service, Err: err}
}

// newTransportError returns the [*Error] for a failed request. Its class is Canceled if ctx has ended, Timeout for a
// timeout, and otherwise the given class.
func (c *Client) newTransportError(ctx context.Context, otherwise Class, url string, limit time.Duration, err error) error {
	var timeout net.Error
	switch {
	case ctx.Err() != nil:
		return c.NewError(Canceled, context.Cause(ctx))
	case errors.Is(err, context.DeadlineExceeded), errors.As(err, &timeout) && timeout.Timeout():
		return c.NewError(Timeout, fmt.Errorf("no complete response within %s: %w", limit, err))
	default:
		return c.NewError(otherwise, fmt.Errorf("%s: %w", url, err))
	}
}

// parseRetryAfter returns the delay in the Retry-After header, which is a number of seconds or a time. It returns 0 if
// the header is missing, unreadable or in the past.
func parseRetryAfter(header http.Header, now time.Time) time.Duration {
	value := strings.TrimSpace(header.Get("Retry-After"))
	if seconds, err := strconv.Atoi(value); err == nil {
		return time.Duration(min(max(seconds, 0), 86400)) * time.Second
	}
	if at, err := http.ParseTime(value); err == nil {
		return max(at.Sub(now), 0)
	}
	return 0
}
