// Package notices_test runs each example against a fake of its cloud, through the agent's source.
package notices_test

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/slipway-dev/slipway/internal/notice"
	"github.com/slipway-dev/slipway/internal/notice/external"
	"github.com/slipway-dev/slipway/internal/notice/poll"
	"github.com/slipway-dev/slipway/internal/testing/check"
	"github.com/slipway-dev/slipway/internal/testing/must"
)

// program runs an example as the agent does.
type program struct {
	t         *testing.T
	source    *external.Source
	snapshots chan notice.Snapshot
	reads     chan error // nil is a good read
}

// FetchSucceeded implements poll.Observer.
func (p *program) FetchSucceeded(string, time.Duration) { p.reads <- nil }

// FetchFailed implements poll.Observer.
func (p *program) FetchFailed(_ string, err error, _ poll.Class) { p.reads <- err }

// awaitReads waits for three more reads of the example that fail, or that do not.
func (p *program) awaitReads(failed bool) {
	p.t.Helper()
	timeout := time.After(time.Minute)
	for n := 0; n < 3; {
		select {
		case err := <-p.reads:
			if (err != nil) == failed {
				n++
			}
		case <-timeout:
			p.t.Fatalf("no 3 reads that fail (%t) within 1 minute", failed)
		}
	}
}

// run starts an example. The programs that it needs must be installed.
func run(t *testing.T, script string, needs ...string) *program {
	t.Helper()
	for _, name := range append(needs, "sh") {
		if _, err := exec.LookPath(name); err != nil {
			t.Skipf("%s is not installed", name)
		}
	}
	path := must.Get(filepath.Abs(script))(t)
	p := &program{t: t, snapshots: make(chan notice.Snapshot, 100), reads: make(chan error, 10_000)}
	var err error
	p.source, err = external.NewSource(external.Options{
		Name: strings.TrimSuffix(script, ".sh"), Location: "exec:" + path, Resource: "vm-1", Interval: 20 * time.Millisecond, Observer: p,
	})
	must.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	var group sync.WaitGroup
	group.Go(func() { p.source.Run(ctx, func(s notice.Snapshot) { p.snapshots <- s }) })
	t.Cleanup(group.Wait)
	t.Cleanup(cancel)
	return p
}

// await waits for the next snapshot with this number of notices, and returns it.
func (p *program) await(notices int) notice.Snapshot {
	p.t.Helper()
	timeout := time.After(time.Minute)
	for {
		select {
		case s := <-p.snapshots:
			if len(s.Unreadable)+len(s.Warnings) > 0 {
				p.t.Errorf("problems: %+v %+v", s.Unreadable, s.Warnings)
			}
			if len(s.Notices) == notices {
				return s
			}
		case <-timeout:
			p.t.Fatalf("no snapshot with %d notices within 1 minute", notices)
		}
	}
}

// metadata is a metadata service with one response for each path.
type metadata struct {
	mu        sync.Mutex
	responses map[string]string // status 200; a missing path is 404
	broken    bool
	headers   http.Header // of the last GET
}

func (m *metadata) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if r.Method == http.MethodGet {
		m.headers = r.Header
	}
	body, found := m.responses[r.Method+" "+r.URL.Path]
	switch {
	case m.broken:
		http.Error(w, "broken", http.StatusInternalServerError)
	case !found:
		http.NotFound(w, r)
	default:
		fmt.Fprint(w, body)
	}
}

func (m *metadata) set(change func()) {
	m.mu.Lock()
	defer m.mu.Unlock()
	change()
}

func serve(t *testing.T) *metadata {
	t.Helper()
	m := &metadata{responses: map[string]string{}}
	server := httptest.NewServer(m)
	t.Cleanup(server.Close)
	t.Setenv("METADATA_URL", server.URL)
	t.Setenv("STATE_DIR", t.TempDir())
	return m
}

// wantPreempt wants one Preempt at a time, that a failing cloud does not end.
func (p *program) wantPreempt(m *metadata, at time.Time) {
	p.t.Helper()
	n := p.await(1).Notices[0]
	if n.Type != notice.Preempt || !n.NotBefore.Equal(at) {
		p.t.Errorf("got %+v, want a Preempt at %v", n, at)
	}
	m.set(func() { m.broken = true })
	p.awaitReads(true)
	if len(p.snapshots) > 0 {
		p.t.Errorf("a broken cloud changed the notices: %+v", <-p.snapshots)
	}
	m.set(func() { m.broken = false })
}

func TestAlibabaReleaseBecomesPreempt(t *testing.T) {
	m := serve(t)
	const path = "GET /latest/meta-data/instance/spot/termination-time"
	m.set(func() { m.responses["PUT /latest/api/token"] = "token-1" })
	p := run(t, "alibaba.sh", "curl")
	p.await(0)
	m.set(func() { m.responses[path] = "2026-12-05T18:02:00Z" })
	p.wantPreempt(m, time.Date(2026, 12, 5, 18, 2, 0, 0, time.UTC))
	p.awaitReads(false)
	m.set(func() { check.Is(t, "token-1", m.headers.Get("X-aliyun-ecs-metadata-token")) })
	m.set(func() { m.responses[path] = "" })
	p.await(0)
}

func TestTencentTerminationBecomesPreempt(t *testing.T) {
	m := serve(t)
	p := run(t, "tencent.sh", "curl")
	p.await(0)
	m.set(func() { m.responses["GET /latest/meta-data/spot/termination-time"] = "2026-12-05 18:02:33" })
	p.wantPreempt(m, time.Date(2026, 12, 5, 10, 2, 33, 0, time.UTC))
}

