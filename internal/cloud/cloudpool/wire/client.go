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

// maxAnswer is the most that is read of one answer, in bytes: a pool of some thousands of machines with their clouds'
// own descriptions.
const maxAnswer = 64 << 20

// maxText bounds what is kept of the words of an answer, in bytes.
const maxText = 2000

// Doer sends a request with the credentials that the server wants. *http.Client is one.
type Doer interface {
	Do(*http.Request) (*http.Response, error)
}

// Client asks one pool. It follows no redirect, and believes no answer that is not of the API's own form. It is safe for
// concurrent use.
type Client struct {
	base *url.URL
	http Doer
	// timeout bounds each request, to the last byte of its answer.
	timeout time.Duration
}

// NewClient returns a client for the pool at base, the address to which /pool is added.
func NewClient(base *url.URL, doer Doer, timeout time.Duration) *Client {
	return &Client{base: base, http: doer, timeout: timeout}
}

// StatusError is an answer that is no success.
type StatusError struct {
	Code int
	ErrorMessage
	// Own says that the answer is of the API's form: the server's own word, and not that of something in between.
	Own bool
	// After is how long the server wants to be left alone; 0 is no wish.
	After time.Duration
}

func (e *StatusError) Error() string {
	text := fmt.Sprintf("%d %s", e.Code, http.StatusText(e.Code))
	if !e.Own {
		text += " (no answer of the cloudpool API)"
	}
	if e.Message != "" {
		text += ": " + e.Message
	}
	if detail, _, _ := strings.Cut(e.Detail, "\n"); detail != "" { // the reference server's is a stack trace
		text += ": " + detail
	}
	return text
}

// IsNotMember reports an error's text that has a server's own 404 to a termination in it: the machine is no member of its pool.
func IsNotMember(text string) bool {
	return strings.Contains(text, fmt.Sprintf("/terminate: %d %s: ", http.StatusNotFound, http.StatusText(http.StatusNotFound)))
}

// AsStatus gives the answer that an error is about; nil when there was none.
func AsStatus(err error) *StatusError {
	var e *StatusError
	if errors.As(err, &e) {
		return e
	}
	return nil
}

// multi is the path of a pool of a server of several, where what is asked of one machine has no /pool before it.
var multi = regexp.MustCompile(`/cloudpools/[^/]+/?$`)

// MachinePath is the path of what is asked of one machine, such as terminate, below the address of its pool.
func MachinePath(base *url.URL, action string) string {
	if multi.MatchString(base.Path) {
		return action
	}
	return "pool/" + action
}

// Pool reads the machines.
func (c *Client) Pool(ctx context.Context) (Pool, error) {
	var read struct {
		Timestamp *time.Time
		Machines  *[]Machine
	}
	if err := c.get(ctx, "pool", &read); err != nil {
		return Pool{}, err
	}
	if read.Timestamp == nil || read.Machines == nil {
		return Pool{}, fmt.Errorf("GET %s: the answer has no timestamp or no machines: is it a cloudpool?", c.url("pool").Redacted())
	}
	for i := range *read.Machines {
		if m := &(*read.Machines)[i]; m.ID == "" || m.State == "" {
			return Pool{}, fmt.Errorf("GET %s: machine %d has no id or no machineState", c.url("pool").Redacted(), i)
		}
	}
	return Pool{*read.Timestamp, *read.Machines}, nil
}

// Size reads how large the pool is and is meant to be.
func (c *Client) Size(ctx context.Context) (Size, error) {
	var read struct {
		Timestamp                      *time.Time
		DesiredSize, Allocated, Active *int
	}
	if err := c.get(ctx, "pool/size", &read); err != nil {
		return Size{}, err
	}
	if read.Timestamp == nil || read.DesiredSize == nil || read.Allocated == nil || read.Active == nil {
		return Size{}, fmt.Errorf("GET %s: the answer lacks timestamp, desiredSize, allocated or active: is it a cloudpool?",
			c.url("pool/size").Redacted())
	}
	return Size{*read.Timestamp, *read.DesiredSize, *read.Allocated, *read.Active}, nil
}

