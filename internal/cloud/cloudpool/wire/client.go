package wire

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"regexp"
	"strings"
	"time"

	"github.com/slipway-dev/slipway/internal/cloud"
)

// maxResponseSize limits the size of a response in bytes. It is enough for a pool of some thousand machines with
// metadata.
const maxResponseSize = 64 << 20

// maxTextLength limits the text of an error response in bytes.
const maxTextLength = 2000

// Doer sends a request with the credentials of the server. *http.Client is a Doer without credentials.
type Doer interface {
	Do(*http.Request) (*http.Response, error)
}

// Client is a client of one pool. It rejects a response that does not have the format of the API. It is safe for
// concurrent use.
type Client struct {
	base *url.URL
	http Doer
	// timeout limits each request, including its body.
	timeout time.Duration
}

// NewClient returns a client for a pool. base is the URL before /pool.
func NewClient(base *url.URL, doer Doer, timeout time.Duration) *Client {
	return &Client{base: base, http: doer, timeout: timeout}
}

// StatusError is the error for a response with an error status.
type StatusError struct {
	Code int
	ErrorMessage
	// FromServer means that the response has the format of the API, so that it is from the server and not from a proxy.
	FromServer bool
	// RetryAfter is the retry delay that the server asks for; 0 if it does not.
	RetryAfter time.Duration
}

func (e *StatusError) Error() string {
	text := fmt.Sprintf("%d %s", e.Code, http.StatusText(e.Code))
	if !e.FromServer {
		text += " (not a response of the cloudpool API)"
	}
	if e.Message != "" {
		text += ": " + e.Message
	}
	if detail, _, _ := strings.Cut(e.Detail, "\n"); detail != "" { // the reference server returns a stack trace
		text += ": " + detail
	}
	return text
}

// ContainsNotMember reports whether an error text contains the server's own 404 for a termination. This 404 means that
// the machine is not in the pool.
func ContainsNotMember(text string) bool {
	return strings.Contains(text, fmt.Sprintf("/terminate: %d %s: ", http.StatusNotFound, http.StatusText(http.StatusNotFound)))
}

// AsStatusError returns the [StatusError] in err, or nil if err contains none.
func AsStatusError(err error) *StatusError {
	var e *StatusError
	if errors.As(err, &e) {
		return e
	}
	return nil
}

// multiPoolPath matches the path of a pool on a server with several pools. On such a server, requests for a machine
// have no /pool prefix.
var multiPoolPath = regexp.MustCompile(`/cloudpools/[^/]+/?$`)

// MachineActionPath returns the path of a request for one machine, relative to the pool's URL. action is for example
// terminate.
func MachineActionPath(base *url.URL, action string) string {
	if multiPoolPath.MatchString(base.Path) {
		return action
	}
	return "pool/" + action
}

// Pool reads the machines of the pool.
func (c *Client) Pool(ctx context.Context) (Pool, error) {
	var read struct {
		Timestamp *time.Time
		Machines  *[]Machine
	}
	if err := c.get(ctx, "pool", &read); err != nil {
		return Pool{}, err
	}
	if read.Timestamp == nil || read.Machines == nil {
		return Pool{}, fmt.Errorf("GET %s: the response has no timestamp or no machines: is it a cloudpool?", c.resolveURL("pool").Redacted())
	}
	for i := range *read.Machines {
		if m := &(*read.Machines)[i]; m.ID == "" || m.State == "" {
			return Pool{}, fmt.Errorf("GET %s: machine %d has no id or no machineState", c.resolveURL("pool").Redacted(), i)
		}
	}
	return Pool{*read.Timestamp, *read.Machines}, nil
}

// Size reads the current and the desired size of the pool.
func (c *Client) Size(ctx context.Context) (Size, error) {
	var read struct {
		Timestamp                      *time.Time
		DesiredSize, Allocated, Active *int
	}
	if err := c.get(ctx, "pool/size", &read); err != nil {
		return Size{}, err
	}
	if read.Timestamp == nil || read.DesiredSize == nil || read.Allocated == nil || read.Active == nil {
		return Size{}, fmt.Errorf("GET %s: the response lacks timestamp, desiredSize, allocated or active: is it a cloudpool?",
			c.resolveURL("pool/size").Redacted())
	}
	return Size{*read.Timestamp, *read.DesiredSize, *read.Allocated, *read.Active}, nil
}

// Pools returns the names of all pools on a server with several pools.
func (c *Client) Pools(ctx context.Context) ([]string, error) {
	var urls *[]string
	if err := c.get(ctx, "cloudpools", &urls); err != nil {
		return nil, err
	}
	if urls == nil {
		return nil, fmt.Errorf("GET %s: the response is null: want a list of pools", c.resolveURL("cloudpools").Redacted())
	}
	var names []string
	for _, u := range *urls {
		parsed, err := url.Parse(u)
		if err != nil {
			return nil, fmt.Errorf("GET %s: %q: want the URL of a pool: %w", c.resolveURL("cloudpools").Redacted(), u, err)
		}
		pool := strings.TrimRight(parsed.Path, "/")
		names = append(names, pool[strings.LastIndex(pool, "/")+1:])
	}
	return names, nil
}