// writeProgram puts a program into a directory that is first in PATH. It also returns the directory.
func writeProgram(t *testing.T, name, script string) (dir string) {
	t.Helper()
	dir = t.TempDir()
	must.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte("#!/bin/sh\n"+script), 0o700))
	t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
	return dir
}

// TestVMotionIsFrozenAndAcknowledged uses a fake of vmtoolsd with the replies of vSphere 8.
func TestVMotionIsFrozenAndAcknowledged(t *testing.T) {
	t.Setenv("STATE_DIR", filepath.Join(t.TempDir(), "state"))
	dir := writeProgram(t, "vmtoolsd", `cd "$(dirname "$0")"
echo "$2" >>calls
case $2 in
*.register*) echo '{"version":"1.0.0", "result": true, "guaranteed": true, "uniqueToken": "525b5364-6caf", "notificationTimeoutInSec": 120 }' ;;
*.check-for-event*525b5364-6caf*)
  if mv event event.taken 2>/dev/null; then cat event.taken; else echo '{"version":"1.0.0", "result": true }'; fi ;;
*.ack-event*) echo '{"version":"1.0.0", "result": true, "operationId": 6279072692702276663,  "ackStatus": "ack_received" }' ;;
*) echo '{"version":"1.0.0", "result": false}'; exit 1 ;;
esac
`)
	event := func(text string) {
		must.NoError(t, os.WriteFile(filepath.Join(dir, "event.new"), []byte(text), 0o600))
		must.NoError(t, os.Rename(filepath.Join(dir, "event.new"), filepath.Join(dir, "event")))
	}
	p := run(t, "vsphere.sh", "sed")
	p.await(0)
	event(`{"version":"1.0.0", "result": true, "eventType": "start",  "opType": "host-migration", "eventGenTimeInSec": 1766730185, ` +
		`"notificationTimeoutInSec": 120, "destNotificationTimeoutInSec": 90, "notificationTypes": ["sla-miss"],  "operationId": 6279072692702276663 }`)
	n := p.await(1).Notices[0]
	if n.ID != "6279072692702276663" || n.Type != notice.Freeze || !n.LiveMigration || n.NotApprovable || n.NotBefore.Unix() != 1766730305 {
		t.Errorf("got %+v", n)
	}
	must.NoError(t, p.source.Approve(t.Context(), n.ID))
	calls := string(must.Get(os.ReadFile(filepath.Join(dir, "calls")))(t))
	check.Contains(t, calls, `vm-operation-notification.ack-event {"operationId": 6279072692702276663, "uniqueToken": "525b5364-6caf"}`)
	check.Is(t, 1, strings.Count(calls, ".register"))
	start := must.Get(os.ReadFile(filepath.Join(dir, "event.taken")))(t)
	must.NoError(t, os.WriteFile(filepath.Join(os.Getenv("STATE_DIR"), "token"), []byte("lost"), 0o600))
	p.await(0) // the end of the migration went to the lost registration
	event(string(start))
	p.await(1)
	event(`{"version":"1.0.0",  "result": true, "eventType": "end",  "opType": "host-migration", "opStatus": "success", ` +
		`"eventGenTimeInSec": 1766730200, "operationId": 6279072692702276663 }`)
	p.await(0)
}

// TestOCIPreemptionBecomesPreempt uses a fake of Oracle's command line, with one message for another instance.
func TestOCIPreemptionBecomesPreempt(t *testing.T) {
	m := serve(t)
	m.set(func() { m.responses["GET /opc/v2/instance/id"] = "ocid1.instance.mine" })
	t.Setenv("OCI_STREAM_ID", "ocid1.stream")
	t.Setenv("OCI_STREAM_ENDPOINT", "https://streaming.example.com")
	dir := writeProgram(t, "oci", `cd "$(dirname "$0")"
case "$*" in
*create-cursor*) echo '{"data": {"value": "cursor-0"}}' ;;
*"message get"*) cat messages ;;
esac
`)
	messages := func(instances ...string) {
		type message struct {
			Value string `json:"value"`
		}
		all := []message{{base64.StdEncoding.EncodeToString([]byte("not JSON"))}}
		for _, instance := range instances {
			text := fmt.Sprintf(`{"eventType":"com.oraclecloud.computeapi.instancepreemptionaction","eventTime":"2026-12-05T18:02:33.512Z",`+
				`"data":{"resourceId":%q,"additionalDetails":{"preemptionAction":"TERMINATE"}}}`, instance)
			all = append(all, message{base64.StdEncoding.EncodeToString([]byte(text))})
		}
		raw := must.Get(json.Marshal(map[string]any{"data": all, "opc-next-cursor": "cursor-1"}))(t)
		must.NoError(t, os.WriteFile(filepath.Join(dir, "messages.new"), raw, 0o600))
		must.NoError(t, os.Rename(filepath.Join(dir, "messages.new"), filepath.Join(dir, "messages")))
	}
	messages("ocid1.instance.other")
	p := run(t, "oci.sh", "curl", "jq")
	p.await(0)
	messages("ocid1.instance.other", "ocid1.instance.mine")
	n := p.await(1).Notices[0]
	if at := time.Date(2026, 12, 5, 18, 4, 33, 0, time.UTC); n.Type != notice.Preempt || !n.NotBefore.Equal(at) {
		t.Errorf("got %+v, want a Preempt at %v", n, at)
	}
	messages() // the notice stays, although the stream has moved on
	p.awaitReads(false)
	if len(p.snapshots) > 0 {
		t.Errorf("the notice changed: %+v", <-p.snapshots)
	}
}
