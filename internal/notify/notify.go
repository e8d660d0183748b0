// Package notify sends messages about a node to people and other programs. It sends HTTP requests, which suit Slack,
// Microsoft Teams, PagerDuty, Alertmanager, a Prometheus Pushgateway and others. It also sends Telegram messages.
//
// Notifications never delay a drain. [Notifier.Enqueue] only adds a message to a queue. One goroutine for each receiver
// renders the message, sends it, and retries as long as the process lives. If the queue is full, the oldest message is
// dropped, counted and logged.
//
// The package uses only net/http. Existing HTTP clients with retries limit neither a whole request nor the pause that a
// receiver can demand. They also include the address in their errors, and the address may be a secret.
//
// Secrets (tokens, passwords, the path and query of every address) appear in no log, error or metric.
package notify

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/slipway-dev/slipway/internal/elapsed"
	"github.com/slipway-dev/slipway/internal/observe"
)

// DefaultLinger is how long Run continues after its context has ended. During this time it sends messages that were not
// tried yet.
const DefaultLinger = 5 * time.Second

// Options configures a Notifier. The zero value is valid.
type Options struct {
	Log *slog.Logger
	// Metrics is the registry for the metrics; nil registers none.
	Metrics *observe.Registry
	// UserAgent identifies the program to the receivers.
	UserAgent string
	// QueueSize is how many messages may wait for one receiver; 0 is 64.
	QueueSize int
	// Linger is how long Run continues after its context has ended; 0 is DefaultLinger.
	Linger time.Duration
	// WarnOnInvalidTemplates logs a warning for an invalid template instead of an error. Messages that the template cannot
	// render are lost.
	WarnOnInvalidTemplates bool
	// TemplateData returns the data for the templates of message bodies; nil uses the Message itself.
	TemplateData func(Message) any
	// Wrap, if set, wraps each receiver's transport to measure requests.
	Wrap func(http.RoundTripper) http.RoundTripper
}

// Notifier sends messages to receivers. Its methods are safe for concurrent use, with one exception: SendToAllNow must
// not be called during Run.
type Notifier struct {
	workers []*worker
	linger  time.Duration
}

// NewNotifier validates the receivers and returns a notifier. It checks the fields and files of each receiver, and its
// templates with a sample of each moment. An error names the receiver, field, value and what is allowed. A file that cannot
// be read causes only a warning, because it is read again for each message.
func NewNotifier(receivers []Receiver, o Options) (*Notifier, error) {
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.Metrics == nil {
		o.Metrics = observe.NewRegistry()
	}
	if o.QueueSize <= 0 {
		o.QueueSize = defaultQueue
	}
	if o.Linger <= 0 {
		o.Linger = DefaultLinger
	}
	n := &Notifier{linger: o.Linger}
	if err := ValidateReceivers(receivers); err != nil {
		return nil, err
	}
	all := newFamilies(o.Metrics)
	var errs []error
	for i := range receivers {
		w, err := newWorker(receivers[i], o, all)
		if err != nil {
			errs = append(errs, prefixErrorsWithReceiver(i, &receivers[i], err))
			continue
		}
		n.workers = append(n.workers, w)
	}
	return n, errors.Join(errs...)
}

// ValidateReceivers validates receivers without reading files, see [Receiver.Validate].
func ValidateReceivers(receivers []Receiver) error {
	var errs []error
	for i := range receivers {
		r := &receivers[i]
		if err := r.Validate(); err != nil {
			errs = append(errs, prefixErrorsWithReceiver(i, r, err))
		}
		same := func(other Receiver) bool { return other.Name == r.Name && r.Name != "" }
		if first := slices.IndexFunc(receivers, same); first >= 0 && first < i {
			errs = append(errs, fmt.Errorf("notifications[%d].name: %q: want another: notifications[%d] has this name", i, r.Name, first))
		}
	}
	return errors.Join(errs...)
}

