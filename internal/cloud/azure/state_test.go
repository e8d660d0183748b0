package azure

import (
	"fmt"
	"net/http"
	"testing"

	"github.com/slipway-dev/slipway/internal/cloud"
)

// TestI7InstanceFailedOnlyIfKnownStopped reads instances with a failed last operation. On a running instance, an
// extension may have failed.
func TestI7InstanceFailedOnlyIfKnownStopped(t *testing.T) {
	const prefix = "/subscriptions/" + subscriptionID + "/resourceGroups/demo/providers/Microsoft.Compute/"
	view := func(codes ...string) string {
		statuses := ""
		for i, code := range codes {
			if i > 0 {
				statuses += ","
			}
			statuses += fmt.Sprintf(`{"code": %q, "message": "Why."}`, code)
		}
		return `, "instanceView": {"statuses": [` + statuses + `]}`
	}
	const failed = "ProvisioningState/failed/"
	for name, c := range map[string]struct {
		view    string
		want    cloud.State
		refusal cloud.Refusal
	}{
		"no instance view":                     {"", cloud.Unknown, ""},
		"an empty instance view":               {view(), cloud.Unknown, ""},
		"a view without code or power state":   {view("ProvisioningState/failed"), cloud.Unknown, ""},
		"an extension, no power state":         {view(failed + "VMExtensionProvisioningError"), cloud.Unknown, ""},
		"the operating system, no power state": {view(failed + "OSProvisioningTimedOut"), cloud.Unknown, ""},
		"the agent, no power state":            {view(failed + "VMAgentStatusCommunicationError"), cloud.Unknown, ""},
		"an extension, running":                {view(failed+"VMExtensionProvisioningError", "PowerState/running"), cloud.Running, ""},
		"an unknown power state":               {view(failed+"InternalExecutionError", "PowerState/unknown"), cloud.Unknown, ""},
		"an extension, stopped":                {view(failed+"VMExtensionProvisioningError", "PowerState/stopped"), cloud.Failed, ""},
		"deallocated":                          {view(failed+"InternalExecutionError", "PowerState/deallocated"), cloud.Failed, ""},
		"no capacity, never created":           {view(failed + "AllocationFailed"), cloud.Failed, cloud.NoCapacity},
		"an internal error, never created":     {view(failed + "InternalExecutionError"), cloud.Failed, ""},
		"no power state, other letter case":    {view("provisioningState/Failed/vmextensionprovisioningerror"), cloud.Unknown, ""},
	} {
		for _, resource := range []string{prefix + "virtualMachineScaleSets/pool/virtualMachines/1", prefix + "virtualMachines/alone"} {
			t.Run(name, func(t *testing.T) {
				p := newTestProvider(t, func(w http.ResponseWriter, _ *http.Request) {
					w.Header().Set("Content-Type", "application/json")
					_, _ = fmt.Fprintf(w, `{"id": %q, "name": "n", "properties": {"provisioningState": "Failed"%s}}`, resource, c.view)
				})
				m, err := p.Instance(t.Context(), "azure://"+resource)
				if err != nil || m.State != c.want || m.Refusal != c.refusal || (m.Message != "") != (c.want == cloud.Failed) {
					t.Errorf("%s: %s, %q, %q, %v; want %s", resource, m.State, m.Refusal, m.Message, err, c.want)
				}
			})
		}
	}
}
