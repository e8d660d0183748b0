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

// apiServer serves one Node as an API server does: GET, JSON merge patch, and strategic merge patch of the status,
// each refused with 409 when it carries a resourceVersion that is not the current one. It takes nothing else.
type apiServer struct {
	t reporter

	mu       sync.Mutex
	node     map[string]any
	version  int
	requests []string

	// before is called ahead of each request, and may change the node through the apiServer's own methods.
	before func(method string)
	// crash says at which request, counted from 1, the client dies: ahead of it when negative, after it when positive.
	crash int
	// noStatus takes away the right to the status.
	noStatus bool
}

// reporter is what testing.T and rapid.T have in common here.
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

// client is a client of the server that needs no socket.
func (s *apiServer) client() *kubeapi.Client {
	base := &url.URL{Scheme: "http", Host: "apiserver.test"}
	return kubeapi.New(base, &http.Client{Transport: s}, "test")
}

var errCrash = errors.New("the process was killed")

// RoundTrip serves a request in this process, or kills the client before or after it.
func (s *apiServer) RoundTrip(r *http.Request) (*http.Response, error) {
	switch s.crash {
	case -1:
		return nil, errCrash
	case 1:
		s.crash = -1 // and nothing after it
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
		if !s.patch(w, r, status) {
			return
		}
	default:
		s.t.Errorf("%s %s of %s is no request of ours", r.Method, r.URL, kind)
		s.fail(w, http.StatusMethodNotAllowed, "MethodNotAllowed")
		return
	}
	w.Header().Set("Content-Type", "application/json")
	if err := json.NewEncoder(w).Encode(s.node); err != nil {
		s.t.Error(err)
	}
}

func (s *apiServer) patch(w http.ResponseWriter, r *http.Request, status bool) bool {
	raw, err := io.ReadAll(r.Body)
	if err != nil {
		s.t.Error(err)
	}
	var patch map[string]any
	if err := json.Unmarshal(raw, &patch); err != nil {
		s.t.Errorf("patch %s: %v", raw, err)
	}
	version, ok := dig(patch, "metadata")["resourceVersion"]
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

// store keeps a node under a new resourceVersion, unless nothing has changed.
func (s *apiServer) store(next map[string]any) {
	if reflect.DeepEqual(next, s.node) {
		return
	}
	s.version++
	dig(next, "metadata")["resourceVersion"] = strconv.Itoa(s.version)
	s.node = next
}

// edit changes the node behind everybody's back.
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

// read is the node as our types see it.
func (s *apiServer) read() *kubeapi.Node {
	s.mu.Lock()
	defer s.mu.Unlock()
	raw, err := json.Marshal(s.node)
	must.NoError(s.t, err)
	var n kubeapi.Node
	must.NoError(s.t, json.Unmarshal(raw, &n))
	return &n
}

// writes counts the requests that were to change something since the last call.
func (s *apiServer) writes() int {
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

// mergePatch is RFC 7386.
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

// mergeConditions is what strategic merge does to a list with merge key type.
func mergeConditions(node, patch map[string]any) {
	status := dig(node, "status")
	conditions, _ := status["conditions"].([]any)
	changes, _ := dig(patch, "status")["conditions"].([]any)
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
	taints, _ := dig(node, "spec")["taints"].([]any)
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

// dig returns a map inside a map, made if it is not there.
func dig(in map[string]any, key string) map[string]any {
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
		panic(err) // of the test's own values
	}
	var out map[string]any
	if err := json.Unmarshal(raw, &out); err != nil {
		panic(err)
	}
	return out
}

// What other people do to a node.

func (s *apiServer) foreignCordon(on bool) {
	s.edit(func(n map[string]any) {
		if on {
			dig(n, "spec")["unschedulable"] = true
		} else {
			delete(dig(n, "spec"), "unschedulable")
		}
	})
}

// foreignTaint sets a taint by key and effect, or with an empty value takes it off.
func (s *apiServer) foreignTaint(key, effect, value string) {
	s.edit(func(n map[string]any) {
		spec := dig(n, "spec")
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

// foreignLabel sets a label, or with an empty value takes it off.
func (s *apiServer) foreignLabel(key, value string) {
	s.edit(func(n map[string]any) {
		if labels := dig(dig(n, "metadata"), "labels"); value != "" {
			labels[key] = value
		} else {
			delete(labels, key)
		}
	})
}

// foreignCondition sets a condition, or with an empty reason takes it off.
func (s *apiServer) foreignCondition(kind, reason string) {
	s.edit(func(n map[string]any) {
		change := map[string]any{"type": kind, "$patch": "delete"}
		if reason != "" {
			change = map[string]any{
				"type": kind, "status": "True", "reason": reason, "message": "of somebody else's",
				"lastTransitionTime": time.Now().UTC().Format(time.RFC3339),
			}
		}
		mergeConditions(n, map[string]any{"status": map[string]any{"conditions": []any{change}}})
	})
}

func (s *apiServer) annotate(key, value string) {
	s.edit(func(n map[string]any) { dig(dig(n, "metadata"), "annotations")[key] = value })
}
