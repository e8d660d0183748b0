package azure

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"
)

func TestSimulatedEvictionAnnouncesPreemptWithNotice(t *testing.T) {
	for path, want := range map[string]string{
		"virtualMachineScaleSets/pool/virtualMachines/3": "pool_3",
		"virtualMachines/alone":                          "alone",
	} {
		e := New(Options{})
		e.EnsureScaleSet("pool")
		answer := postARM(e, path+"/simulateEviction?api-version=2025-04-01")
		if answer.Code != http.StatusNoContent {
			t.Fatalf("%s: %d %s", path, answer.Code, answer.Body)
		}
		events := e.State().Events
		e.Close()
		if len(events) != 1 || events[0].Type != Preempt || events[0].Resources[0] != want {
			t.Fatalf("%s: events %+v", path, events)
		}
		if notice := events[0].NotBefore.Sub(events[0].VisibleAt); notice < 30*time.Second || notice > 31*time.Second {
			t.Errorf("%s: notice %v, want 30 s", path, notice)
		}
	}
}

func TestSimulatedEvictionOfMissingMachineIsRefused(t *testing.T) {
	e := New(Options{})
	defer e.Close()
	e.EnsureScaleSet("pool")
	const machine = "virtualMachineScaleSets/other/virtualMachines/3/simulateEviction"
	for query, want := range map[string]struct {
		status int
		code   string
	}{
		machine + "?api-version=2025-04-01": {http.StatusNotFound, "ResourceNotFound"},
		machine:                             {http.StatusBadRequest, "MissingApiVersionParameter"},
	} {
		answer := postARM(e, query)
		if answer.Code != want.status || !strings.Contains(answer.Body.String(), `"code":"`+want.code+`"`) {
			t.Errorf("%s: %d %s, want %d %s", query, answer.Code, answer.Body, want.status, want.code)
		}
	}
	if events := e.State().Events; len(events) > 0 {
		t.Errorf("events %+v", events)
	}
}

func postARM(e *Emulator, path string) *httptest.ResponseRecorder {
	answer := httptest.NewRecorder()
	e.Handler().ServeHTTP(answer, httptest.NewRequest(http.MethodPost,
		"/subscriptions/s/resourceGroups/g/providers/Microsoft.Compute/"+path, nil))
	return answer
}
