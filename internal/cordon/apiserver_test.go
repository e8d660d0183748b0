package cordon

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"reflect"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/slipway-dev/slipway/internal/kubeapi"
	"github.com/slipway-dev/slipway/internal/testing/must"
)

const (
	nodeName = "node-1"
	nodeUID  = "uid-1"
)

// apiServer serves one Node like an API server: GET, JSON merge patch, and strategic merge patch of the status. It
// answers 409 to an outdated resourceVersion, and refuses everything else.
type apiServer struct {
	t reporter

	mu       sync.Mutex
	node     map[string]any
	version  int
	requests []string

	// before is called before each request, and may change the node.
	before func(method string)
	// crash is the request, counted from 1, when the client dies: before it if negative, after it if positive.
	crash int
	// noStatus forbids patches of the status.
	noStatus bool
}

// reporter is the common part of testing.T and rapid.T.
type reporter interface {
	must.T
	Error(args ...any)
	Errorf(format string, args ...any)
}

func newAPIServer(t reporter) *apiServer {
	s := &apiServer{t: t, version: 1}
	s.node = map[string]any{
		"metadata": map[string]any{"name": nodeName, "uid": nodeUID, "resourceVersion": "1"},
		"spec":     map[string]any{"providerID": "azure:///x", "podCIDR": "10.0.0.0/24"},
		"status": map[string]any{"conditions": []any{
			map[string]any{"type": "Ready", "status": "True", "reason": "KubeletReady"},
		}},
	}
	return s
}

// client returns a client that calls the server without a socket.
func (s *apiServer) client() *kubeapi.Client {
	base := &url.URL{Scheme: "http", Host: "apiserver.test"}
	return kubeapi.NewClient(base, &http.Client{Transport: s}, "test")
}

var errCrash = errors.New("the process was killed")

// RoundTrip serves a request in this process, or kills the client before or after it.
func (s *apiServer) RoundTrip(r *http.Request) (*http.Response, error) {
	switch s.crash {
	case -1:
		return nil, errCrash
	case 1:
		s.crash = -1 // and before every later request
		s.serve(r)
		return nil, errCrash
	}
	if s.crash > 0 {
		s.crash--
	} else if s.crash < 0 {
		s.crash++
	}
	return s.serve(r), nil
}

func (s *apiServer) serve(r *http.Request) *http.Response {
	w := httptest.NewRecorder()
	s.ServeHTTP(w, r)
	response := w.Result()
	response.Request = r
	return response
}

func (s *apiServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if s.before != nil {
		s.before(r.Method)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.requests = append(s.requests, r.Method+" "+r.URL.Path)
	status := r.URL.Path == "/api/v1/nodes/"+nodeName+"/status"
	if !status && r.URL.Path != "/api/v1/nodes/"+nodeName {
		s.fail(w, http.StatusNotFound, "NotFound")
		return
	}
	switch kind := r.Header.Get("Content-Type"); {
	case status && s.noStatus:
		s.fail(w, http.StatusForbidden, "Forbidden")
		return
	case r.Method == http.MethodGet:
	case r.Method == http.MethodPatch && status && kind == "application/strategic-merge-patch+json",
		r.Method == http.MethodPatch && !status && kind == "application/merge-patch+json":
		if !s.servePatch(w, r, status) {
			return
		}
	default:
		s.t.Errorf("%s %s of %s is an unexpected request", r.Method, r.URL, kind)
		s.fail(w, http.StatusMethodNotAllowed, "MethodNotAllowed")
		return
	}
	w.Header().Set("Content-Type", "application/json")
	if err := json.NewEncoder(w).Encode(s.node); err != nil {
		s.t.Error(err)
	}
}

func (s *apiServer) servePatch(w http.ResponseWriter, r *http.Request, status bool) bool {
	raw, err := io.ReadAll(r.Body)
	if err != nil {
		s.t.Error(err)
	}
	var patch map[string]any
	if err := json.Unmarshal(raw, &patch); err != nil {
		s.t.Errorf("patch %s: %v", raw, err)
	}
	version, ok := subMap(patch, "metadata")["resourceVersion"]
	if !ok {
		s.t.Errorf("patch %s has no resourceVersion", raw)
	}
	if version != strconv.Itoa(s.version) {
		s.fail(w, http.StatusConflict, "Conflict")
		return false
	}
	next := clone(s.node)
	if status {
		mergeConditions(next, patch)
	} else {
		delete(patch, "status")
		next = mergePatch(next, patch).(map[string]any)
	}
	if twice := duplicateTaint(next); twice != "" {
		s.t.Errorf("patch %s: taint %s is there twice", raw, twice)
		s.fail(w, http.StatusUnprocessableEntity, "Invalid")
		return false
	}
	s.store(next)
	return true
}

// store stores the node with a new resourceVersion, unless nothing has changed.
func (s *apiServer) store(next map[string]any) {
	if reflect.DeepEqual(next, s.node) {
		return
	}
	s.version++
	subMap(next, "metadata")["resourceVersion"] = strconv.Itoa(s.version)
	s.node = next
}

// edit changes the node directly.
func (s *apiServer) edit(change func(node map[string]any)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	next := clone(s.node)
	change(next)
	s.store(clone(next))
}

func (s *apiServer) fail(w http.ResponseWriter, code int, reason string) {
	w.WriteHeader(code)
	fmt.Fprintf(w, `{"kind":"Status","reason":%q,"message":"%s, says the test's server","code":%d}`, reason, reason, code)
}

// node returns the node in kubeapi types.
func (s *apiServer) currentNode() *kubeapi.Node {
	s.mu.Lock()
	defer s.mu.Unlock()
	raw, err := json.Marshal(s.node)
	must.NoError(s.t, err)
	var n kubeapi.Node
	must.NoError(s.t, json.Unmarshal(raw, &n))
	return &n
}

// countWrites returns the number of patches since the last call.
func (s *apiServer) countWrites() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := 0
	for _, r := range s.requests {
		if r[:3] != "GET" {
			n++
		}
	}
	s.requests = nil
	return n
}

