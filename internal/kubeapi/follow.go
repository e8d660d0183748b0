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
	// pageSize limits one page of a list. The pods of one node mostly fit into one page.
	pageSize = 200
	// minWatchSeconds is the least duration of a watch, and watchSpreadSeconds the most that is added at random. If
	// the watches of all agents were cut off together, they must not return together forever. The API server's own
	// limit, min-request-timeout, is 30 to 60 minutes by default.
	minWatchSeconds    = 40 * 60
	watchSpreadSeconds = 20 * 60
	// firstBackoff and maxBackoff limit the pause after a failed list or watch. A notice may give 30 s, so the pause
	// stays far below that, even if the API server is away for minutes.
	firstBackoff = 100 * time.Millisecond
	maxBackoff   = 2 * time.Second
)

// WatchScope selects what to list and watch.
type WatchScope struct {
	Path          []string
	FieldSelector string
	LabelSelector string
	// ResourceVersion is the resourceVersion of a known state. Follow then begins with the changes after it. It lists only if
	// the API server no longer has that version.
	ResourceVersion string
	// AllowCachedList allows the first list to be as old as the API server's cache. That saves a read of its store, and the
	// wait for the cache to catch up. The watch that follows reports what is missing. A list after an error is always
	// current, unless the error is the timeout of the first list: a current list would take even longer.
	AllowCachedList bool
	// ListTimeout is the timeout of each page of a list. 0 is the timeout of the client, which is also the maximum. A list after a
	// timeout has the timeout of the client, because a slow API server needs more time.
	ListTimeout time.Duration
}

func (s WatchScope) query() url.Values {
	q := url.Values{}
	if s.FieldSelector != "" {
		q.Set("fieldSelector", s.FieldSelector)
	}
	if s.LabelSelector != "" {
		q.Set("labelSelector", s.LabelSelector)
	}
	return q
}

// Handler receives the results of [ListAndWatch]. One goroutine calls its functions. A nil function is skipped.
type Handler[T any] struct {
	// Replaced receives the whole state after each list. Objects that are missing from it are gone.
	Replaced func([]T)
	// Changed receives an added or modified object. Deleted receives the last state of a deleted object.
	Changed func(T)
	Deleted func(T)
	// Failed receives the error of each failed list or broken watch, before the pause. The state known so far stays
	// valid (I7).
	Failed func(error)
}

// objectOf is a pointer to T, where T has metadata.
type objectOf[T any] interface {
	*T
	object
}

// ListAndWatch lists the objects of a scope and then watches them until ctx ends. It passes all results to h and
// returns the error of ctx. If a watch ends, it starts a new watch from the last resourceVersion. If the API server no
// longer has that version, it lists all objects again.
func ListAndWatch[T any, P objectOf[T]](ctx context.Context, c *Client, s WatchScope, h Handler[T]) error {
	pause := firstBackoff
	version := s.ResourceVersion
	s.ListTimeout = min(s.ListTimeout, c.timeout)
	listTimeout := s.ListTimeout
	for ctx.Err() == nil {
		began := time.Now()
		next, err := listAndWatchOnce[T, P](ctx, c, s, version, h)
		version = next
		if next == "" && errors.Is(err, context.DeadlineExceeded) {
			s.ListTimeout = c.timeout
		} else {
			s.AllowCachedList, s.ListTimeout = false, listTimeout
		}
		if time.Since(began) > maxBackoff {
			pause = firstBackoff // it worked for a while
		}
		if err != nil && ctx.Err() == nil && h.Failed != nil {
			h.Failed(err)
		}
		// The pause also follows a normal end of a watch, so that a server that closes every watch at once is not
		// called in a tight loop.
		elapsed.Sleep(ctx, pause/2+rand.N(pause/2))
		pause = min(2*pause, maxBackoff)
	}
	return ctx.Err()
}

