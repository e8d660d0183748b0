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

// restartDelayReset is how long a plugin must run before its restart delay starts again at the minimum.
const restartDelayReset = time.Minute

// errClosed is the error of calls after the plugin was closed.
var errClosed = errors.New("closed, because Slipway is shutting down")

// host runs one plugin and restarts it after an exit. It is safe for concurrent use.
type host struct {
	directory string
	entry     Entry
	options   Options
	lines     *lineLog

	lifetime    context.Context // ends in close
	endLifetime context.CancelFunc
	goroutines  sync.WaitGroup // goroutines that start, watch and probe

	mu        sync.Mutex
	current   *process      // nil while none runs
	starting  chan struct{} // closed when the start in progress has ended
	exits     int           // consecutive exits
	nextStart time.Time     // earliest next start
	lastError error         // why the last start failed or the last process exited
	events    advice.Events // events of the last started process
	probed    *process      // process with a health check in progress
}

func newHost(directory string, e Entry, o Options) *host {
	o = o.withDefaults()
	h := &host{directory: directory, entry: e, options: o}
	h.options.Log = o.Log.With("plugin", e.ProviderName())
	h.lines = newLineLog(h.options.Log)
	h.lifetime, h.endLifetime = context.WithCancel(context.Background())
	return h
}

// getOrStartProcess returns the plugin's running process. If none runs, it starts one, unless the restart delay has not
// passed yet.
func (h *host) getOrStartProcess(ctx context.Context) (*process, error) {
	for {
		h.mu.Lock()
		if h.lifetime.Err() != nil {
			h.mu.Unlock()
			return nil, errClosed
		}
		if p := h.current; p != nil && !p.hasExited() {
			h.mu.Unlock()
			return p, nil
		}
		if h.current != nil {
			h.scheduleRestartAfterExit(h.current)
		}
		if h.starting == nil {
			if wait := time.Until(h.nextStart); wait > 0 {
				defer h.mu.Unlock()
				return nil, fmt.Errorf("%w, next start in %s: %w", advice.ErrNotRunning, wait.Round(time.Millisecond), h.lastError)
			}
			h.starting = make(chan struct{})
			h.goroutines.Go(h.startProcessOnce)
		}
		starting := h.starting
		h.mu.Unlock()
		select {
		case <-starting:
		case <-ctx.Done():
			return nil, fmt.Errorf("%w, still starting: %w", advice.ErrNotRunning, context.Cause(ctx))
		}
	}
}

// startProcessOnce starts the plugin once and records the result.
func (h *host) startProcessOnce() {
	ctx, cancel := context.WithTimeout(h.lifetime, timeoutOrDefault(h.entry.StartTimeout))
	defer cancel()
	path, err := findExecutable(h.directory, h.entry.Type)
	var p *process
	if err == nil {
		p, err = startAndConfigureProcess(ctx, path, h.entry, h.lines)
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	close(h.starting)
	h.starting = nil
	if err != nil {
		h.scheduleRestart(err)
		h.options.Log.Error("plugin failed to start", "err", err, "retryIn", time.Until(h.nextStart).Round(time.Millisecond))
		return
	}
	h.current, h.events = p, p.events
	h.options.Log.Info("plugin started", "path", path, "pid", p.ID())
	h.goroutines.Go(func() { h.watchProcess(p) })
}

// watchProcess waits for the exit of a process. So an exit is logged even if nothing calls the plugin.
func (h *host) watchProcess(p *process) {
	select {
	case <-p.exited:
		h.mu.Lock()
		h.scheduleRestartAfterExit(p)
		h.mu.Unlock()
		p.kill() // close the connection and remove its directory
	case <-h.lifetime.Done():
		p.stop()
	}
}

// scheduleRestartAfterExit records that the current process has exited, and schedules the next start. It does nothing
// if the exit is already recorded. The caller holds mu.
func (h *host) scheduleRestartAfterExit(p *process) {
	if h.current != p {
		return
	}
	h.current = nil
	if time.Since(p.started) >= restartDelayReset {
		h.exits = 0
	}
	h.scheduleRestart(fmt.Errorf("it exited (%s)", p.exitStatus()))
	if h.lifetime.Err() == nil {
		h.options.Log.Error("plugin exited", "how", p.exitStatus(), "pid", p.ID(), "ran", time.Since(p.started).Round(time.Millisecond))
	}
}

// scheduleRestart stores why the plugin stopped and the time of the next start. The caller holds mu.
func (h *host) scheduleRestart(why error) {
	h.lastError = why
	h.nextStart = time.Now().Add(backoff(h.exits, h.options.RestartMin, h.options.RestartMax))
	h.exits++
}

// backoff returns the restart delay after n earlier exits. It doubles with each exit, from least to at most most.
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

// killIfUnresponsive starts a health check after a failed call. If the plugin does not respond to the check, the plugin
// is killed.
func (h *host) killIfUnresponsive(p *process) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.probed == p || p.hasExited() || h.lifetime.Err() != nil {
		return
	}
	h.probed = p
	h.goroutines.Go(func() {
		if !p.isHealthy() && !p.awaitExitUntil(time.Now().Add(outputGracePeriod)) {
			h.options.Log.Error("killing a plugin that does not respond", "pid", p.ID())
			p.kill()
		}
		h.mu.Lock()
		defer h.mu.Unlock()
		h.probed = nil
	})
}

// close stops the plugin. It returns within a few seconds, even if the plugin hangs.
func (h *host) close() {
	h.mu.Lock()
	h.endLifetime()
	h.mu.Unlock()
	h.goroutines.Wait()
}

// lastFailure returns why the last start failed or why the last process exited. It returns nil if there was no failure.
func (h *host) lastFailure() error {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.lastError
}

// pid returns the ID of the plugin's process. It returns 0 if no process runs.
func (h *host) pid() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.current == nil || h.current.hasExited() {
		return 0
	}
	return h.current.proc.Load().Pid
}

// requestedEvents returns the kinds of pod events that the plugin requested at its last start.
func (h *host) requestedEvents() advice.Events {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.events
}