// mergePatch applies RFC 7386.
func mergePatch(target, patch any) any {
	changes, ok := patch.(map[string]any)
	if !ok {
		return patch
	}
	out, ok := target.(map[string]any)
	if !ok {
		out = map[string]any{}
	}
	for key, value := range changes {
		if value == nil {
			delete(out, key)
		} else {
			out[key] = mergePatch(out[key], value)
		}
	}
	return out
}

// mergeConditions applies a strategic merge to a list with merge key type.
func mergeConditions(node, patch map[string]any) {
	status := subMap(node, "status")
	conditions, _ := status["conditions"].([]any)
	changes, _ := subMap(patch, "status")["conditions"].([]any)
	for _, change := range changes {
		c := change.(map[string]any)
		i := slices.IndexFunc(conditions, func(on any) bool { return on.(map[string]any)["type"] == c["type"] })
		switch {
		case c["$patch"] == "delete" && i >= 0:
			conditions = slices.Delete(conditions, i, i+1)
		case c["$patch"] == "delete":
		case i >= 0:
			conditions[i] = mergePatch(conditions[i], c)
		default:
			conditions = append(conditions, c)
		}
	}
	status["conditions"] = conditions
}

func duplicateTaint(node map[string]any) string {
	seen := map[string]bool{}
	taints, _ := subMap(node, "spec")["taints"].([]any)
	for _, taint := range taints {
		t := taint.(map[string]any)
		id := fmt.Sprint(t["key"], ":", t["effect"])
		if seen[id] {
			return id
		}
		seen[id] = true
	}
	return ""
}

// subMap returns a nested map, and creates it if it is missing.
func subMap(in map[string]any, key string) map[string]any {
	m, ok := in[key].(map[string]any)
	if !ok {
		m = map[string]any{}
		in[key] = m
	}
	return m
}

func clone(in map[string]any) map[string]any {
	raw, err := json.Marshal(in)
	if err != nil {
		panic(err) // cannot happen: the values are the test's own
	}
	var out map[string]any
	if err := json.Unmarshal(raw, &out); err != nil {
		panic(err)
	}
	return out
}

// Changes by other people.

func (s *apiServer) foreignCordon(on bool) {
	s.edit(func(n map[string]any) {
		if on {
			subMap(n, "spec")["unschedulable"] = true
		} else {
			delete(subMap(n, "spec"), "unschedulable")
		}
	})
}

// foreignTaint sets a taint by key and effect; an empty value removes it.
func (s *apiServer) foreignTaint(key, effect, value string) {
	s.edit(func(n map[string]any) {
		spec := subMap(n, "spec")
		taints, _ := spec["taints"].([]any)
		taints = slices.DeleteFunc(taints, func(t any) bool {
			return t.(map[string]any)["key"] == key && t.(map[string]any)["effect"] == effect
		})
		if value != "" {
			taints = append(taints, map[string]any{"key": key, "value": value, "effect": effect})
		}
		spec["taints"] = taints
	})
}

// foreignLabel sets a label; an empty value removes it.
func (s *apiServer) foreignLabel(key, value string) {
	s.edit(func(n map[string]any) {
		if labels := subMap(subMap(n, "metadata"), "labels"); value != "" {
			labels[key] = value
		} else {
			delete(labels, key)
		}
	})
}

// foreignCondition sets a condition; an empty reason removes it.
func (s *apiServer) foreignCondition(kind, reason string) {
	s.edit(func(n map[string]any) {
		change := map[string]any{"type": kind, "$patch": "delete"}
		if reason != "" {
			change = map[string]any{
				"type": kind, "status": "True", "reason": reason, "message": "set by somebody else",
				"lastTransitionTime": time.Now().UTC().Format(time.RFC3339),
			}
		}
		mergeConditions(n, map[string]any{"status": map[string]any{"conditions": []any{change}}})
	})
}

func (s *apiServer) annotate(key, value string) {
	s.edit(func(n map[string]any) { subMap(subMap(n, "metadata"), "annotations")[key] = value })
}
