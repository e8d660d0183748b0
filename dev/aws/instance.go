package aws

import (
	"crypto/rand"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
	"time"
)

// The paths of the metadata service.
const (
	TokenPath     = "/latest/api/token"
	SpotPath      = "/latest/meta-data/spot/instance-action"
	RebalancePath = "/latest/meta-data/events/recommendations/rebalance"
	EventsPath    = "/latest/meta-data/events/maintenance/scheduled"
	HistoryPath   = "/latest/meta-data/events/maintenance/history"
	ASGPath       = "/latest/meta-data/autoscaling/target-lifecycle-state"
	rolePath      = "/latest/meta-data/iam/security-credentials/"
)

// maxTokenTTL is the longest lifetime of a token, in seconds.
const maxTokenTTL = 21600

// Instance is an EC2 instance with its metadata service.
type Instance struct {
	ID string

	server *httptest.Server

	mu        sync.Mutex
	metadata  map[string]string    // by path; a missing path is 404
	tokens    map[string]time.Time // and when they expire
	tokenTTL  time.Duration        // replaces a longer requested one; 0 does not
	clock     time.Duration        // ahead of the real time
	faults    map[string]Fault     // by path
	requests  map[string]int       // by method and path
	forwarded bool                 // a request had X-Forwarded-For
}

// Fault replaces the response for a path.
type Fault func(w http.ResponseWriter, r *http.Request)

// Event is an entry of the list of scheduled events.
type Event struct {
	NotBefore   string
	Code        string
	Description string
	EventID     string `json:"EventId"`
	NotAfter    string
	State       string
}

// StartInstance starts the metadata service of an instance. The caller must close it.
func StartInstance(id string) *Instance {
	i := &Instance{
		ID: id, tokens: map[string]time.Time{}, faults: map[string]Fault{}, requests: map[string]int{},
		metadata: map[string]string{
			EventsPath: "[]", HistoryPath: "[]", "/latest/meta-data/instance-id": id, "/latest/meta-data/": "ami-id\ninstance-id\n",
			"/latest/meta-data/placement/region": Region, "/latest/meta-data/services/domain": "amazonaws.com",
			rolePath: "node-role",
			rolePath + "node-role": encode(map[string]string{
				"Code": "Success", "Type": "AWS-HMAC", "AccessKeyId": AccessKeyID, "SecretAccessKey": secretKey, "Token": sessionToken,
				"Expiration": time.Now().Add(6 * time.Hour).UTC().Format(time.RFC3339),
			}),
		},
	}
	i.server = httptest.NewServer(i)
	return i
}

// Close stops the metadata service.
func (i *Instance) Close() {
	i.server.CloseClientConnections()
	i.server.Close()
}

// URL returns the endpoint of the metadata service.
func (i *Instance) URL() string { return i.server.URL }

// Set sets the document at a path; an empty one removes it.
func (i *Instance) Set(path, document string) {
	i.mu.Lock()
	defer i.mu.Unlock()
	if document == "" {
		delete(i.metadata, path)
		return
	}
	i.metadata[path] = document
}

// SetSpotAction announces the interruption of the Spot instance.
func (i *Instance) SetSpotAction(action string, at time.Time) {
	i.Set(SpotPath, encode(map[string]string{"action": action, "time": at.UTC().Format(time.RFC3339)}))
}

// Recommend recommends to replace the Spot instance.
func (i *Instance) Recommend(at time.Time) {
	i.Set(RebalancePath, encode(map[string]string{"noticeTime": at.UTC().Format(time.RFC3339)}))
}

// SetEvents sets the scheduled events.
func (i *Instance) SetEvents(events ...Event) {
	i.Set(EventsPath, encode(append([]Event{}, events...)))
}

// Cancel moves the scheduled events to the history.
func (i *Instance) Cancel(events ...Event) {
	for k := range events {
		events[k].State, events[k].Description = "canceled", "[Canceled] "+events[k].Description
	}
	i.Set(HistoryPath, encode(events))
	i.SetEvents()
}

// EventTime formats a time as the list of scheduled events does.
func EventTime(t time.Time) string { return t.UTC().Format("2 Jan 2006 15:04:05 GMT") }

// SetFault replaces the responses for a path; nil ends that.
func (i *Instance) SetFault(path string, f Fault) {
	i.mu.Lock()
	defer i.mu.Unlock()
	if f == nil {
		delete(i.faults, path)
		return
	}
	i.faults[path] = f
}

