package top

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"sync"
	"time"

	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"

	"github.com/slipway-dev/slipway/internal/elapsed"
)

const (
	// pingInterval is the time between two requests that test the connection.
	pingInterval = 3 * time.Second
	// pingTimeout limits one such request.
	pingTimeout = 5 * time.Second
)

// serverConnection tests whether the API server answers. The watches do not report that: client-go silently retries a
// watch with a refused connection or throttling (isWatchErrorRetriable in tools/cache/reflector.go).
type serverConnection struct {
	// ping sends one request. It fails if there is no answer.
	ping func(context.Context) error
	// changed is called when the connection is lost or restored.
	changed func()

	mu         sync.Mutex
	lastAnswer time.Time // time of the last answer
	pingError  error     // first error since then, so that the text stays the same; nil while connected
}

// newServerConnection pings /version, which every authenticated user may read (system:public-info-viewer).
func newServerConnection(cfg *rest.Config, changed func()) (*serverConnection, error) {
	cfg = rest.CopyConfig(cfg)
	cfg.NegotiatedSerializer = scheme.Codecs.WithoutConversion()
	server, err := rest.UnversionedRESTClientFor(cfg)
	if err != nil {
		return nil, err
	}
	ask := func(ctx context.Context) error {
		var status int
		err := server.Get().AbsPath("/version").MaxRetries(0).Do(ctx).StatusCode(&status).Error()
		// A refusal is an answer too. The watches report missing permissions.
		if status > 0 && status < http.StatusInternalServerError && status != http.StatusTooManyRequests {
			return nil
		}
		return err
	}
	return &serverConnection{ping: ask, changed: changed}, nil
}

// pingUntilDone pings until the context ends.
func (c *serverConnection) pingUntilDone(ctx context.Context) {
	c.mu.Lock()
	c.lastAnswer = time.Now() // NewWatcher has just connected
	c.mu.Unlock()
	for {
		if !elapsed.Sleep(ctx, pingInterval) {
			return
		}
		within, stop := context.WithTimeout(ctx, pingTimeout)
		err := c.ping(within)
		stop()
		if ctx.Err() == nil {
			c.recordPing(err)
		}
	}
}

func (c *serverConnection) recordPing(err error) {
	c.mu.Lock()
	before := c.pingError != nil
	switch {
	case err == nil:
		c.lastAnswer, c.pingError = time.Now(), nil
	case c.pingError == nil:
		c.pingError = err
	}
	c.mu.Unlock()
	if before != (err != nil) {
		c.changed()
	}
}

// findKindProblem returns the problem to show, or an empty string while connected.
func (c *serverConnection) findProblem() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.pingError == nil {
		return ""
	}
	return fmt.Sprintf("no connection to the API server since %s, the view is from then: %s",
		c.lastAnswer.UTC().Format("15:04:05Z"), formatPingError(c.pingError))
}

// formatPingError returns the error without the address, which is in the title.
func formatPingError(err error) string {
	if errors.Is(err, context.DeadlineExceeded) {
		return fmt.Sprintf("no answer within %v", pingTimeout)
	}
	if asked := (*url.Error)(nil); errors.As(err, &asked) {
		err = asked.Err
	}
	return err.Error()
}
