// Package kubeapi speaks to the Kubernetes API server for the parts of Slipway that must stay small.
//
// The agent runs on every node, and may not cost more than a few mebibytes there. client-go with its typed
// scheme and protobuf registrations costs more than the agent's whole budget before the first request, so this
// package makes the few calls that the agent and the drain engine need over net/http and encoding/json, with types
// that hold only what is read (docs/adr/0001-small-agent.md). Nothing here decides anything.
package kubeapi

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"time"
)

const (
	// DefaultTimeout bounds every request that is not a watch. An eviction may take eleven seconds: where many compete for
	// one disruption budget, the API server tries twenty times with half a second between. One that is given up before
	// may have spent the budget without evicting the pod.
	DefaultTimeout = 20 * time.Second
	// maxAnswer bounds what is read of one answer; a page of 200 pods with 64 KiB each fits.
	maxAnswer = 16 << 20
	// maxWatchEvent bounds one event of a watch: etcd refuses objects over 1.5 MiB, JSON may double that.
	maxWatchEvent = 4 << 20
)

// The content types of the patches that are sent. The API server answers 415 to any other.
const (
	mergePatch          = "application/merge-patch+json"
	strategicMergePatch = "application/strategic-merge-patch+json"
)

// Client makes requests to one API server. It has no rate limit of its own: an eviction must not queue behind a
// client-side limiter while a machine is dying, and the server's priority and fairness protects itself. It is safe
// for concurrent use.
type Client struct {
	base      *url.URL
	http      *http.Client
	userAgent string
	timeout   time.Duration
}

// New returns a client for the API server at base (scheme, host, and a path prefix if any). The http.Client carries
// the credentials; see Config. userAgent is how the API server's audit log names us.
func New(base *url.URL, hc *http.Client, userAgent string) *Client {
	return &Client{base: base, http: hc, userAgent: userAgent, timeout: DefaultTimeout}
}

// request is one call to the API server.
type request struct {
	method      string
	path        []string
	query       url.Values
	contentType string
	body        any // nil, []byte as it is, or something to encode as JSON
}

// do sends r and decodes the object of a 2xx answer into out, which may be nil. Any other answer is a *StatusError;
// what never reached the server or came back unreadable is another error, for which IsNotFound, IsConflict and their
// like are all false: unknown is not gone (invariant I7).
func (c *Client) do(ctx context.Context, r request, out object) error {
	return c.call(ctx, r, func(body io.Reader) error {
		if out == nil {
			return nil
		}
		return decodeObject(body, out)
	})
}

// fetch sends r and returns the object of its answer.
func fetch[T any, P objectOf[T]](ctx context.Context, c *Client, r request) (*T, error) {
	var object T
	if err := c.do(ctx, r, P(&object)); err != nil {
		return nil, err
	}
	return &object, nil
}

// call sends r and lets read have the body of a 2xx answer.
func (c *Client) call(ctx context.Context, r request, read func(io.Reader) error) error {
	ctx, cancel := context.WithTimeout(ctx, c.timeout)
	defer cancel()
	resp, err := c.send(ctx, r) //nolint:bodyclose // drainBody closes it
	if err != nil {
		return err
	}
	defer drainBody(resp.Body)
	if resp.StatusCode/100 != 2 {
		return statusError(resp)
	}
	if err := read(&limited{r: resp.Body, left: maxAnswer}); err != nil {
		return fmt.Errorf("%s %s: answer of the API server: %w", r.method, resp.Request.URL.Path, err)
	}
	return nil
}

func (c *Client) send(ctx context.Context, r request) (*http.Response, error) {
	segments, err := escape(r.path)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", r.method, err)
	}
	body, err := r.encode()
	if err != nil {
		return nil, err
	}
	u := c.base.JoinPath(segments...)
	u.RawQuery = r.query.Encode()
	req, err := http.NewRequestWithContext(ctx, r.method, u.String(), body)
	if err != nil {
		return nil, fmt.Errorf("%s %s: %w", r.method, u.Path, err)
	}
	req.Header.Set("Accept", "application/json")
	req.Header.Set("User-Agent", c.userAgent)
	if body != nil {
		req.Header.Set("Content-Type", r.contentType)
	}
	resp, err := c.http.Do(req)
	if err != nil {
		return nil, fmt.Errorf("%s %s: %w", r.method, req.URL.Path, unwrapURLError(err))
	}
	return resp, nil
}

func (r *request) encode() (io.Reader, error) {
	if r.body == nil {
		return nil, nil
	}
	if r.contentType == "" {
		r.contentType = "application/json"
	}
	raw, ok := r.body.([]byte)
	if !ok {
		var err error
		if raw, err = json.Marshal(r.body); err != nil {
			return nil, fmt.Errorf("%s: encoding the request: %w", r.method, err)
		}
	}
	return bytes.NewReader(raw), nil
}

// escape makes each element safe as one path segment; names come from flags and annotations. An element that would
// vanish from the path is refused: a DELETE of the pod "" would be one of every pod in the namespace.
func escape(path []string) ([]string, error) {
	out := make([]string, len(path))
	for i, p := range path {
		if p == "" || p == "." || p == ".." {
			return nil, fmt.Errorf("/%s: element %d is %q: want a name", strings.Join(path, "/"), i+1, p)
		}
		out[i] = url.PathEscape(p)
	}
	return out, nil
}

// drainBody reads what little is left so that the connection can be used again.
func drainBody(b io.ReadCloser) {
	_, _ = io.CopyN(io.Discard, b, 64<<10)
	_ = b.Close()
}

// unwrapURLError takes the method and full URL off an error of net/http: the caller says both, without the query.
func unwrapURLError(err error) error {
	var ue *url.Error
	if errors.As(err, &ue) {
		return ue.Err
	}
	return err
}
