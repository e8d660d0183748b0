package eviction

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/slipway-dev/slipway/internal/testing/check"
	"github.com/slipway-dev/slipway/internal/testing/must"
)

const (
	inScaleSet = "azure:///subscriptions/S/resourceGroups/G/providers/Microsoft.Compute/virtualMachineScaleSets/V/virtualMachines/3"
	singleVM   = "azure:///subscriptions/S/resourceGroups/G/providers/Microsoft.Compute/virtualMachines/web-1"
)

func TestTargetIsParsedFromProviderID(t *testing.T) {
	for id, want := range map[string]Target{
		inScaleSet: {"S", "G", "V", "3"},
		singleVM:   {"S", "G", "", "web-1"},
	} {
		got, err := ParseProviderID(id)
		check.Not(t, err != nil || got != want, "%s: %+v, %v; want %+v", id, got, err, want)
	}
	for _, id := range []string{"", "aws:///eu-1/i-0", strings.TrimSuffix(singleVM, "/web-1"), inScaleSet + "/disks"} {
		if got, err := ParseProviderID(id); err == nil {
			t.Errorf("%q: %+v, want an error", id, got)
		}
	}
}

func FuzzProviderID(f *testing.F) {
	f.Add(inScaleSet)
	f.Add(singleVM)
	f.Fuzz(func(t *testing.T, id string) {
		target, err := ParseProviderID(id)
		check.Not(t, err == nil && (target.Subscription == "" || target.ResourceGroup == "" || target.Name == ""), "%q: %+v has an empty part", id, target)
	})
}

func TestRequestNamesTheInstance(t *testing.T) {
	var got []string
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		got = append(got, r.Method+" "+r.URL.Path)
		check.Not(t, r.URL.Query().Get("api-version") == "", "%s: no api-version", r.URL)
		w.WriteHeader(http.StatusNoContent)
	}))
	defer server.Close()
	s, err := New(Options{Endpoint: server.URL})
	must.NoError(t, err)
	for _, id := range []string{inScaleSet, singleVM} {
		target, err := ParseProviderID(id)
		must.NoError(t, err)
		check.NoError(t, s.Simulate(t.Context(), target))
	}
	const group = "POST /subscriptions/S/resourceGroups/G/providers/Microsoft.Compute/"
	want := []string{
		group + "virtualMachineScaleSets/V/virtualMachines/3/simulateEviction",
		group + "virtualMachines/web-1/simulateEviction",
	}
	check.Equal(t, want, got)
}

func TestAzureRefusalNamesTheInstanceAndRemedy(t *testing.T) {
	for status, want := range map[int]string{403: "credential lacks", 404: "does not exist", 409: "running Spot"} {
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(status)
			_, _ = w.Write([]byte(`{"error":{"code":"Nope","message":"no"}}`))
		}))
		s, err := New(Options{Endpoint: server.URL})
		must.NoError(t, err)
		err = s.Simulate(t.Context(), Target{"S", "G", "V", "3"})
		server.Close()
		if err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), "instance 3 of scale set V") ||
			!strings.Contains(err.Error(), "Nope") {
			t.Errorf("%d: error %v, want it to say %q", status, err, want)
		}
	}
}

func TestI10EndpointIsCheckedAndCredentialsNeedHTTPS(t *testing.T) {
	for endpoint, want := range map[string]string{
		"http://management.example":  "want https",
		"https://u:p@example":        "credentials",
		"management.azure.com":       "want a URL",
		"ftp://127.0.0.1":            "want a URL",
		"http://\x7f":                "want a URL",
		"http://169.254.169.254/arm": "want https",
	} {
		_, err := New(Options{Endpoint: endpoint})
		if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "u:p") {
			t.Errorf("%q: error %v, want %q", endpoint, err, want)
		}
	}
}
