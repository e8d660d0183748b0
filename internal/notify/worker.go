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
	// firstPause and lastPause bound the wait before a request is repeated.
	firstPause = time.Second
	lastPause  = 30 * time.Second
	// longPause is the most that passes between two tries at a receiver that has been away for long.
	longPause = 5 * time.Minute
)

// worker brings one receiver its messages, one after the other.
type worker struct {
	r       *Receiver
	log     *slog.Logger
	metrics *metrics
	queue   *queue
	linger  time.Duration // see Options
	// The rest belongs to the goroutine that sends.
	writer *writer
	client *client
	fails  int // in a row
}

// attempt makes one request for a message. Its error is safe to be shown.
func (w *worker) attempt(ctx context.Context, m Message) *failure {
	ctx, cancel := context.WithTimeout(ctx, w.r.connection().timeout())
	defer cancel()
	req, err := w.writer.request(m)
	if err != nil {
		return &failure{err: w.writer.secrets.clean(err), final: !isUnreadable(err)}
	}
	w.client.known(&w.writer.secrets)
	began := time.Now()
	f := w.client.send(req.WithContext(ctx))
	w.metrics.seconds.Observe(time.Since(began).Seconds())
	if f != nil {
		f.err = w.writer.secrets.clean(f.err)
	}
	return f
}

// run sends until ctx ends. Requests under way may go on until hard ends.
func (w *worker) run(ctx, hard context.Context) {
	for {
		i := w.queue.first(ctx)
		if i == nil {
			break
		}
		try, end := w.try(ctx, hard, i)
		wait := w.bring(try, i)
		end()
		if wait > 0 {
			elapsed.Sleep(ctx, wait)
		}
	}
	w.finish(hard)
}

// try returns the context of one try, which ends with hard. A message that failed before gets half of the time after ctx
// has ended: the other half is for those that were never tried.
func (w *worker) try(ctx, hard context.Context, i *item) (context.Context, context.CancelFunc) {
	try, end := context.WithCancel(hard)
	if !i.tried {
		return try, end
	}
	stop := context.AfterFunc(ctx, func() {
		elapsed.Sleep(try, w.linger/2)
		if !w.queue.idle() {
			end()
		}
	})
	return try, func() { stop(); end() }
}

// finish gives each message that was never tried one try, until the time is over: the machine may be going down, and the last
// message may be the one that matters. A message that fails does not hold up the ones after it.
func (w *worker) finish(hard context.Context) {
	for hard.Err() == nil {
		i := w.queue.takeUntried()
		if i == nil {
			break
		}
		w.bring(hard, i)
	}
	if n := w.queue.len(); n > 0 {
		w.metrics.dropped.Add(float64(n))
		w.log.Warn("notifications not sent: the process ends", "messages", n)
	}
}

// bring tries to send a message, and returns how long to wait before the next try.
func (w *worker) bring(ctx context.Context, i *item) time.Duration {
	m := i.message
	i.tries++
	f := w.attempt(ctx, m)
	defer func() { w.metrics.waiting.Set(float64(w.queue.len())) }()
	log := w.log.With("moment", m.Moment, "notice", m.Event.EventId)
	switch {
	case f == nil:
		w.queue.leave(i, true, false)
		w.metrics.sent.Inc()
		log.Info("notification sent", "tries", i.tries)
		w.fails = 0
		return 0
	case f.final:
		w.queue.leave(i, true, false)
		w.metrics.refused.Inc()
		log.Error("notification was refused, and is not sent again", "err", f)
		return 0
	}
	w.fails++
	w.metrics.failed.Inc()
	rounds := i.tries > w.r.connection().retries()
	if rounds && !f.absent {
		i.tries = 0
	}
	w.queue.leave(i, false, rounds && !f.absent)
	wait := w.pause(f)
	log.Warn("notification not sent: will try again", "err", f, "failures", w.fails, "wait", wait.String())
	return wait
}

// pause is how long to wait after a failure: doubling, and longer once the configured retries are over, since the
// receiver is tried for as long as the process lives.
func (w *worker) pause(f *failure) time.Duration {
	if f.after > 0 {
		return f.after
	}
	most := lastPause
	if w.fails > w.r.connection().retries() {
		most = longPause
	}
	return backoff(w.fails-1, most)
}

// backoff is firstPause doubled n times, at most the given, and a fifth more or less, so that many agents do not
// come at once.
func backoff(n int, most time.Duration) time.Duration {
	wait := min(firstPause<<min(n, 20), most)
	return wait - wait/5 + rand.N(2*wait/5)
}

// sendNow brings a message past the queue, with the configured retries.
func (w *worker) sendNow(ctx context.Context, m Message) error {
	for n := 0; ; n++ {
		f := w.attempt(ctx, m)
		switch {
		case f == nil:
			return nil
		case f.final || n >= w.r.connection().retries():
			return f
		}
		wait := f.after
		if wait == 0 {
			wait = backoff(n, lastPause)
		}
		w.log.Info("not sent: will try again", "err", f, "wait", wait.String())
		if !elapsed.Sleep(ctx, wait) {
			return errors.Join(f, ctx.Err())
		}
	}
}
