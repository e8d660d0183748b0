package notify

import (
	"context"
	"errors"
	"log/slog"
	"math/rand/v2"
	"time"
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
		if wait := w.bring(hard, i); wait > 0 {
			pause(ctx, wait)
		}
	}
	w.finish(hard)
}

// finish gives what has not been tried yet one try, until one fails or the time is over: the machine may be going down,
// and this may be the last that is heard of it.
func (w *worker) finish(hard context.Context) {
	for hard.Err() == nil {
		i := w.queue.take()
		if i == nil || i.tried {
			break
		}
		if w.bring(hard, i); w.fails > 0 {
			break
		}
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
		pause(ctx, wait)
		if ctx.Err() != nil {
			return errors.Join(f, ctx.Err())
		}
	}
}

// pause waits, or returns early when ctx ends.
func pause(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done():
	}
}
