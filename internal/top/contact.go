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
	// askEvery is the time between two questions to the API server whether it is there.
	askEvery = 3 * time.Second
	// askFor is for how long an answer is waited for.
	askFor = 5 * time.Second
)

// contact knows whether the API server answers. The watches do not tell: client-go tries one whose connection is refused,
// or that is throttled, again and again and says nothing (isWatchErrorRetriable in tools/cache/reflector.go).
type contact struct {
	// ask is one question, which fails where there was no answer.
	ask func(context.Context) error
	// changed is called when the answers end, and when they begin again.
	changed func()

	mu       sync.Mutex
	answered time.Time // when it last did
	lost     error     // why it has not since then; the first reason, as it has to be the same text for as long; nil while it answers
}

// newContact asks for /version, which every user that the API server knows may read (system:public-info-viewer).
func newContact(cfg *rest.Config, changed func()) (*contact, error) {
	cfg = rest.CopyConfig(cfg)
	cfg.NegotiatedSerializer = scheme.Codecs.WithoutConversion()
	server, err := rest.UnversionedRESTClientFor(cfg)
	if err != nil {
		return nil, err
	}
	ask := func(ctx context.Context) error {
		var status int
		err := server.Get().AbsPath("/version").MaxRetries(0).Do(ctx).StatusCode(&status).Error()
		// A refusal is an answer too. What a right is missing for, the watches say.
		if status > 0 && status < http.StatusInternalServerError && status != http.StatusTooManyRequests {
			return nil
		}
		return err
	}
	return &contact{ask: ask, changed: changed}, nil
}

// keep asks until the context ends.
func (c *contact) keep(ctx context.Context) {
	c.mu.Lock()
	c.answered = time.Now() // NewWatch has just read what the server knows
	c.mu.Unlock()
	for {
		if !elapsed.Sleep(ctx, askEvery) {
			return
		}
		within, stop := context.WithTimeout(ctx, askFor)
		err := c.ask(within)
		stop()
		if ctx.Err() == nil {
			c.heard(err)
		}
	}
}

func (c *contact) heard(err error) {
	c.mu.Lock()
	before := c.lost != nil
	switch {
	case err == nil:
		c.answered, c.lost = time.Now(), nil
	case c.lost == nil:
		c.lost = err
	}
	c.mu.Unlock()
	if before != (err != nil) {
		c.changed()
	}
}

// problem is what is to be said of it; empty while the API server answers.
func (c *contact) problem() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.lost == nil {
		return ""
	}
	return fmt.Sprintf("the API server is not reached since %s, and what is shown is from then: %s",
		c.answered.UTC().Format("15:04:05Z"), reason(c.lost))
}

// reason is why there was no answer, without the address, which a view has in its title.
func reason(err error) string {
	if errors.Is(err, context.DeadlineExceeded) {
		return fmt.Sprintf("no answer within %v", askFor)
	}
	if asked := (*url.Error)(nil); errors.As(err, &asked) {
		err = asked.Err
	}
	return err.Error()
}
