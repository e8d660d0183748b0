package main

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/slipway-dev/slipway/internal/testing/check"
	"github.com/slipway-dev/slipway/internal/testing/must"
)

func TestSimulatedEvictionIsPrintedInEveryFormat(t *testing.T) {
	const id = "/subscriptions/s/resourceGroups/rg/providers/Microsoft.Compute/virtualMachineScaleSets/spot/virtualMachines/3"
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/api/v1/nodes/node-7":
			w.Header().Set("Content-Type", "application/json")
			_, _ = w.Write([]byte(`{"kind":"Node","apiVersion":"v1","metadata":{"name":"node-7"},"spec":{"providerID":"azure://` + id + `"}}`))
		case id + "/simulateEviction":
			w.WriteHeader(http.StatusNoContent)
		default:
			http.NotFound(w, r)
		}
	}))
	defer server.Close()
	for output, want := range map[outputFlag]string{
		outputTable: "node-7: Azure will evict instance 3 of scale set spot in resource group rg; watch with: kubectl get events --field-selector involvedObject.name=node-7\n",
		outputName:  "node/node-7\n",
		outputYAML:  "instance: \"3\"\nnode: node-7\nproviderID: azure://" + id + "\nresourceGroup: rg\nscaleSet: spot\n",
	} {
		out, err := runOffline(t, strings.Fields("simulate-eviction node-7 --server "+server.URL+" --arm-endpoint "+server.URL+" --output="+string(output))...)
		must.NoError(t, err)
		check.Is(t, want, out, "-o "+string(output))
	}
}
