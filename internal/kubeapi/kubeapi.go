// Package kubeapi is a small client for the Kubernetes API server.
//
// The agent runs on every node, and may use only a few mebibytes of memory there. client-go, with its typed scheme and
// protobuf registrations, uses more memory before the first request. So this package sends the few requests of the
// agent and the drain engine with net/http and encoding/json. Its types hold only the fields that are read
// (docs/adr/0001-small-agent.md). This package makes no decisions.
package kubeapi

import (
	"bytes"
	"cmp"
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
	// DefaultTimeout limits every request that is not a watch, unless the HTTP client has a timeout. An eviction may take
	// eleven seconds. If many compete for one PodDisruptionBudget, the API server tries twenty times with half a second
	// between. An eviction that times out earlier may use up the budget without evicting the pod.
	DefaultTimeout = 20 * time.Second
	// maxResponseBytes limits one response; a page of 200 pods with 64 KiB each fits.
	maxResponseBytes = 16 << 20
	// maxEventBytes limits one event of a watch. etcd refuses objects over 1.5 MiB, and JSON may double that.
	maxEventBytes = 4 << 20
)

// The content types of patches. The API server answers 415 to any other content type.
const (
	mergePatch          = "application/merge-patch+json"
	strategicMergePatch = "application/strategic-merge-patch+json"
)

// Client sends requests to one API server. It has no rate limit, because an eviction must not wait while an instance is
// being terminated. The API server limits requests itself (API priority and fairness). Client is safe for concurrent
// use.
type Client struct {
	base      *url.URL
	http      *http.Client
	userAgent string
	timeout   time.Duration
}

// NewClient returns a client for the API server at base (scheme, host, and an optional path prefix). hc adds the
// credentials, see [Config]. If hc has a timeout, it limits every request that is not a watch. userAgent is the client's
// name in the API server's audit log.
func NewClient(base *url.URL, hc *http.Client, userAgent string) *Client {
	withoutTimeout := *hc // watches have none
	withoutTimeout.Timeout = 0
	return &Client{base: base, http: &withoutTimeout, userAgent: userAgent, timeout: cmp.Or(hc.Timeout, DefaultTimeout)}
}

// request is one request to the API server.
type request struct {
	method      string
	path        []string
	query       url.Values
	contentType string
	body        any           // nil, []byte as it is, or a value to encode as JSON
	timeout     time.Duration // 0 is the timeout of the client
}

// sendAndDecode sends r and decodes the object of a 2xx response into out, which may be nil. Any other response is a
// *StatusError. A request without a readable response is another error. For such an error IsNotFound, IsConflict and
// similar functions return false (I7: unknown is not gone).
func (c *Client) sendAndDecode(ctx context.Context, r request, out object) error {
	return c.sendAndRead(ctx, r, func(body io.Reader) error {
		if out == nil {
			return nil
		}
		return decodeObject(body, out)
	})
}

// fetchObject sends r and returns the object in the response.
func fetchObject[T any, P objectOf[T]](ctx context.Context, c *Client, r request) (*T, error) {
	var object T
	if err := c.sendAndDecode(ctx, r, P(&object)); err != nil {
		return nil, err
	}
	return &object, nil
}

// sendAndRead sends r and calls read with the body of a 2xx response.
func (c *Client) sendAndRead(ctx context.Context, r request, read func(io.Reader) error) error {
	ctx, cancel := context.WithTimeout(ctx, cmp.Or(r.timeout, c.timeout))
	defer cancel()
	resp, err := c.send(ctx, r) //nolint:bodyclose // drainBody closes it
	if err != nil {
		return err
	}
	defer drainBody(resp.Body)
	if resp.StatusCode/100 != 2 {
		return newStatusError(resp)
	}
	if err := read(&limitedReader{r: resp.Body, left: maxResponseBytes}); err != nil {
		return fmt.Errorf("%s %s: response of the API server: %w", r.method, resp.Request.URL.Path, err)
	}
	return nil
}

func (c *Client) send(ctx context.Context, r request) (*http.Response, error) {
	segments, err := escapePath(r.path)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", r.method, err)
	}
	body, err := r.encodeBody()
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

func (r *request) encodeBody() (io.Reader, error) {
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
			return nil, fmt.Errorf("%s: encode the request: %w", r.method, err)
		}
	}
	return bytes.NewReader(raw), nil
}

// escapePath escapes each element as one path segment, because names come from flags and annotations. It refuses an
// empty element, and any other that would disappear from the path. A DELETE of the pod "" would delete every pod in the
// namespace.
func escapePath(path []string) ([]string, error) {
	out := make([]string, len(path))
	for i, p := range path {
		if p == "" || p == "." || p == ".." {
			return nil, fmt.Errorf("/%s: element %d is %q: want a name", strings.Join(path, "/"), i+1, p)
		}
		out[i] = url.PathEscape(p)
	}
	return out, nil
}

// drainBody reads a small rest of a response body, so that the connection can be reused.
func drainBody(b io.ReadCloser) {
	_, _ = io.CopyN(io.Discard, b, 64<<10)
	_ = b.Close()
}

// unwrapURLError removes the method and the full URL from an error of net/http. The caller adds the method and the path
// itself, without the query.
func unwrapURLError(err error) error {
	var ue *url.Error
	if errors.As(err, &ue) {
		return ue.Err
	}
	return err
}
