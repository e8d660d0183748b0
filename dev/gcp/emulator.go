// Package gcp emulates the metadata server of Compute Engine for any number of VMs: over the wire, with Google's headers,
// errors, waiting requests and notice times.
//
// Facts are from Google's pages "Set and query VM metadata", "Get a live migration notice", "Monitor and plan for a host
// maintenance event" and "Spot VMs".
package gcp

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"
)

// The values of the key maintenance-event.
const (
	NoMaintenance = "NONE"
	Migrate       = "MIGRATE_ON_HOST_MAINTENANCE"
	Terminate     = "TERMINATE_ON_HOST_MAINTENANCE"
)

// The notice times of Compute Engine.
const (
	PreemptionNotice  = 30 * time.Second
	MaintenanceNotice = time.Minute
)

// Machines switches the VMs.
type Machines interface {
	PowerOff(ctx context.Context, vm string) error
	PowerOn(ctx context.Context, vm string) error
}

// Options configures an Emulator.
type Options struct {
	// Machines switches the VMs; nil has no effect.
	Machines Machines
	// PreemptionNotice and MaintenanceNotice replace the notice times of Compute Engine; 0 keeps them.
	PreemptionNotice, MaintenanceNotice time.Duration
	// Outage is how long a maintenance stops a VM; 0 is 10 s.
	Outage time.Duration
}

// The keys that the emulator serves, below instance/.
const (
	preemptedKey   = "preempted"
	maintenanceKey = "maintenance-event"
	upcomingKey    = "upcoming-maintenance"
)

// Emulator emulates the metadata servers of VMs. Its methods may be called concurrently. Call Close to end it.
type Emulator struct {
	options Options
	ctx     context.Context //nolint:containedctx // it ends at Close, for the goroutines of events
	stop    context.CancelFunc
	events  sync.WaitGroup

	mu  sync.Mutex
	vms map[string]*vm
}

// vm is the metadata of one VM.
type vm struct {
	values      map[string]string
	unavailable bool // the server is under maintenance, and responds 503
	noUpcoming  bool // the server has no information about upcoming-maintenance
	// maintenance counts the maintenances that began or were taken back.
	maintenance int
	// warned means that maintenance-event was read since the last event. Otherwise Compute Engine gives no warning.
	warned   bool
	requests map[string]int // by key
	changed  chan struct{}  // closed and replaced at each change
}

// New starts an emulator without VMs.
func New(o Options) *Emulator {
	if o.PreemptionNotice == 0 {
		o.PreemptionNotice = PreemptionNotice
	}
	if o.MaintenanceNotice == 0 {
		o.MaintenanceNotice = MaintenanceNotice
	}
	if o.Outage == 0 {
		o.Outage = 10 * time.Second
	}
	ctx, stop := context.WithCancel(context.Background())
	return &Emulator{options: o, ctx: ctx, stop: stop, vms: map[string]*vm{}}
}

// Close ends all events and waits for their goroutines. It switches no VM.
func (e *Emulator) Close() {
	e.stop()
	e.events.Wait()
}

// AddVM adds a VM without interruptions.
func (e *Emulator) AddVM(name string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.vms[name] = &vm{
		values:   map[string]string{preemptedKey: "FALSE", maintenanceKey: NoMaintenance, upcomingKey: "{ }"},
		requests: map[string]int{}, changed: make(chan struct{}),
	}
}

// change changes a VM and ends all requests that wait for a change.
func (e *Emulator) change(name string, apply func(*vm)) {
	e.mu.Lock()
	defer e.mu.Unlock()
	v := e.vms[name]
	apply(v)
	close(v.changed)
	v.changed = make(chan struct{})
}

// set changes one key.
func (e *Emulator) set(name, key, value string) {
	e.change(name, func(v *vm) { v.values[key] = value })
}

// SetUnavailable makes the metadata server of a VM respond 503, as it does while it is under maintenance.
func (e *Emulator) SetUnavailable(name string, on bool) {
	e.change(name, func(v *vm) { v.unavailable = on })
}

// SetNoUpcoming makes the metadata server say that it has no information about planned maintenance, as for most VMs.
func (e *Emulator) SetNoUpcoming(name string) { e.change(name, func(v *vm) { v.noUpcoming = true }) }

