package kubeapi

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/slipway-dev/slipway/internal/elapsed"
)

const (
	// pageSize bounds one answer of the API server; what is bound to one node mostly fits into one page.
	pageSize = 200
	// watchFor is how long a watch is asked to last at least, in seconds, and watchSpread what is added at random: the
	// agents of all nodes, once cut off together, must not come back together for ever. The API server's own bound,
	// min-request-timeout, is 30 to 60 minutes by default.
	watchFor    = 40 * 60
	watchSpread = 20 * 60
	// firstBackoff and maxBackoff bound the pause after a failed list or watch. A notice may leave 30 s, so that the
	// pause stays far below that even when the API server is away for minutes.
	firstBackoff = 100 * time.Millisecond
	maxBackoff   = 2 * time.Second
)

// Scope is what to list and watch.
type Scope struct {
	Path          []string
	FieldSelector string
	LabelSelector string
	// Since is the version of a state that is known already: Follow then begins with what came after it, and lists only
	// when the API server does not remember it.
	Since string
	// Cached lets the first list be as old as the API server's cache, which saves a read of its store and the wait for the
	// cache to catch up with it. The watch that follows tells what is missing. A list that is made because something
	// went wrong is always a current one.
	Cached bool
}

func (s Scope) query() url.Values {
	q := url.Values{}
	if s.FieldSelector != "" {
		q.Set("fieldSelector", s.FieldSelector)
	}
	if s.LabelSelector != "" {
		q.Set("labelSelector", s.LabelSelector)
	}
	return q
}

// Handler receives what Follow learns, from one goroutine. A nil field is skipped.
type Handler[T any] struct {
	// Replaced is called with the whole state after each list. What is missing from it is gone.
	Replaced func([]T)
	// Changed is called when an object was added or modified, Deleted with its last state when it went.
	Changed func(T)
	Deleted func(T)
	// Failed is called for each failed list or broken watch, before the pause. The state known so far stands (I7).
	Failed func(error)
}

// objectOf is a pointer to T that has metadata.
type objectOf[T any] interface {
	*T
	object
}

// Follow lists what is in scope, then watches it, and keeps on until ctx ends, whose error it returns. A watch that
// ends is taken up where it stopped; only when the API server says that this is too long ago is everything listed
// again. No object is ever read one by one.
func Follow[T any, P objectOf[T]](ctx context.Context, c *Client, s Scope, h Handler[T]) error {
	pause := firstBackoff
	version := s.Since
	for ctx.Err() == nil {
		began := time.Now()
		next, err := followOnce[T, P](ctx, c, s, version, h)
		version = next
		s.Cached = false
		if time.Since(began) > maxBackoff {
			pause = firstBackoff // it worked for a while
		}
		if err != nil && ctx.Err() == nil && h.Failed != nil {
			h.Failed(err)
		}
		// Also after an orderly end: a server that closes every watch at once must not be asked in a tight loop.
		elapsed.Sleep(ctx, pause/2+rand.N(pause/2))
		pause = min(2*pause, maxBackoff)
	}
	return ctx.Err()
}

// followOnce lists unless a version to watch from is known, then watches until the watch ends. It returns the version
// to go on from; empty asks for a new list.
func followOnce[T any, P objectOf[T]](
	ctx context.Context, c *Client, s Scope, version string, h Handler[T],
) (string, error) {
	if version == "" {
		items, v, err := listAll[T](ctx, c, s)
		if err != nil {
			return "", err
		}
		if h.Replaced != nil {
			h.Replaced(items)
		}
		version = v
	}
	next, err := watchFrom[T, P](ctx, c, s, version, h)
	if err != nil && ctx.Err() == nil {
		err = fmt.Errorf("watch /%s: %w", strings.Join(s.Path, "/"), err)
	}
	return next, err
}

// listAll reads all pages. A list is either whole or an error.
func listAll[T any](ctx context.Context, c *Client, s Scope) ([]T, string, error) {
	var items []T
	q := s.query()
	if s.Cached {
		q.Set("resourceVersion", "0")
	}
	q.Set("limit", strconv.Itoa(pageSize))
	for {
		var page listMeta
		err := c.call(ctx, request{method: http.MethodGet, path: s.Path, query: q}, func(body io.Reader) (err error) {
			page, err = decodeList(body, func(item T) { items = append(items, item) })
			return err
		})
		if err != nil {
			return nil, "", err
		}
		if page.Continue == "" {
			return items, page.ResourceVersion, nil
		}
		q.Del("resourceVersion") // a later page is of the first one's version
		q.Set("continue", page.Continue)
	}
}

