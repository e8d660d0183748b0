package notify

import (
	"context"
	"errors"
	"log/slog"
	"math/rand/v2"
	"time"

	"github.com/slipway-dev/slipway/internal/elapsed"
)

const (
	// minPause and maxPause limit the wait before a request is repeated.
	minPause = time.Second
	maxPause = 30 * time.Second
	// maxLongPause limits the wait for a receiver that has failed for long.
	maxLongPause = 5 * time.Minute
)

// worker sends the messages of one receiver, one after another.
type worker struct {
	receiver *Receiver
	log      *slog.Logger
	metrics  *metrics
	queue    *queue
	linger   time.Duration // see Options
	// The fields below belong to the goroutine that sends.
	writer   *requestWriter
	client   *client
	failures int // in a row
}

// sendOnce sends one request for a message. It returns nil if the receiver accepted the message. The failure contains
// no secret.
func (w *worker) sendOnce(ctx context.Context, m Message) *failure {
	ctx, cancel := context.WithTimeout(ctx, w.receiver.connection().timeout())
	defer cancel()
	req, err := w.writer.newMessageRequest(m)
	if err != nil {
		return &failure{err: w.writer.secrets.redactError(err), final: !isUnreadable(err)}
	}
	w.client.addSecrets(&w.writer.secrets)
	began := time.Now()
	f := w.client.send(req.WithContext(ctx))
	w.metrics.seconds.Observe(time.Since(began).Seconds())
	if f != nil {
		f.err = w.writer.secrets.redactError(f.err)
	}
	return f
}

// run sends queued messages until ctx ends. After that, it tries the untried messages, and requests in progress may
// continue, until hard ends.
func (w *worker) run(ctx, hard context.Context) {
	for {
		i := w.queue.awaitNext(ctx)
		if i == nil {
			break
		}
		try, end := w.newTryContext(ctx, hard, i)
		wait := w.trySend(try, i)
		end()
		if wait > 0 {
			elapsed.Sleep(ctx, wait)
		}
	}
	w.sendUntriedOnce(hard)
}

// newTryContext returns the context for one try, which ends when hard ends. If ctx has ended, a message that failed
// before gets half of the remaining time. The other half is for untried messages.
func (w *worker) newTryContext(ctx, hard context.Context, i *item) (context.Context, context.CancelFunc) {
	try, end := context.WithCancel(hard)
	if !i.tried {
		return try, end
	}
	stop := context.AfterFunc(ctx, func() {
		elapsed.Sleep(try, w.linger/2)
		if !w.queue.areAllTried() {
			end()
		}
	})
	return try, func() { stop(); end() }
}

// sendUntriedOnce tries each untried message once, until hard ends. The instance may be shutting down, and the last
// message may be the important one. So a failed message does not delay the next one.
func (w *worker) sendUntriedOnce(hard context.Context) {
	for hard.Err() == nil {
		i := w.queue.markFirstUntriedBusy()
		if i == nil {
			break
		}
		w.trySend(hard, i)
	}
	if n := w.queue.len(); n > 0 {
		w.metrics.dropped.Add(float64(n))
		w.log.Warn("notifications not sent: the process ends", "messages", n)
	}
}

// trySend tries to send a message. It returns how long to wait before the next try.
func (w *worker) trySend(ctx context.Context, i *item) (retryAfter time.Duration) {
	m := i.message
	i.tries++
	f := w.sendOnce(ctx, m)
	defer func() { w.metrics.waiting.Set(float64(w.queue.len())) }()
	log := w.log.With("moment", m.Moment, "notice", m.Event.EventId)
	switch {
	case f == nil:
		w.queue.finishSending(i, true, false)
		w.metrics.sent.Inc()
		log.Info("notification sent", "tries", i.tries)
		w.failures = 0
		return 0
	case f.final:
		w.queue.finishSending(i, true, false)
		w.metrics.refused.Inc()
		log.Error("notification refused; it is not retried", "err", f)
		return 0
	}
	w.failures++
	w.metrics.failed.Inc()
	rounds := i.tries > w.receiver.connection().retries()
	if rounds && !f.absent {
		i.tries = 0
	}
	w.queue.finishSending(i, false, rounds && !f.absent)
	wait := w.retryPause(f)
	log.Warn("notification not sent, will retry", "err", f, "failures", w.failures, "wait", wait.String())
	return wait
}

// retryPause returns how long to wait after a failure. The pause doubles with each failure. After the configured
// retries it can get longer, because a receiver is tried as long as the process lives.
func (w *worker) retryPause(f *failure) time.Duration {
	if f.after > 0 {
		return f.after
	}
	most := maxPause
	if w.failures > w.receiver.connection().retries() {
		most = maxLongPause
	}
	return backoff(w.failures-1, most)
}

// backoff doubles minPause n times, up to most. It changes the result randomly by up to a fifth, so that many agents do
// not retry at the same time.
func backoff(n int, most time.Duration) time.Duration {
	wait := min(minPause<<min(n, 20), most)
	return wait - wait/5 + rand.N(2*wait/5)
}

// sendWithRetries sends a message without the queue. It repeats a failed request as often as configured. It does not wait
// for a file that cannot be read, because the caller wants to know that now.
func (w *worker) sendWithRetries(ctx context.Context, m Message) error {
	for n := 0; ; n++ {
		f := w.sendOnce(ctx, m)
		switch {
		case f == nil:
			return nil
		case f.final || isUnreadable(f) || n >= w.receiver.connection().retries():
			return f
		}
		wait := f.after
		if wait == 0 {
			wait = backoff(n, maxPause)
		}
		w.log.Info("not sent, will retry", "err", f, "wait", wait.String())
		if !elapsed.Sleep(ctx, wait) {
			return errors.Join(f, ctx.Err())
		}
	}
}
