package azure

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/slipway-dev/slipway/internal/cloud"
)

func TestDeletionReusesARecentReadOnce(t *testing.T) {
	const id = "/subscriptions/" + subscriptionID + "/resourceGroups/demo/providers/Microsoft.Compute/virtualMachineScaleSets/ci/virtualMachines/0"
	reads, gone := 0, false
	p := newTestProvider(t, func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodGet {
			w.WriteHeader(http.StatusOK)
			return
		}
		if strings.HasSuffix(r.URL.Path, "/virtualMachines/0") {
			reads++
		}
		w.Header().Set("Content-Type", "application/json")
		if gone {
			w.WriteHeader(http.StatusNotFound)
			fmt.Fprint(w, `{"error":{"code":"ResourceNotFound","message":"gone"}}`)
			return
		}
		fmt.Fprintf(w, `{"id":%q,"name":"ci_0","instanceId":"0","properties":{"provisioningState":"Succeeded","vmId":"v",
			"timeCreated":"2026-01-02T03:04:05Z","osProfile":{"computerName":"ci000000"}}}`, id)
	})
	begin := func(want int, doing string) {
		t.Helper()
		before := reads
		if _, err := p.Delete(t.Context(), "azure://"+id); err != nil || reads-before != want {
			t.Errorf("%s: %d reads, %v; want %d", doing, reads-before, err, want)
		}
	}
	look := func() {
		t.Helper()
		if _, err := p.Instance(t.Context(), "azure://"+id); err != nil {
			t.Fatal(err)
		}
	}
	begin(1, "not read before")
	look()
	begin(0, "read recently")
	begin(1, "read already used")
	look()
	for key, r := range p.recentReads {
		r.readAt = time.Now().Add(-maxReadAge)
		p.recentReads[key] = r
	}
	begin(1, "read expired")

	gone = true
	before := reads
	if status, err := p.deletionStatus(t.Context(), "azure://"+id, nil); err != nil || !status.Done || status.Err != nil {
		t.Fatalf("%+v, %v", status, err)
	}
	for _, want := range []int{1, 2} { // the cached error is used once
		if _, err := p.Instance(t.Context(), "azure://"+id); !cloud.IsNotFound(err) || reads-before != want {
			t.Errorf("%d reads, %v; want %d", reads-before, err, want)
		}
	}
}