type watchEvent struct {
	Type   string          `json:"type"`
	Object json.RawMessage `json:"object"`
}

// watchFrom watches until the stream ends, and returns the version to go on from. A stream that the server closes in
// the ordinary way is no error.
func watchFrom[T any, P objectOf[T]](
	ctx context.Context, c *Client, s Scope, version string, h Handler[T],
) (string, error) {
	q := s.query()
	q.Set("watch", "true")
	q.Set("allowWatchBookmarks", "true")
	q.Set("resourceVersion", version)
	q.Set("timeoutSeconds", strconv.Itoa(watchFor+rand.IntN(watchSpread)))
	resp, err := c.send(ctx, request{method: http.MethodGet, path: s.Path, query: q})
	if err != nil {
		return version, err
	}
	defer func() { _ = resp.Body.Close() }()
	if resp.StatusCode != http.StatusOK {
		err := statusError(resp)
		if mustList(err) {
			version = ""
		}
		return version, err
	}
	lines := bufio.NewScanner(resp.Body)
	lines.Buffer(make([]byte, 0, 16<<10), maxWatchEvent)
	lines.Split(wholeLines)
	for lines.Scan() {
		v, err := deliver[T, P](lines.Bytes(), h)
		if err != nil {
			// What was missed cannot be told from what did not happen: list again.
			return "", err
		}
		version = v
	}
	if errors.Is(lines.Err(), bufio.ErrTooLong) {
		return "", fmt.Errorf("an event is larger than %d MiB", maxWatchEvent>>20) // and would be again
	}
	return version, lines.Err()
}

// mustList reports an answer to a watch that the same request would get again for ever: the version is too old (410),
// not of this API server's history (400, and 504 when it is ahead of it), or the path is not there yet (404). Missing
// rights, overload and failures of the server say nothing about the version.
func mustList(err error) bool {
	e := AsStatus(err)
	if e == nil {
		return false
	}
	switch e.Code {
	case http.StatusGone, http.StatusBadRequest, http.StatusNotFound, http.StatusGatewayTimeout:
		return true
	}
	return false
}

// wholeLines is bufio.ScanLines without a last line that has no end: it was cut off, and will be sent again to a watch
// that starts at the version before it.
func wholeLines(data []byte, _ bool) (int, []byte, error) {
	if i := bytes.IndexByte(data, '\n'); i >= 0 {
		return i + 1, data[:i], nil
	}
	return 0, nil, nil
}

// deliver hands one event of a watch to h and returns the object's version.
func deliver[T any, P objectOf[T]](line []byte, h Handler[T]) (string, error) {
	var e watchEvent
	if err := json.Unmarshal(line, &e); err != nil {
		return "", fmt.Errorf("event: %w", err)
	}
	if e.Type == "ERROR" {
		return "", watchError(e.Object)
	}
	var object T
	if err := json.Unmarshal(e.Object, &object); err != nil {
		return "", fmt.Errorf("event %s: %w", e.Type, err)
	}
	version := P(&object).GetMeta().ResourceVersion
	if version == "" {
		return "", fmt.Errorf("event %s: its object holds no metadata.resourceVersion", e.Type)
	}
	switch e.Type {
	case "ADDED", "MODIFIED":
		if h.Changed != nil {
			h.Changed(object)
		}
	case "DELETED":
		if h.Deleted != nil {
			h.Deleted(object)
		}
	case "BOOKMARK":
	default:
		return "", fmt.Errorf("event: type %q: want ADDED, MODIFIED, DELETED, BOOKMARK or ERROR", e.Type)
	}
	return version, nil
}

func watchError(status json.RawMessage) error {
	var s struct {
		Code    int    `json:"code"`
		Reason  string `json:"reason"`
		Message string `json:"message"`
	}
	if err := json.Unmarshal(status, &s); err != nil {
		return fmt.Errorf("event ERROR: %w", err)
	}
	return &StatusError{Code: s.Code, Reason: s.Reason, Message: s.Message}
}
