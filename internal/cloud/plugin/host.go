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

// Options configures plugins in addition to Config.
type Options struct {
	Log *slog.Logger
	// RestartMin and RestartMax limit the restart delay. 0 is 1s and 1m. The delay doubles with each exit until the
	// plugin has run for a while.
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

// settled is the running time that resets the restart delay.
const settled = time.Minute

// errClosed is the error of calls after Close.
var errClosed = errors.New("closed, because Slipway is shutting down")

// host keeps one plugin running. It is safe for concurrent use.
type host struct {
	directory string
	entry     Entry
	options   Options
	lines     *lineLog

	life    context.Context // ends in close
	endLife context.CancelFunc
	work    sync.WaitGroup // goroutines that start, watch and probe

	mu       sync.Mutex
	current  *process      // nil while none runs
	starting chan struct{} // closed when the start in progress has ended
	ends     int           // consecutive exits
	notUntil time.Time     // earliest next start
	last     error         // why the last start failed or the last process exited
	events   advice.Events // events of the last started process
	probing  *process      // process with a health check in progress
}

func newHost(directory string, e Entry, o Options) *host {
	o = o.withDefaults()
	h := &host{directory: directory, entry: e, options: o}
	h.options.Log = o.Log.With("plugin", e.ProviderName())
	h.lines = newLineLog(h.options.Log)
	h.life, h.endLife = context.WithCancel(context.Background())
	return h
}

// get returns the running process. If none runs and a start is due, it starts one.
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
				return nil, fmt.Errorf("not running, next start in %s: %w", wait.Round(time.Millisecond), h.last)
			}
			h.starting = make(chan struct{})
			h.work.Go(h.start)
		}
		starting := h.starting
		h.mu.Unlock()
		select {
		case <-starting:
		case <-ctx.Done():
			return nil, fmt.Errorf("starting: %w", context.Cause(ctx))
		}
	}
}

// start starts the plugin once.
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
		h.options.Log.Error("plugin failed to start", "err", err, "retryIn", time.Until(h.notUntil).Round(time.Millisecond))
		return
	}
	h.current, h.events = p, p.events
	h.options.Log.Info("plugin started", "path", path, "pid", p.ID())
	h.work.Go(func() { h.watch(p) })
}

// watch logs the exit of a process, also without calls.
func (h *host) watch(p *process) {
	select {
	case <-p.ended:
		h.mu.Lock()
		h.noteEnd(p)
		h.mu.Unlock()
		p.kill() // close the connection and remove its directory
	case <-h.life.Done():
		p.stop()
	}
}

// noteEnd records once that the current process has exited. The caller holds mu.
func (h *host) noteEnd(p *process) {
	if h.current != p {
		return
	}
	h.current = nil
	if time.Since(p.began) >= settled {
		h.ends = 0
	}
	h.pause(fmt.Errorf("it exited (%s)", p.ending()))
	if h.life.Err() == nil {
		h.options.Log.Error("plugin exited", "how", p.ending(), "pid", p.ID(), "ran", time.Since(p.began).Round(time.Millisecond))
	}
}

// pause sets the time of the next start. The caller holds mu.
func (h *host) pause(why error) {
	h.last = why
	h.notUntil = time.Now().Add(backoff(h.ends, h.options.RestartMin, h.options.RestartMax))
	h.ends++
}

// backoff returns the delay after n previous exits.
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

// suspect checks the health of a process after a failed call, and kills it if it does not respond.
func (h *host) suspect(p *process) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.probing == p || p.hasEnded() || h.life.Err() != nil {
		return
	}
	h.probing = p
	h.work.Go(func() {
		if !p.responds() && !p.endsBy(time.Now().Add(pipeGrace)) {
			h.options.Log.Error("killing a plugin that does not respond", "pid", p.ID())
			p.kill()
		}
		h.mu.Lock()
		defer h.mu.Unlock()
		h.probing = nil
	})
}

// close stops the plugin. It returns within a few seconds, even if the plugin hangs.
func (h *host) close() {
	h.mu.Lock()
	h.endLife()
	h.mu.Unlock()
	h.work.Wait()
}

// why returns the last failure, nil if there was none.
func (h *host) why() error {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.last
}

// pid returns the process ID, 0 if none runs.
func (h *host) pid() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.current == nil || h.current.hasEnded() {
		return 0
	}
	return h.current.proc.Load().Pid
}

// wants returns the events that the last started process requested.
func (h *host) wants() advice.Events {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.events
}