// Requests returns how often the keys of a VM were requested.
func (e *Emulator) Requests(name string) (total int) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, n := range e.vms[name].requests {
		total += n
	}
	return total
}

// after runs do after d, unless the emulator is closed before.
func (e *Emulator) after(d time.Duration, do func(ctx context.Context)) {
	e.events.Go(func() {
		select {
		case <-time.After(d):
			do(e.ctx)
		case <-e.ctx.Done():
		}
	})
}

// Preempt preempts a Spot VM: first the key, and after the notice time the power. It returns when the power goes.
func (e *Emulator) Preempt(name string) (due time.Time) {
	due = time.Now().Add(e.options.PreemptionNotice)
	e.set(name, preemptedKey, "TRUE")
	e.after(e.options.PreemptionNotice, func(ctx context.Context) { e.powerOff(ctx, name) })
	return due
}

// CancelPreemption takes a preemption back. Compute Engine never does. Tests use it to see what the agent restores.
func (e *Emulator) CancelPreemption(name string) { e.set(name, preemptedKey, "FALSE") }

// Maintain begins a maintenance of the VM's host. The key maintenance-event has the kind first. After the notice time the VM
// stops, and starts again on another host, unless the kind is Migrate. It returns when the VM stops. If the key was not read
// since the last event, the VM stops at once.
func (e *Emulator) Maintain(name, kind string) (due time.Time) {
	notice, number := e.options.MaintenanceNotice, 0
	e.change(name, func(v *vm) {
		v.maintenance++
		number = v.maintenance
		if !v.warned {
			notice = 0
			return
		}
		v.values[maintenanceKey] = kind
	})
	e.after(notice, func(ctx context.Context) {
		if !e.isCurrentMaintenance(name, number) {
			return
		}
		if kind != Migrate {
			e.powerOff(ctx, name)
			select {
			case <-time.After(e.options.Outage):
			case <-ctx.Done():
				return
			}
			e.powerOn(ctx, name)
		}
		e.change(name, func(v *vm) { v.values[maintenanceKey], v.values[upcomingKey], v.warned = NoMaintenance, "{ }", false })
	})
	return time.Now().Add(notice)
}

// CancelMaintenance takes a maintenance back during its notice time. The key has NONE again, and the VM keeps running.
func (e *Emulator) CancelMaintenance(name string) {
	e.change(name, func(v *vm) {
		v.maintenance++
		v.values[maintenanceKey] = NoMaintenance
	})
}

// isCurrentMaintenance reports whether no maintenance of the VM began or was taken back after the one with this number.
func (e *Emulator) isCurrentMaintenance(name string, number int) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.vms[name].maintenance == number
}

// Plan announces a maintenance that begins at start. It only changes the key upcoming-maintenance.
func (e *Emulator) Plan(name string, start time.Time) {
	const layout = time.RFC3339
	body, err := json.MarshalIndent(map[string]any{
		"can_reschedule": "true", "latest_window_start_time": start.Add(7 * 24 * time.Hour).UTC().Format(layout),
		"maintenance_reasons": []string{"PLANNED_UPDATE", "PLANNED_NETWORK_UPDATE"}, "maintenance_status": "PENDING", "type": "SCHEDULED",
		"window_end_time": start.Add(4 * time.Hour).UTC().Format(layout), "window_start_time": start.UTC().Format(layout),
	}, "", "  ")
	if err != nil {
		panic(err) // it has only texts
	}
	e.set(name, upcomingKey, string(body))
}

// CancelPlan takes the planned maintenance back.
func (e *Emulator) CancelPlan(name string) { e.set(name, upcomingKey, "{ }") }

func (e *Emulator) powerOff(ctx context.Context, name string) {
	if e.options.Machines != nil {
		_ = e.options.Machines.PowerOff(ctx, name) // tests see the effect
	}
}

func (e *Emulator) powerOn(ctx context.Context, name string) {
	if e.options.Machines != nil {
		_ = e.options.Machines.PowerOn(ctx, name) // tests see the effect
	}
}

// URL returns the value of the agent's --endpoint for a VM, if base is the URL of Handler's server.
func URL(base, name string) string { return base + "/vms/" + name + "/computeMetadata/v1/" }