// SetTokenTTL limits the lifetime of the tokens that are requested from now on.
func (i *Instance) SetTokenTTL(ttl time.Duration) {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.tokenTTL = ttl
}

// ForgetTokens makes all tokens invalid.
func (i *Instance) ForgetTokens() {
	i.mu.Lock()
	defer i.mu.Unlock()
	clear(i.tokens)
}

// SetClockAhead sets how far the clock of the service is ahead of the real time.
func (i *Instance) SetClockAhead(d time.Duration) {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.clock = d
}

// Requests returns the number of requests with a method for a path.
func (i *Instance) Requests(method, path string) int {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.requests[method+" "+path]
}

// WasForwarded reports whether a request had the header X-Forwarded-For.
func (i *Instance) WasForwarded() bool {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.forwarded
}

// ServeHTTP serves one request to the metadata service.
func (i *Instance) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	i.mu.Lock()
	i.requests[r.Method+" "+r.URL.Path]++
	i.forwarded = i.forwarded || r.Header.Get("X-Forwarded-For") != ""
	fault, clock := i.faults[r.URL.Path], i.clock
	i.mu.Unlock()
	w.Header().Set("Server", "EC2ws")
	w.Header().Set("Date", time.Now().Add(clock).UTC().Format(http.TimeFormat))
	w.Header().Set("Content-Type", "text/plain")
	switch {
	case fault != nil:
		fault(w, r)
	case r.URL.Path == TokenPath:
		i.serveToken(w, r)
	case r.Method != http.MethodGet && r.Method != http.MethodHead:
		writeStatus(w, http.StatusMethodNotAllowed)
	case !i.accepts(r.Header.Get("X-Aws-Ec2-Metadata-Token")):
		writeStatus(w, http.StatusUnauthorized)
	default:
		i.mu.Lock()
		document, found := i.metadata[r.URL.Path]
		i.mu.Unlock()
		if !found {
			writeStatus(w, http.StatusNotFound)
			return
		}
		_, _ = fmt.Fprint(w, document) // the client may have stopped reading
	}
}

// serveToken serves a request for a session token.
func (i *Instance) serveToken(w http.ResponseWriter, r *http.Request) {
	seconds, err := strconv.Atoi(r.Header.Get("X-Aws-Ec2-Metadata-Token-Ttl-Seconds"))
	switch {
	case r.Method != http.MethodPut:
		writeStatus(w, http.StatusMethodNotAllowed)
		return
	case r.Header.Get("X-Forwarded-For") != "":
		writeStatus(w, http.StatusForbidden)
		return
	case err != nil || seconds < 1 || seconds > maxTokenTTL:
		writeStatus(w, http.StatusBadRequest)
		return
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	ttl := time.Duration(seconds) * time.Second
	if i.tokenTTL > 0 {
		ttl = min(ttl, i.tokenTTL)
	}
	token := rand.Text() + rand.Text() + "=="
	i.tokens[token] = time.Now().Add(ttl)
	w.Header().Set("X-Aws-Ec2-Metadata-Token-Ttl-Seconds", strconv.Itoa(int(ttl.Seconds())))
	_, _ = fmt.Fprint(w, token) // the client may have stopped reading
}

func (i *Instance) accepts(token string) bool {
	i.mu.Lock()
	defer i.mu.Unlock()
	return time.Now().Before(i.tokens[token])
}

// writeStatus writes an error page like the real service.
func writeStatus(w http.ResponseWriter, status int) {
	w.Header().Set("Content-Type", "text/html")
	w.WriteHeader(status)
	text := fmt.Sprintf("%d - %s", status, http.StatusText(status))
	_, _ = fmt.Fprintf(w, strings.TrimSpace(`
<?xml version="1.0" encoding="iso-8859-1"?>
<!DOCTYPE html PUBLIC "-//W3C//DTD XHTML 1.0 Transitional//EN" "http://www.w3.org/TR/xhtml1/DTD/xhtml1-transitional.dtd">
<html xmlns="http://www.w3.org/1999/xhtml" xml:lang="en" lang="en">
 <head><title>%s</title></head>
 <body><h1>%s</h1></body>
</html>`), text, text)
}

func encode(v any) string {
	raw, err := json.Marshal(v)
	if err != nil {
		panic(err) // only maps and structs of strings
	}
	return string(raw)
}