// Pools lists the names of the pools of a server of several.
func (c *Client) Pools(ctx context.Context) ([]string, error) {
	var urls []string
	if err := c.get(ctx, "cloudpools", &urls); err != nil {
		return nil, err
	}
	var names []string
	for _, u := range urls {
		parsed, err := url.Parse(u)
		if err != nil {
			return nil, fmt.Errorf("GET %s: %q: want the URL of a pool: %w", c.url("cloudpools").Redacted(), u, err)
		}
		names = append(names, parsed.Path[strings.LastIndex(parsed.Path, "/")+1:])
	}
	return names, nil
}

// SetDesiredSize records how large the pool is meant to be. Whatever the pool does about that, it does later.
func (c *Client) SetDesiredSize(ctx context.Context, n int) error {
	return c.post(ctx, "pool/size", SetDesiredSize{n})
}

// Terminate ends a machine.
func (c *Client) Terminate(ctx context.Context, r Removal) error {
	return c.post(ctx, MachinePath(c.base, "terminate"), r)
}

// Detach ends a machine's membership.
func (c *Client) Detach(ctx context.Context, r Removal) error {
	return c.post(ctx, MachinePath(c.base, "detach"), r)
}

// SetMembershipStatus says what the pool may do with a machine.
func (c *Client) SetMembershipStatus(ctx context.Context, s SetMembershipStatus) error {
	return c.post(ctx, MachinePath(c.base, "membershipStatus"), s)
}

func (c *Client) url(path string) *url.URL { return c.base.JoinPath(path) }

func (c *Client) get(ctx context.Context, path string, into any) error {
	return c.do(ctx, http.MethodGet, path, nil, into)
}

func (c *Client) post(ctx context.Context, path string, body any) error {
	return c.do(ctx, http.MethodPost, path, body, nil)
}

func (c *Client) do(ctx context.Context, method, path string, body, into any) error {
	ctx, cancel := context.WithTimeout(ctx, c.timeout)
	defer cancel()
	address := c.url(path)
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
		return fmt.Errorf("%s: %w", doing, withoutURL(err))
	}
	defer func() { _ = response.Body.Close() }() // after a read to the end, or in place of one
	raw, err := io.ReadAll(io.LimitReader(response.Body, maxAnswer+1))
	switch {
	case err != nil:
		return fmt.Errorf("%s: the answer broke off: %w", doing, err)
	case len(raw) > maxAnswer:
		return fmt.Errorf("%s: the answer is longer than %d bytes", doing, maxAnswer)
	case response.StatusCode < 200 || response.StatusCode > 299:
		return fmt.Errorf("%s: %w", doing, readError(response, raw))
	case into == nil:
		return notAPage(doing, response)
	}
	if err := json.Unmarshal(raw, into); err != nil {
		return fmt.Errorf("%s: the answer cannot be read: %w", doing, err)
	}
	return nil
}

// notAPage doubts a success that comes with a web page, as from a log-in in between: the server's own have no body.
func notAPage(doing string, response *http.Response) error {
	if strings.HasPrefix(strings.ToLower(response.Header.Get("Content-Type")), "text/html") {
		return fmt.Errorf("%s: %d with a web page: is it a cloudpool?", doing, response.StatusCode)
	}
	return nil
}

// withoutURL takes the address off an error, which names it again, and may have a password in it.
func withoutURL(err error) error {
	var e *url.Error
	if errors.As(err, &e) {
		return e.Err
	}
	return err
}

func readError(response *http.Response, raw []byte) error {
	e := &StatusError{Code: response.StatusCode, After: cloud.RetryAfter(response.Header, time.Now())}
	var read struct{ Message, Detail *string }
	if json.Unmarshal(raw, &read) == nil && read.Message != nil {
		e.Own, e.Message = true, printable(*read.Message)
		if read.Detail != nil {
			e.Detail = printable(*read.Detail)
		}
		return e
	}
	e.Message = printable(string(raw))
	return e
}

// printable is a text of the server's as it can be shown: cut to a length, and each of its lines without control
// characters.
func printable(text string) string {
	var lines []string
	for line := range strings.Lines(text[:min(len(text), maxText)]) {
		lines = append(lines, cloud.Printable(line, maxText))
	}
	return strings.TrimSpace(strings.Join(lines, "\n"))
}