// Handler serves the metadata of all VMs, each below /vms/NAME.
func (e *Emulator) Handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("/vms/{vm}/computeMetadata/v1/instance/{key}", func(w http.ResponseWriter, r *http.Request) {
		e.serve(w, r, r.PathValue("vm"), r.PathValue("key"))
	})
	return mux
}

// reply writes a response with the headers of the real server.
func reply(w http.ResponseWriter, status int, contentType, body string) {
	w.Header().Set("Metadata-Flavor", "Google")
	w.Header().Set("Server", "Metadata Server for VM")
	w.Header().Set("Content-Type", contentType)
	w.Header().Set("X-Frame-Options", "SAMEORIGIN")
	w.WriteHeader(status)
	_, _ = w.Write([]byte(body)) // a client that has disconnected cannot be told
}

func (e *Emulator) serve(w http.ResponseWriter, r *http.Request, name, key string) {
	switch {
	case r.Header.Get("X-Forwarded-For") != "":
		reply(w, http.StatusForbidden, "text/html; charset=UTF-8", "<p>Your client does not have permission to get this URL: X-Forwarded-For</p>")
		return
	case r.Header.Get("Metadata-Flavor") != "Google":
		reply(w, http.StatusForbidden, "text/html; charset=UTF-8", "<p>Missing required header: Metadata-Flavor</p>")
		return
	case r.Method != http.MethodGet:
		reply(w, http.StatusMethodNotAllowed, "text/html; charset=UTF-8", "<p>The request method is inappropriate for this URL</p>")
		return
	}
	value, status := e.awaitValue(r, name, key)
	switch {
	case status == 0: // the client has gone, or the emulator is closed
		panic(http.ErrAbortHandler)
	case status == http.StatusServiceUnavailable && key == upcomingKey:
		reply(w, status, "application/json", `{ "error": "no notifications have been received yet, try again later" }`)
	case status != http.StatusOK:
		reply(w, status, "text/html; charset=UTF-8", fmt.Sprintf("<p>%d %s</p>", status, http.StatusText(status)))
	case r.URL.Query().Get("alt") == "json":
		w.Header().Set("ETag", etagOf(value))
		if !json.Valid([]byte(value)) {
			value = strconv.Quote(value)
		}
		reply(w, status, "application/json", value)
	default:
		w.Header().Set("ETag", etagOf(value))
		reply(w, status, "application/text", value)
	}
}

// etagOf returns the ETag of a value. On Compute Engine it depends on the value, too.
func etagOf(value string) string {
	sum := sha256.Sum256([]byte(value))
	return hex.EncodeToString(sum[:8])
}

// awaitValue returns the value of a key and the HTTP status. If the client asks for it, awaitValue waits until the value has
// another ETag than the client's, at most the client's timeout. A request that was waiting gets a 503 as well.
func (e *Emulator) awaitValue(r *http.Request, name, key string) (value string, status int) {
	query := r.URL.Query()
	timeout := make(<-chan time.Time)
	if seconds, err := strconv.Atoi(query.Get("timeout_sec")); err == nil && seconds > 0 {
		timeout = time.After(time.Duration(seconds) * time.Second)
	}
	counted, timedOut := false, false
	for {
		e.mu.Lock()
		v := e.vms[name]
		if v == nil {
			e.mu.Unlock()
			return "", http.StatusNotFound
		}
		value, known := v.values[key]
		if !counted {
			v.requests[key]++
			counted = true
		}
		v.warned = v.warned || key == maintenanceKey
		changed, unavailable := v.changed, v.unavailable || v.noUpcoming && key == upcomingKey
		e.mu.Unlock()
		switch {
		case unavailable:
			return "", http.StatusServiceUnavailable
		case !known:
			return "", http.StatusNotFound
		case query.Get("wait_for_change") != "true", !strings.EqualFold(query.Get("last_etag"), etagOf(value)), timedOut:
			return value, http.StatusOK
		}
		select {
		case <-changed:
		case <-timeout:
			timedOut = true
		case <-r.Context().Done():
			return "", 0
		case <-e.ctx.Done():
			return "", 0
		}
	}
}
