// Package notify tells people and other programs what becomes of a node: by a request over HTTP, which serves Slack,
// Microsoft Teams, PagerDuty, Alertmanager, a Prometheus Pushgateway or anything else, and by Telegram.
//
// Nothing here may hold up a drain. Notify only puts a message into a queue; one goroutine for each receiver renders it,
// sends it, and tries again while the receiver is away, for as long as the process lives. The queue is bounded: when it
// is full the oldest message is dropped, counted and logged.
//
// The requests are made with net/http alone. The retrying clients that there are bound neither one request as a whole
// nor the pause that a receiver can ask for, and write the address, which may be a secret, into their errors.
//
// What is secret (tokens, passwords, the path and query of every address) is in no log, error or metric.
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

// DefaultLinger is how long Run goes on after its context has ended, to send what has not been tried yet.
const DefaultLinger = 5 * time.Second

// Options are a Notifier's parts. The zero value is usable.
type Options struct {
	Log *slog.Logger
	// Metrics is where the metrics are defined; nil is nowhere.
	Metrics *observe.Registry
	// UserAgent names the program to the receivers.
	UserAgent string
	// Queue is how many messages may wait for one receiver; 0 is 64.
	Queue int
	// Linger is how long Run goes on after its context has ended; 0 is DefaultLinger.
	Linger time.Duration
	// WarnOfTemplates has a template that cannot be read, or filled in for the samples, be warned of rather than refused: the
	// messages that it cannot be filled in for are lost.
	WarnOfTemplates bool
	// Wrap, if set, wraps each receiver's transport, so that its requests can be measured.
	Wrap func(http.RoundTripper) http.RoundTripper
}

// Notifier tells receivers. Its methods are safe for concurrent use, but Send must not be called while Run runs.
type Notifier struct {
	workers []*worker
	linger  time.Duration
}

// New checks the receivers as a whole: their fields, that their files can be read, and their templates, against a sample
// of each moment. Its error names each receiver, field, value and what is allowed.
func New(receivers []Receiver, o Options) (*Notifier, error) {
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.Metrics == nil {
		o.Metrics = observe.NewRegistry()
	}
	if o.Queue <= 0 {
		o.Queue = defaultQueue
	}
	if o.Linger <= 0 {
		o.Linger = DefaultLinger
	}
	n := &Notifier{linger: o.Linger}
	if err := Validate(receivers); err != nil {
		return nil, err
	}
	all := newFamilies(o.Metrics)
	var errs []error
	for i := range receivers {
		w, err := newWorker(receivers[i], o, all)
		if err != nil {
			errs = append(errs, named(i, &receivers[i], err))
			continue
		}
		n.workers = append(n.workers, w)
	}
	return n, errors.Join(errs...)
}

// Validate checks receivers without reading a file; see Receiver.Validate.
func Validate(receivers []Receiver) error {
	var errs []error
	for i := range receivers {
		r := &receivers[i]
		if err := r.Validate(); err != nil {
			errs = append(errs, named(i, r, err))
		}
		same := func(other Receiver) bool { return other.Name == r.Name && r.Name != "" }
		if first := slices.IndexFunc(receivers, same); first >= 0 && first < i {
			errs = append(errs, fmt.Errorf("notifications[%d].name: %q: want another: notifications[%d] has it", i, r.Name, first))
		}
	}
	return errors.Join(errs...)
}

// named says which receiver each of several errors is about.
func named(i int, r *Receiver, err error) error {
	if all, ok := err.(interface{ Unwrap() []error }); ok {
		var errs []error
		for _, e := range all.Unwrap() {
			errs = append(errs, named(i, r, e))
		}
		return errors.Join(errs...)
	}
	return fmt.Errorf("notifications[%d] (%s): %w", i, r.Name, err)
}

func newWorker(r Receiver, o Options, all families) (*worker, error) {
	log := o.Log.With("receiver", r.Name)
	w := &worker{r: &r, log: log, queue: newQueue(o.Queue), linger: o.Linger}
	var err error
	if w.writer, err = newWriter(&r, log.Warn, o.WarnOfTemplates); err != nil {
		return nil, err
	}
	w.client = &client{n: r.connection(), field: w.writer.field, agent: o.UserAgent, wrap: o.Wrap}
	if w.client.agent == "" {
		w.client.agent = "slipway"
	}
	if err := w.client.renew(); err != nil {
		return nil, err
	}
	if _, err := w.client.password(); err != nil {
		return nil, err
	}
	if w.client.n.InsecureSkipVerify {
		log.Warn("the receiver's certificate is not verified: whoever is on the way can read and change what is sent")
	}
	w.metrics = all.of(r.Name)
	return w, nil
}

// Notify queues a message for every receiver that is to be told of its moment. It never blocks.
func (n *Notifier) Notify(m Message) {
	for _, w := range n.workers {
		if !w.r.tells(m.Moment) {
			continue
		}
		if d := w.queue.add(m); d != nil {
			w.metrics.dropped.Inc()
			w.log.Warn("notification dropped: too many wait for this receiver", "moment", d.message.Moment,
				"notice", d.message.Event.EventId)
		}
		w.metrics.waiting.Set(float64(w.queue.len()))
	}
}

// Idle reports that every message has been tried at least once.
func (n *Notifier) Idle() bool {
	return !slices.ContainsFunc(n.workers, func(w *worker) bool { return !w.queue.idle() })
}

// Run sends until ctx ends, and then for a little longer what has not been tried yet. It returns ctx's error.
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

// Send tells every receiver at once, whatever moments it has chosen, with the configured retries, and returns what
// failed, by receiver.
func (n *Notifier) Send(ctx context.Context, m Message) error {
	errs := make([]error, len(n.workers))
	var group sync.WaitGroup
	for i, w := range n.workers {
		group.Go(func() {
			if err := w.sendNow(ctx, m); err != nil {
				errs[i] = fmt.Errorf("receiver %s: %w", w.r.Name, err)
			}
		})
	}
	group.Wait()
	return errors.Join(errs...)
}