// prefixErrorsWithReceiver adds the receiver before the text of each joined error.
func prefixErrorsWithReceiver(i int, r *Receiver, err error) error {
	if all, ok := err.(interface{ Unwrap() []error }); ok {
		var errs []error
		for _, e := range all.Unwrap() {
			errs = append(errs, prefixErrorsWithReceiver(i, r, e))
		}
		return errors.Join(errs...)
	}
	return fmt.Errorf("notifications[%d] (%s): %w", i, r.Name, err)
}

func newWorker(r Receiver, o Options, all families) (*worker, error) {
	log := o.Log.With("receiver", r.Name)
	w := &worker{receiver: &r, log: log, queue: newQueue(o.QueueSize), linger: o.Linger}
	var err error
	w.writer, err = newRequestWriter(&r, log.Warn, o.WarnOnInvalidTemplates, o.TemplateData)
	if err = w.warnIfUnreadable(err); err != nil {
		return nil, err
	}
	w.client = &client{connection: r.connection(), field: w.writer.fieldName, agent: o.UserAgent, wrap: o.Wrap}
	if w.client.agent == "" {
		w.client.agent = "slipway"
	}
	if err = w.warnIfUnreadable(w.client.renewTransportIfChanged()); err != nil {
		return nil, err
	}
	_, err = w.client.proxyPassword()
	if err = w.warnIfUnreadable(err); err != nil {
		return nil, err
	}
	if w.client.connection.InsecureSkipVerify {
		log.Warn("the receiver's certificate is not verified: others on the network can read and change the messages")
	}
	w.metrics = all.forReceiver(r.Name)
	return w, nil
}

// warnIfUnreadable returns err, unless err means that a file cannot be read. Then it logs a warning and returns nil: without
// its receiver, an agent still has to drain its node.
func (w *worker) warnIfUnreadable(err error) error {
	if !isUnreadable(err) {
		return err
	}
	w.log.Warn("a file of the receiver cannot be read: its notifications wait until the file can be read", "err", err)
	return nil
}

// Enqueue adds a message to the queue of every receiver that wants the message's moment. It never blocks.
func (n *Notifier) Enqueue(m Message) {
	for _, w := range n.workers {
		if !w.receiver.wantsMoment(m.Moment) {
			continue
		}
		if d := w.queue.addDroppingOldest(m); d != nil {
			w.metrics.dropped.Inc()
			w.log.Warn("notification dropped: the queue of this receiver is full", "moment", d.message.Moment,
				"notice", d.message.Event.EventId)
		}
		w.metrics.waiting.Set(float64(w.queue.len()))
	}
}

// IsIdle reports whether every queued message has been tried at least once.
func (n *Notifier) IsIdle() bool {
	return !slices.ContainsFunc(n.workers, func(w *worker) bool { return !w.queue.areAllTried() })
}

// Run sends queued messages until ctx ends. Then it continues for the linger time, and sends messages that were not
// tried yet. It returns the error of ctx.
func (n *Notifier) Run(ctx context.Context) error {
	hard, end := context.WithCancel(context.WithoutCancel(ctx))
	defer end()
	stop := context.AfterFunc(ctx, func() {
		elapsed.Sleep(hard, n.linger)
		end()
	})
	defer stop()
	var group sync.WaitGroup
	for _, w := range n.workers {
		group.Go(func() { w.run(ctx, hard) })
	}
	group.Wait()
	<-ctx.Done()
	return ctx.Err()
}

// SendToAllNow sends a message to every receiver without the queue, even if the receiver does not want its moment. It
// uses the configured retries. It returns one error per receiver that failed.
func (n *Notifier) SendToAllNow(ctx context.Context, m Message) error {
	errs := make([]error, len(n.workers))
	var group sync.WaitGroup
	for i, w := range n.workers {
		group.Go(func() {
			if err := w.sendWithRetries(ctx, m); err != nil {
				errs[i] = fmt.Errorf("receiver %s: %w", w.receiver.Name, err)
			}
		})
	}
	group.Wait()
	return errors.Join(errs...)
}
