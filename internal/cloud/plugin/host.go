package plugin

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/slipway-dev/slipway/internal/cloud/advice"
)

// Options are what is not a plugin's configuration.
type Options struct {
	Log *slog.Logger
	// RestartMin and RestartMax bound the pause before a plugin that has ended is started again; 1s and 1m if zero. It
	// doubles from one end to the next, until the plugin has run for a while.
	RestartMin, RestartMax time.Duration
}

func (o Options) withDefaults() Options {
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.RestartMin == 0 {
		o.RestartMin = time.Second
	}
	if o.RestartMax == 0 {
		o.RestartMax = max(o.RestartMin, time.Minute)
	}
	return o
}

// settled is how long a plugin has run when its end counts as the first one.
const settled = time.Minute

// errClosed is the answer of a plugin after Close.
var errClosed = errors.New("is closed, since Slipway ends")

// host keeps one plugin running. Its methods may be called from several goroutines at once.
type host struct {
	directory string
	entry     Entry
	options   Options
	lines     *lineLog

	life    context.Context // ends at close
	endLife context.CancelFunc
	work    sync.WaitGroup // starts, watches and probes

	mu       sync.Mutex
	current  *process      // nil while none runs
	starting chan struct{} // closed at the end of the start that is under way
	ends     int           // one after the other
	notUntil time.Time     // of the next start
	last     error         // why the last start failed, or how the last process ended
	events   advice.Events // as the last process that was started said
	probing  *process      // the one that is asked for a sign of life
}

func newHost(directory string, e Entry, o Options) *host {
	o = o.withDefaults()
	h := &host{directory: directory, entry: e, options: o}
	h.options.Log = o.Log.With("plugin", e.ProviderName())
	h.lines = newLineLog(h.options.Log)
	h.life, h.endLife = context.WithCancel(context.Background())
	return h
}

// get gives the process that runs, and starts one if none does and it is time.
func (h *host) get(ctx context.Context) (*process, error) {
	for {
		h.mu.Lock()
		if h.life.Err() != nil {
			h.mu.Unlock()
			return nil, errClosed
		}
		if p := h.current; p != nil && !p.hasEnded() {
			h.mu.Unlock()
			return p, nil
		}
		if h.current != nil {
			h.noteEnd(h.current)
		}
		if h.starting == nil {
			if wait := time.Until(h.notUntil); wait > 0 {
				defer h.mu.Unlock()
				return nil, fmt.Errorf("does not run, and is started again in %s at the soonest: %w", wait.Round(time.Millisecond), h.last)
			}
			h.starting = make(chan struct{})
			h.work.Go(h.start)
		}
		starting := h.starting
		h.mu.Unlock()
		select {
		case <-starting:
		case <-ctx.Done():
			return nil, fmt.Errorf("is being started: %w", context.Cause(ctx))
		}
	}
}

// start makes one attempt.
func (h *host) start() {
	ctx, cancel := context.WithTimeout(h.life, orDefault(h.entry.StartTimeout))
	defer cancel()
	path, err := find(h.directory, h.entry.Type)
	var p *process
	if err == nil {
		p, err = start(ctx, path, h.entry, h.lines)
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	close(h.starting)
	h.starting = nil
	if err != nil {
		h.pause(err)
		h.options.Log.Error("the plugin does not start", "err", err, "again", time.Until(h.notUntil).Round(time.Millisecond))
		return
	}
	h.current, h.events = p, p.events
	h.options.Log.Info("the plugin runs", "path", path, "pid", p.ID())
	h.work.Go(func() { h.watch(p) })
}

// watch tells of a process's end when nobody asks for anything.
func (h *host) watch(p *process) {
	select {
	case <-p.ended:
		h.mu.Lock()
		h.noteEnd(p)
		h.mu.Unlock()
		p.kill() // what is left of it: the connection, and its directory
	case <-h.life.Done():
		p.stop()
	}
}

// noteEnd takes note, once, that the current process has ended. The caller holds mu.
func (h *host) noteEnd(p *process) {
	if h.current != p {
		return
	}
	h.current = nil
	if time.Since(p.began) >= settled {
		h.ends = 0
	}
	h.pause(fmt.Errorf("it ended (%s)", p.ending()))
	if h.life.Err() == nil {
		h.options.Log.Error("the plugin has ended", "how", p.ending(), "pid", p.ID(), "ran", time.Since(p.began).Round(time.Millisecond))
	}
}

// pause sets when the next start may be. The caller holds mu.
func (h *host) pause(why error) {
	h.last = why
	h.notUntil = time.Now().Add(backoff(h.ends, h.options.RestartMin, h.options.RestartMax))
	h.ends++
}

// backoff is the pause after an end that n others came before.
func backoff(n int, least, most time.Duration) time.Duration {
	d := least
	for range n {
		if d >= most/2 {
			return most
		}
		d *= 2
	}
	return min(d, most)
}

// suspect has a process whose call did not end well asked for a sign of life, and ends it when none comes.
func (h *host) suspect(p *process) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.probing == p || p.hasEnded() || h.life.Err() != nil {
		return
	}
	h.probing = p
	h.work.Go(func() {
		if !p.responds() && !p.endsBy(time.Now().Add(pipeGrace)) {
			h.options.Log.Error("the plugin does not answer and is ended", "pid", p.ID())
			p.kill()
		}
		h.mu.Lock()
		defer h.mu.Unlock()
		h.probing = nil
	})
}

// close ends the plugin. It returns within a few seconds, whatever the plugin does.
func (h *host) close() {
	h.mu.Lock()
	h.endLife()
	h.mu.Unlock()
	h.work.Wait()
}

// why is the reason of the last failure, nil if there was none.
func (h *host) why() error {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.last
}

// pid is that of the process that runs, 0 if none does.
func (h *host) pid() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.current == nil || h.current.hasEnded() {
		return 0
	}
	return h.current.proc.Load().Pid
}

// wants is what the current process, or the one before it, said of events.
func (h *host) wants() advice.Events {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.events
}
