package gcp

import (
	"context"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// TestWireFormatIsThatOfComputeEngine covers the errors and headers that clients rely on.
func TestWireFormatIsThatOfComputeEngine(t *testing.T) {
	e := New(Options{})
	t.Cleanup(e.Close)
	e.AddVM("vm")
	server := httptest.NewServer(e.Handler())
	t.Cleanup(server.Close)
	get := func(key string, headers ...string) (status int, etag, body string) {
		r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, URL(server.URL, "vm")+"instance/"+key, nil)
		if err != nil {
			t.Fatal(err)
		}
		for _, h := range headers {
			r.Header.Set(h, "Google")
		}
		response, err := http.DefaultClient.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = response.Body.Close() }() // read only
		raw, err := io.ReadAll(response.Body)
		if err != nil {
			t.Fatal(err)
		}
		return response.StatusCode, response.Header.Get("ETag"), string(raw)
	}
	const flavor = "Metadata-Flavor"
	if status, _, _ := get("preempted"); status != http.StatusForbidden {
		t.Errorf("without the header: %d", status)
	}
	if status, _, _ := get("preempted", flavor, "X-Forwarded-For"); status != http.StatusForbidden {
		t.Errorf("through a proxy: %d", status)
	}
	if status, _, _ := get("nothing", flavor); status != http.StatusNotFound {
		t.Errorf("unknown key: %d", status)
	}
	status, etag, body := get("maintenance-event", flavor)
	if status != http.StatusOK || body != NoMaintenance || etag == "" {
		t.Errorf("%d %q %q", status, etag, body)
	}
	e.SetUnavailable("vm", true)
	if status, _, _ := get("maintenance-event", flavor); status != http.StatusServiceUnavailable {
		t.Errorf("under maintenance: %d", status)
	}
	e.SetUnavailable("vm", false)
	e.Preempt("vm")
	if _, _, body := get("preempted?wait_for_change=true&last_etag="+etagOf("FALSE"), flavor); body != "TRUE" {
		t.Errorf("a value that has changed: %q", body)
	}
}

// powerRecord is a Machines that counts the calls for each VM.
type powerRecord struct {
	mu      sync.Mutex
	off, on map[string]int
}

func (p *powerRecord) PowerOff(_ context.Context, vm string) error { return p.count(p.off, vm) }
func (p *powerRecord) PowerOn(_ context.Context, vm string) error  { return p.count(p.on, vm) }

func (p *powerRecord) count(calls map[string]int, vm string) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	calls[vm]++
	return nil
}

func (p *powerRecord) calls() (off, on map[string]int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return maps.Clone(p.off), maps.Clone(p.on)
}

func TestCancelledMaintenanceStopsNoVM(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		power := &powerRecord{off: map[string]int{}, on: map[string]int{}}
		e := New(Options{Machines: power})
		defer e.Close()
		read := func(vm string) (value string) {
			w := httptest.NewRecorder()
			r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, URL("", vm)+"instance/maintenance-event", nil)
			r.Header.Set("Metadata-Flavor", "Google")
			e.Handler().ServeHTTP(w, r)
			return w.Body.String()
		}
		for _, vm := range []string{"cancelled", "again", "maintained"} {
			e.AddVM(vm)
			read(vm)
			e.Maintain(vm, Terminate)
		}
		time.Sleep(MaintenanceNotice / 2)
		e.CancelMaintenance("cancelled")
		e.CancelMaintenance("again")
		if got := read("cancelled"); got != NoMaintenance {
			t.Errorf("the key of the cancelled maintenance is %q", got)
		}
		e.Maintain("again", Terminate) // its first maintenance must not stop it earlier
		time.Sleep(MaintenanceNotice - time.Second)
		synctest.Wait()
		if off, _ := power.calls(); off["cancelled"] != 0 || off["again"] != 0 || off["maintained"] != 1 {
			t.Errorf("stopped: %v, want only the maintained VM", off)
		}
		time.Sleep(time.Minute)
		synctest.Wait()
		if off, on := power.calls(); off["cancelled"] != 0 || off["again"] != 1 || on["again"] != 1 || on["maintained"] != 1 {
			t.Errorf("stopped: %v, started: %v, want each but the cancelled VM once", off, on)
		}
	})
}

// TestUnreadKeyGivesNoWarning is Google's rule for maintenance-event.
func TestUnreadKeyGivesNoWarning(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := New(Options{})
		defer e.Close()
		e.AddVM("vm")
		if due := e.Maintain("vm", Terminate); due.After(time.Now()) {
			t.Errorf("a VM without a reader is stopped in %v, want now", time.Until(due))
		}
		time.Sleep(time.Minute)
		w := httptest.NewRecorder()
		r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, URL("", "vm")+"instance/maintenance-event", nil)
		r.Header.Set("Metadata-Flavor", "Google")
		e.Handler().ServeHTTP(w, r)
		if due := e.Maintain("vm", Terminate); time.Until(due) != MaintenanceNotice {
			t.Errorf("a VM with a reader is stopped in %v, want %v", time.Until(due), MaintenanceNotice)
		}
		time.Sleep(2 * time.Minute)
	})
}
