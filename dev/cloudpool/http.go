package cloudpool

import (
	"bytes"
	"crypto/subtle"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/url"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Request is a request to a backend, with the path as the backend reads it.
type Request struct {
	Method, Path, Query string
	Header              http.Header
	Body                string
	At                  time.Time
}

// Requests returns the requests so far.
func (p *Pool) Requests() []Request {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.requests)
}

// CountRequests counts the requests of a method with a path that ends in suffix.
func (p *Pool) CountRequests(method, suffix string) int {
	n := 0
	for _, r := range p.Requests() {
		if r.Method == method && strings.HasSuffix(r.Path, suffix) {
			n++
		}
	}
	return n
}

// Handler serves only this pool, at the root.
func (p *Pool) Handler() http.Handler { return normalizePaths(p.newHandler("/pool/")) }

// NewMultiPoolHandler serves several pools under /cloudpools/{name}, and the list of pools.
func NewMultiPoolHandler(pools map[string]*Pool) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /cloudpools", func(w http.ResponseWriter, r *http.Request) {
		urls := []string{}
		for _, name := range slices.Sorted(maps.Keys(pools)) {
			urls = append(urls, "http://"+r.Host+"/cloudpools/"+name)
		}
		writeJSON(w, urls)
	})
	for name, p := range pools {
		prefix := "/cloudpools/" + name
		mux.Handle(prefix, http.NotFoundHandler())
		mux.Handle(prefix+"/", http.StripPrefix(prefix, p.newHandler("/")))
	}
	return normalizePaths(mux)
}

// normalizePaths reads paths as the reference server does. It cuts each segment at a semicolon, decodes it, and then resolves
// dot segments, also encoded ones. It ignores a trailing slash and repeated slashes.
func normalizePaths(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		segments := strings.Split(r.URL.EscapedPath(), "/")
		for i, s := range segments {
			segments[i], _, _ = strings.Cut(s, ";")
		}
		decoded, err := url.PathUnescape(strings.Join(segments, "/"))
		if err != nil {
			w.WriteHeader(http.StatusBadRequest)
			return
		}
		r.URL.Path, r.URL.RawPath = path.Clean("/"+decoded), ""
		next.ServeHTTP(w, r)
	})
}

// newHandler serves a pool. Requests for one machine are under machinePrefix.
func (p *Pool) newHandler(machinePrefix string) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /config", p.getConfig)
	mux.HandleFunc("POST /config", p.postConfig)
	mux.HandleFunc("POST /start", p.postStart)
	mux.HandleFunc("POST /stop", func(w http.ResponseWriter, _ *http.Request) { p.setStarted(false); w.WriteHeader(http.StatusOK) })
	mux.HandleFunc("GET /status", p.getStatus)
	mux.HandleFunc("GET /pool", p.requireStarted(p.getPool))
	mux.HandleFunc("GET /pool/size", p.requireStarted(p.getSize))
	mux.HandleFunc("POST /pool/size", p.requireStarted(p.postSize))
	mux.HandleFunc("POST "+machinePrefix+"terminate", p.requireStarted(p.postTerminate))
	mux.HandleFunc("POST "+machinePrefix+"detach", p.requireStarted(p.postDetach))
	mux.HandleFunc("POST "+machinePrefix+"attach", p.requireStarted(p.postAttach))
	mux.HandleFunc("POST "+machinePrefix+"serviceState", p.requireStarted(p.postServiceState))
	mux.HandleFunc("POST "+machinePrefix+"membershipStatus", p.requireStarted(p.postMembership))
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { p.serveRequest(w, r, mux) })
}

const maxBody = 16 << 20

// serveRequest records a request, checks the credentials, and injects a fault or serves the request.
func (p *Pool) serveRequest(w http.ResponseWriter, r *http.Request, next http.Handler) {
	body, err := io.ReadAll(io.LimitReader(r.Body, maxBody))
	if err != nil {
		return
	}
	r.Body = io.NopCloser(bytes.NewReader(body))
	p.mu.Lock()
	if !p.opts.SkipRequestLog {
		p.requests = append(p.requests, Request{
			Method: r.Method, Path: r.URL.EscapedPath(), Query: r.URL.RawQuery, Header: r.Header.Clone(), Body: string(body), At: time.Now(),
		})
	}
	fault := p.takeRequestFaultLocked(r)
	p.mu.Unlock()
	if !p.isAuthorized(r) {
		w.Header().Set("WWW-Authenticate", `Basic realm="cloudpool"`)
		w.WriteHeader(http.StatusUnauthorized)
		return
	}
	if fault == nil {
		next.ServeHTTP(w, r)
		return
	}
	if fault.Kind == LoseResponse {
		next.ServeHTTP(httptest.NewRecorder(), r)
		panic(http.ErrAbortHandler)
	}
	fault.writeFaultyResponse(w, r)
}

