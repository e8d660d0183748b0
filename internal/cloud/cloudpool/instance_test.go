package cloudpool

import (
	"io"
	"net/http"
	"net/http/httptest"
	"testing"
)

func TestAMachineThatItsServerDoesNotLetGoIsKept(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		const head = `{"machineState": "RUNNING", "cloudProvider": "OpenStack", "id": "`
		_, _ = io.WriteString(w, `{"timestamp": "2026-01-02T03:04:05.000Z", "machines": [`+
			head+`blessed", "membershipStatus": {"active": true, "evictable": false}}, `+
			head+`awaited", "membershipStatus": {"active": false, "evictable": false}}, `+
			head+`plain", "membershipStatus": {"active": true, "evictable": true}}, `+
			head+`silent"}]}`)
	}))
	defer server.Close()
	p, err := New(Config{Pools: []PoolConfig{{Name: "workers", URL: server.URL}}}, Options{})
	if err != nil {
		t.Fatal(err)
	}
	instances, err := p.Instances(t.Context(), "workers")
	if err != nil || len(instances) != 4 {
		t.Fatalf("%+v, %v", instances, err)
	}
	for i, want := range []bool{true, true, false, false} {
		if instances[i].Kept != want {
			t.Errorf("%+v: want kept: %t", instances[i], want)
		}
	}
}
