package openstack_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
)

// novaProxy is a proxy before the real Nova that can change Nova's answers. It simulates faults between a provider and a
// cloud, and faults that Nova's fake driver cannot produce.
type novaProxy struct {
	*httptest.Server
	forward *httputil.ReverseProxy

	mu sync.Mutex
	// instead answers instead of Nova when it returns true.
	instead func(w http.ResponseWriter, r *http.Request) bool
	// rewrite changes the data of a server, in lists and in single answers.
	rewrite  func(server map[string]any)
	cut      bool // every answer is cut off in the middle
	requests []seenRequest
}

// seenRequest is a request that the proxy received.
type seenRequest struct {
	method, path string
	token        string
	body         []byte
}

func newNovaProxy(t *testing.T, nova string) *novaProxy {
	t.Helper()
	u, err := url.Parse(nova)
	if err != nil {
		t.Fatal(err)
	}
	f := &novaProxy{}
	f.forward = &httputil.ReverseProxy{
		Rewrite:        func(r *httputil.ProxyRequest) { r.SetURL(&url.URL{Scheme: u.Scheme, Host: u.Host}) },
		ModifyResponse: f.modify,
		ErrorHandler:   func(http.ResponseWriter, *http.Request, error) { panic(http.ErrAbortHandler) },
	}
	f.Server = httptest.NewServer(f)
	t.Cleanup(f.Close)
	return f
}

// Compute returns the address to use instead of Nova's.
func (f *novaProxy) Compute() string { return f.URL + "/v2.1/" }

func (f *novaProxy) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		panic(http.ErrAbortHandler)
	}
	r.Body = io.NopCloser(bytes.NewReader(body))
	f.mu.Lock()
	f.requests = append(f.requests, seenRequest{r.Method, r.URL.Path, r.Header.Get("X-Auth-Token"), body})
	instead := f.instead
	f.mu.Unlock()
	if instead != nil && instead(w, r) {
		return
	}
	f.forward.ServeHTTP(w, r)
}

// count counts the requests so far with the method and a matching path.
func (f *novaProxy) count(method, path string) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	n := 0
	for _, r := range f.requests {
		if r.method == method && regexp.MustCompile(path).MatchString(r.path) {
			n++
		}
	}
	return n
}

// seen returns the requests so far.
func (f *novaProxy) seen() []seenRequest {
	f.mu.Lock()
	defer f.mu.Unlock()
	return append([]seenRequest(nil), f.requests...)
}

// setFaults sets the changes of Nova's answers. Zero values forward Nova's own answers.
func (f *novaProxy) setFaults(instead func(http.ResponseWriter, *http.Request) bool, rewrite func(map[string]any), cut bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.instead, f.rewrite, f.cut = instead, rewrite, cut
}

func (f *novaProxy) modify(r *http.Response) error {
	f.mu.Lock()
	rewrite, cut := f.rewrite, f.cut
	f.mu.Unlock()
	if rewrite == nil && !cut || r.StatusCode != http.StatusOK && !cut {
		return nil
	}
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return err
	}
	if rewrite != nil && strings.HasPrefix(r.Header.Get("Content-Type"), "application/json") {
		body = changeServers(body, rewrite)
	}
	r.Header.Set("Content-Length", strconv.Itoa(len(body)))
	r.ContentLength = int64(len(body))
	if cut {
		body = body[:len(body)/2]
	}
	r.Body = io.NopCloser(bytes.NewReader(body))
	return nil
}

// changeServers applies a change to each server of an answer.
func changeServers(body []byte, change func(map[string]any)) []byte {
	var answer struct {
		Server  map[string]any   `json:"server,omitempty"`
		Servers []map[string]any `json:"servers,omitempty"`
		Links   []any            `json:"servers_links,omitempty"`
	}
	if json.Unmarshal(body, &answer) != nil || answer.Server == nil && answer.Servers == nil {
		return body
	}
	if answer.Server != nil {
		change(answer.Server)
	}
	for _, s := range answer.Servers {
		change(s)
	}
	changed, err := json.Marshal(answer)
	if err != nil {
		return body
	}
	return changed
}

// always answers every request in the same way.
func always(code int, contentType, body string, header map[string]string) func(http.ResponseWriter, *http.Request) bool {
	return func(w http.ResponseWriter, _ *http.Request) bool {
		w.Header().Set("Content-Type", contentType)
		for k, v := range header {
			w.Header().Set(k, v)
		}
		w.WriteHeader(code)
		_, _ = io.WriteString(w, body)
		return true
	}
}

const (
	htmlType = "text/html; charset=UTF-8"
	jsonType = "application/json; charset=UTF-8"
	page     = "<html><head><title>%d</title></head><body><h1>%s</h1></body></html>"
)

func html(code int) func(http.ResponseWriter, *http.Request) bool {
	return always(code, htmlType, fmt.Sprintf(page, code, http.StatusText(code)), nil)
}

// novaError answers with an error in Nova's format.
func novaError(code int, kind, message string) func(http.ResponseWriter, *http.Request) bool {
	return always(code, jsonType, fmt.Sprintf(`{%q: {"code": %d, "message": %q}}`, kind, code, message), nil)
}

func throttled(after time.Duration) func(http.ResponseWriter, *http.Request) bool {
	return always(http.StatusTooManyRequests, jsonType, `{"overLimit": {"code": 429, "message": "This request was rate-limited."}}`,
		map[string]string{"Retry-After": strconv.Itoa(int(after.Seconds()))})
}

func abort(http.ResponseWriter, *http.Request) bool { panic(http.ErrAbortHandler) }