func (p *Pool) isAuthorized(r *http.Request) bool {
	same := func(a, b string) bool { return subtle.ConstantTimeCompare([]byte(a), []byte(b)) == 1 }
	switch {
	case p.opts.Token != "":
		return same(r.Header.Get("Authorization"), "Bearer "+p.opts.Token)
	case p.opts.User != "":
		user, password, ok := r.BasicAuth()
		return ok && same(user, p.opts.User) && same(password, p.opts.Password)
	}
	return true
}

func (p *Pool) setStarted(started bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.started = started
	if started {
		p.triggerResize()
	}
}

func (p *Pool) requireStarted(next http.HandlerFunc) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		p.mu.Lock()
		started := p.started
		p.mu.Unlock()
		if !started {
			writeError(w, http.StatusInternalServerError, "attempt to invoke cloudpool before being started")
			return
		}
		next(w, r)
	}
}

func writeJSON(w http.ResponseWriter, body any) {
	raw, err := json.MarshalIndent(body, "", "  ")
	if err != nil {
		writeError(w, http.StatusInternalServerError, "%s", err)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_, _ = w.Write(raw)
}

func writeError(w http.ResponseWriter, code int, format string, a ...any) {
	raw, _ := json.MarshalIndent(struct {
		Message string `json:"message"`
		Detail  string `json:"detail"`
	}{Message: fmt.Sprintf(format, a...)}, "", "  ")
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_, _ = w.Write(raw)
}

// noConfigMessage is the error of a pool without configuration.
const noConfigMessage = "no cloud pool configuration has been set"

func (p *Pool) postStart(w http.ResponseWriter, _ *http.Request) {
	p.mu.Lock()
	configured := p.config != nil
	p.mu.Unlock()
	if !configured {
		writeError(w, http.StatusBadRequest, "attempt to start cloudpool before being configured")
		return
	}
	p.setStarted(true)
	w.WriteHeader(http.StatusOK)
}

func (p *Pool) getConfig(w http.ResponseWriter, _ *http.Request) {
	p.mu.Lock()
	config := p.config
	p.mu.Unlock()
	if config == nil {
		writeError(w, http.StatusNotFound, noConfigMessage)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_, _ = w.Write(config)
}

func (p *Pool) postConfig(w http.ResponseWriter, r *http.Request) {
	raw, err := io.ReadAll(r.Body)
	if err != nil || !json.Valid(raw) {
		writeError(w, http.StatusBadRequest, "illegal input: not a JSON document")
		return
	}
	p.mu.Lock()
	p.config = raw
	p.mu.Unlock()
	w.WriteHeader(http.StatusOK)
}

func (p *Pool) getStatus(w http.ResponseWriter, _ *http.Request) {
	p.mu.Lock()
	started, configured := p.started, p.config != nil
	p.mu.Unlock()
	writeJSON(w, map[string]bool{"started": started, "configured": configured})
}

const timeFormat = "2006-01-02T15:04:05.000000Z"

func (p *Pool) getPool(w http.ResponseWriter, _ *http.Request) {
	p.mu.Lock()
	o := p.cachedObservationLocked()
	machines := append([]Machine{}, o.machines...)
	p.mu.Unlock()
	writeJSON(w, map[string]any{"timestamp": o.at.Format(timeFormat), "machines": machines})
}

func (p *Pool) getSize(w http.ResponseWriter, _ *http.Request) {
	p.mu.Lock()
	o, desired := p.cachedObservationLocked(), p.desired
	p.mu.Unlock()
	allocated, active := 0, 0
	for _, m := range o.machines {
		if m.State.IsAllocated() {
			allocated++
		}
		if m.isActive() {
			active++
		}
	}
	writeJSON(w, map[string]any{
		"timestamp": o.at.Format(timeFormat), "desiredSize": desired, "allocated": allocated, "active": active,
	})
}

// parseBody parses a body roughly as Gson does: numbers may be strings, and are truncated to integers.
func parseBody(w http.ResponseWriter, r *http.Request) map[string]any {
	raw, err := io.ReadAll(r.Body)
	var body map[string]any
	if err != nil || json.Unmarshal(raw, &body) != nil {
		writeError(w, http.StatusBadRequest, "illegal input: not a JSON object")
		return nil
	}
	if body == nil {
		body = map[string]any{}
	}
	return body
}

func parseNumber(v any) (number int, ok bool) {
	switch v := v.(type) {
	case nil:
		return 0, true
	case float64:
		return int(v), true
	case string:
		n, err := strconv.Atoi(v)
		return n, err == nil
	}
	return 0, false
}

func (p *Pool) postSize(w http.ResponseWriter, r *http.Request) {
	body := parseBody(w, r)
	if body == nil {
		return
	}
	n, ok := parseNumber(body["desiredSize"])
	if !ok || n < 0 {
		writeError(w, http.StatusBadRequest, "illegal input: negative desired pool size")
		return
	}
	p.mu.Lock()
	p.desired = n
	p.mu.Unlock()
	p.triggerResize()
	w.WriteHeader(http.StatusOK)
}

// findMemberLocked finds a machine that is allocated according to the cache. The second result is the cached machine.
func (p *Pool) findMemberLocked(id string) (current, observed *Machine) {
	for _, m := range p.cachedObservationLocked().machines {
		if m.ID == id && m.State.IsAllocated() {
			return p.findMachineLocked(id), &m
		}
	}
	return nil, nil
}

// changeMachine calls do with the machine in a body.
func (p *Pool) changeMachine(w http.ResponseWriter, body map[string]any, evict bool, do func(*Machine)) {
	id, _ := body["machineId"].(string)
	if id == "" {
		id = "null"
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	m, seen := p.findMemberLocked(id)
	switch {
	case m == nil && seen != nil:
		w.WriteHeader(http.StatusOK) // the cloud accepts this
	case seen == nil:
		writeError(w, http.StatusNotFound, "unrecognized machine: machine %s is not a pool member", id)
	case evict && !seen.Membership.Evictable:
		writeError(w, http.StatusBadGateway, "failure to process request: machine %s cannot be evicted: prevented by its membership status", id)
	default:
		do(m)
		p.notifyWaitersLocked()
		w.WriteHeader(http.StatusOK)
	}
}

func (p *Pool) postTerminate(w http.ResponseWriter, r *http.Request) {
	p.endMembership(w, r, p.startTerminationLocked)
}

func (p *Pool) postDetach(w http.ResponseWriter, r *http.Request) {
	p.endMembership(w, r, p.detachMachineLocked)
}

// endMembership ends a membership, with the given function.
func (p *Pool) endMembership(w http.ResponseWriter, r *http.Request, end func(*Machine)) {
	body := parseBody(w, r)
	if body == nil {
		return
	}
	p.changeMachine(w, body, true, func(m *Machine) {
		fails := p.hasFaultLocked(TerminationFails, m.ID)
		end(m)
		if decrement, _ := body["decrementDesiredSize"].(bool); decrement && !fails {
			p.desired = max(0, p.desired-1)
		}
	})
	p.triggerResize()
}

func (p *Pool) postAttach(w http.ResponseWriter, r *http.Request) {
	body := parseBody(w, r)
	if body == nil {
		return
	}
	id, _ := body["machineId"].(string)
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.attachMachineLocked(id) {
		writeError(w, http.StatusNotFound, "unrecognized machine: no machine %s exists", id)
		return
	}
	w.WriteHeader(http.StatusOK)
}

func (p *Pool) postServiceState(w http.ResponseWriter, r *http.Request) {
	body := parseBody(w, r)
	if body == nil {
		return
	}
	state, _ := body["serviceState"].(string)
	if !slices.Contains([]string{"BOOTING", "IN_SERVICE", "UNHEALTHY", "OUT_OF_SERVICE", "UNKNOWN"}, state) {
		writeError(w, http.StatusInternalServerError, "internal error on POST /pool/serviceState: null")
		return
	}
	p.changeMachine(w, body, false, func(m *Machine) { m.ServiceState = state })
}

func (p *Pool) postMembership(w http.ResponseWriter, r *http.Request) {
	body := parseBody(w, r)
	if body == nil {
		return
	}
	status, _ := body["membershipStatus"].(map[string]any)
	is := func(key string) bool {
		v, ok := status[key].(bool)
		return v || !ok
	}
	p.changeMachine(w, body, false, func(m *Machine) { m.Membership = Membership{is("active"), is("evictable")} })
	p.triggerResize()
}