// listAndWatchOnce lists all objects, unless version is a known resourceVersion. Then it watches until the watch ends.
// It returns the resourceVersion for the next watch. An empty result means that a new list is necessary.
func listAndWatchOnce[T any, P objectOf[T]](
	ctx context.Context, c *Client, s WatchScope, version string, h Handler[T],
) (nextVersion string, err error) {
	if version == "" {
		items, v, err := listAllPages[T](ctx, c, s)
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

// listAllPages reads all pages of a list. It returns the complete list with its resourceVersion, or an error.
func listAllPages[T any](ctx context.Context, c *Client, s WatchScope) (items []T, resourceVersion string, err error) {
	q := s.query()
	if s.AllowCachedList {
		q.Set("resourceVersion", "0")
	}
	q.Set("limit", strconv.Itoa(pageSize))
	for {
		var page listMeta
		err := c.sendAndRead(ctx, request{method: http.MethodGet, path: s.Path, query: q, timeout: s.ListTimeout}, func(body io.Reader) (err error) {
			page, err = decodeList(body, func(item T) { items = append(items, item) })
			return err
		})
		if err != nil {
			return nil, "", err
		}
		if page.Continue == "" {
			return items, page.ResourceVersion, nil
		}
		q.Del("resourceVersion") // later pages have the version of the first
		q.Set("continue", page.Continue)
	}
}

type watchEvent struct {
	Type   string          `json:"type"`
	Object json.RawMessage `json:"object"`
}

// watchFrom watches until the stream ends, and returns the resourceVersion for the next watch. If the server closes the
// stream normally, that is not an error.
func watchFrom[T any, P objectOf[T]](
	ctx context.Context, c *Client, s WatchScope, version string, h Handler[T],
) (nextVersion string, err error) {
	q := s.query()
	q.Set("watch", "true")
	q.Set("allowWatchBookmarks", "true")
	q.Set("resourceVersion", version)
	q.Set("timeoutSeconds", strconv.Itoa(minWatchSeconds+rand.IntN(watchSpreadSeconds)))
	resp, err := c.send(ctx, request{method: http.MethodGet, path: s.Path, query: q})
	if err != nil {
		return version, err
	}
	defer func() { _ = resp.Body.Close() }()
	if resp.StatusCode != http.StatusOK {
		err := newStatusError(resp)
		if requiresNewList(err) {
			version = ""
		}
		return version, err
	}
	lines := bufio.NewScanner(resp.Body)
	lines.Buffer(make([]byte, 0, 16<<10), maxEventBytes)
	lines.Split(scanWholeLines)
	for lines.Scan() {
		v, err := dispatchWatchEvent[T, P](lines.Bytes(), h)
		if err != nil {
			// It is unknown which events were missed, so list again.
			return "", err
		}
		version = v
	}
	if errors.Is(lines.Err(), bufio.ErrTooLong) {
		return "", fmt.Errorf("an event is larger than %d MiB", maxEventBytes>>20) // a retry would fail too
	}
	return version, lines.Err()
}

// requiresNewList reports whether a watch from this resourceVersion would always fail, so that a new list is necessary.
// The version is too old (410), or unknown to this API server (400, or 504 if it is in the future). A path that does
// not exist yet is a 404. Missing permissions, overload and server failures do not depend on the version.
func requiresNewList(err error) bool {
	e := ToStatusError(err)
	if e == nil {
		return false
	}
	switch e.Code {
	case http.StatusGone, http.StatusBadRequest, http.StatusNotFound, http.StatusGatewayTimeout:
		return true
	}
	return false
}

// scanWholeLines splits input into lines, as bufio.ScanLines does. It ignores a last line without a line end, because
// that line was truncated. The next watch gets its event again.
func scanWholeLines(data []byte, _ bool) (int, []byte, error) {
	if i := bytes.IndexByte(data, '\n'); i >= 0 {
		return i + 1, data[:i], nil
	}
	return 0, nil, nil
}

// dispatchWatchEvent decodes one event of a watch and calls the function of h for its type. It returns the object's
// resourceVersion.
func dispatchWatchEvent[T any, P objectOf[T]](line []byte, h Handler[T]) (resourceVersion string, err error) {
	var e watchEvent
	if err := json.Unmarshal(line, &e); err != nil {
		return "", fmt.Errorf("event: %w", err)
	}
	if e.Type == "ERROR" {
		return "", newWatchError(e.Object)
	}
	var object T
	if err := json.Unmarshal(e.Object, &object); err != nil {
		return "", fmt.Errorf("event %s: %w", e.Type, err)
	}
	version := P(&object).GetMeta().ResourceVersion
	if version == "" {
		return "", fmt.Errorf("event %s: its object has no metadata.resourceVersion", e.Type)
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

func newWatchError(status json.RawMessage) error {
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