// SetDesiredSize sets the desired size of the pool. The server launches or terminates machines later.
func (c *Client) SetDesiredSize(ctx context.Context, n int) error {
	return c.post(ctx, "pool/size", SetDesiredSize{n})
}

// Terminate terminates a machine.
func (c *Client) Terminate(ctx context.Context, r Removal) error {
	return c.post(ctx, MachineActionPath(c.base, "terminate"), r)
}

// Detach removes a machine from the pool without terminating it.
func (c *Client) Detach(ctx context.Context, r Removal) error {
	return c.post(ctx, MachineActionPath(c.base, "detach"), r)
}

// SetMembershipStatus sets whether a machine is active and whether the pool may terminate it.
func (c *Client) SetMembershipStatus(ctx context.Context, s SetMembershipStatus) error {
	return c.post(ctx, MachineActionPath(c.base, "membershipStatus"), s)
}

func (c *Client) resolveURL(path string) *url.URL { return c.base.JoinPath(path) }

func (c *Client) get(ctx context.Context, path string, into any) error {
	return c.sendJSON(ctx, http.MethodGet, path, nil, into)
}

func (c *Client) post(ctx context.Context, path string, body any) error {
	return c.sendJSON(ctx, http.MethodPost, path, body, nil)
}

func (c *Client) sendJSON(ctx context.Context, method, path string, body, into any) error {
	ctx, cancel := context.WithTimeout(ctx, c.timeout)
	defer cancel()
	address := c.resolveURL(path)
	doing := method + " " + address.Redacted()
	var payload io.Reader
	if body != nil {
		raw, err := json.Marshal(body)
		if err != nil {
			return fmt.Errorf("%s: %w", doing, err)
		}
		payload = bytes.NewReader(raw)
	}
	request, err := http.NewRequestWithContext(ctx, method, address.String(), payload)
	if err != nil {
		return fmt.Errorf("%s: %w", doing, err)
	}
	request.Header.Set("Accept", "application/json")
	if body != nil {
		request.Header.Set("Content-Type", "application/json")
	}
	response, err := c.http.Do(request)
	if err != nil {
		return fmt.Errorf("%s: %w", doing, removeURLFromError(err))
	}
	defer func() { _ = response.Body.Close() }() // the body was read or is not needed
	raw, err := io.ReadAll(io.LimitReader(response.Body, maxResponseSize+1))
	switch {
	case err != nil:
		return fmt.Errorf("%s: the response was truncated: %w", doing, err)
	case len(raw) > maxResponseSize:
		return fmt.Errorf("%s: the response is longer than %d bytes", doing, maxResponseSize)
	case response.StatusCode < 200 || response.StatusCode > 299:
		return fmt.Errorf("%s: %w", doing, parseErrorResponse(response, raw))
	case into == nil:
		return rejectWebPage(doing, response)
	}
	if err := json.Unmarshal(raw, into); err != nil {
		return fmt.Errorf("%s: the response cannot be parsed: %w", doing, err)
	}
	return nil
}

// rejectWebPage returns an error for a successful response with a web page, for example from a login proxy. A
// successful response of the server has no body.
func rejectWebPage(doing string, response *http.Response) error {
	if strings.HasPrefix(strings.ToLower(response.Header.Get("Content-Type")), "text/html") {
		return fmt.Errorf("%s: %d with a web page: is it a cloudpool?", doing, response.StatusCode)
	}
	return nil
}

// removeURLFromError returns the error without its URL, because the URL may contain a password.
func removeURLFromError(err error) error {
	var e *url.Error
	if errors.As(err, &e) {
		return e.Err
	}
	return err
}

func parseErrorResponse(response *http.Response, raw []byte) error {
	e := &StatusError{Code: response.StatusCode, RetryAfter: cloud.ParseRetryAfter(response.Header, time.Now())}
	var read struct{ Message, Detail *string }
	if json.Unmarshal(raw, &read) == nil && read.Message != nil {
		e.FromServer, e.Message = true, sanitizeLines(*read.Message)
		if read.Detail != nil {
			e.Detail = sanitizeLines(*read.Detail)
		}
		return e
	}
	e.Message = sanitizeLines(string(raw))
	return e
}

// sanitizeLines limits the length of a text from the server, and removes control characters from each line.
func sanitizeLines(text string) string {
	var lines []string
	for line := range strings.Lines(text[:min(len(text), maxTextLength)]) {
		lines = append(lines, cloud.SanitizeText(line, maxTextLength))
	}
	return strings.TrimSpace(strings.Join(lines, "\n"))
}
