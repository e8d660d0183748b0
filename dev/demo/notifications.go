package demo

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/slipway-dev/slipway/dev/azure"
	"github.com/slipway-dev/slipway/dev/testbed"
	"github.com/slipway-dev/slipway/internal/notify"
)

// notification is a message that the webhook received, with the time.
type notification struct {
	at      time.Time
	message notify.Message
}

// webhook is an HTTP server that records the notifications of an agent.
type webhook struct {
	server *http.Server
	config string // path of the agent's configuration file

	mu            sync.Mutex
	notifications map[notify.Moment]notification
}

// startWebhook starts a webhook. It writes an agent configuration file that sends notifications to this webhook.
func startWebhook(ctx context.Context, dir string) (*webhook, error) {
	l, err := new(net.ListenConfig).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return nil, fmt.Errorf("webhook: %w", err)
	}
	h := &webhook{notifications: map[notify.Moment]notification{}, config: filepath.Join(dir, "notifications.yaml")}
	h.server = &http.Server{Handler: h, ReadHeaderTimeout: 10 * time.Second}
	go func() { _ = h.server.Serve(l) }()
	config := fmt.Sprintf("notifications:\n- name: demo\n  moments: [detected, drained]\n  webhook: {url: \"http://%s\"}\n", l.Addr())
	if err := os.WriteFile(h.config, []byte(config), 0o600); err != nil {
		return nil, errors.Join(fmt.Errorf("webhook: %w", err), h.server.Close())
	}
	return h, nil
}

func (h *webhook) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	var m notify.Message
	if err := json.NewDecoder(r.Body).Decode(&m); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.notifications[m.Moment] = notification{time.Now(), m}
}

func (h *webhook) received(m notify.Moment) (received notification, found bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	t, ok := h.notifications[m]
	return t, ok
}

// reportNotifications prints the notifications that the agent has sent about an event.
func (s *stage) reportNotifications(ctx context.Context, a *stepOutput, r azure.EventRecord, pods []azure.Pod) error {
	var detected, drained notification
	err := testbed.PollUntil(ctx, "the webhook is notified of both moments", func() (ok bool) {
		detected, _ = s.hook.received(notify.Detected)
		drained, ok = s.hook.received(notify.Drained)
		return ok && !detected.at.IsZero()
	})
	if err != nil {
		return err
	}
	owner := s.cloud.claimOwner(r)
	ownerOf := func(n notification) string { return n.message.Source + "-" + n.message.Event.EventId }
	stopped := 0
	for _, p := range drained.message.Pods {
		if p.State == "gone" && p.Namespace == shop {
			stopped++
		}
	}
	// The agent lists the pods for the message while it evicts the first ones, and some stop at once.
	running := countPods(s.currentPods(pods), func(p azure.Pod) bool { return p.FinishedAt.After(detected.at) })
	a.print(drained.at, "a webhook was notified twice: %.1f s after the notice, that %d pods have %d s left, and now that "+
		"%d have stopped", detected.at.Sub(r.VisibleAt).Seconds(), len(detected.message.Pods), detected.message.SecondsLeft, stopped)
	return firstError(
		checkExpectation(strings.HasPrefix(ownerOf(detected), owner) && ownerOf(detected) == ownerOf(drained), "both about the notice "+owner,
			"%s and %s", ownerOf(detected), ownerOf(drained)),
		checkExpectation(len(detected.message.Pods) >= running, fmt.Sprintf("the %d pods that ran then in the first", running), "%d", len(detected.message.Pods)),
		checkExpectation(stopped == spotPods, "40 stopped pods in the second", "%d", stopped),
		checkExpectation(drained.at.Before(r.NotBefore), "both before NotBefore", "the second at %s", formatTime(drained.at)),
	)
}
