package cloudpool

import (
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/slipway-dev/slipway/internal/cloud"
	"github.com/slipway-dev/slipway/internal/testing/check"
	"github.com/slipway-dev/slipway/internal/testing/must"
)

func TestNonEvictableMachineIsProtected(t *testing.T) {
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
	must.NoError(t, err)
	instances, err := p.Instances(t.Context(), "workers")
	if err != nil || len(instances) != 4 {
		t.Fatalf("%+v, %v", instances, err)
	}
	for i, want := range []bool{true, true, false, false} {
		if instances[i].DeletionProtected != want {
			t.Errorf("%+v: want protected: %t", instances[i], want)
		}
	}
}

func TestFulfilledSpotRequestNamesItsEarlierID(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		const head = `{"machineState": "RUNNING", "cloudProvider": "AWS-SPOT", "region": "eu-west-1", "id": "`
		_, _ = io.WriteString(w, `{"timestamp": "2026-01-02T03:04:05.000Z", "machines": [`+
			head+`sir-1"}, `+
			head+`sir-2", "metadata": {"InstanceId": "i-0123456789abcdef0"}}, `+
			head+`i-0123456789abcdef1"}]}`)
	}))
	defer server.Close()
	p, err := New(Config{Pools: []PoolConfig{{Name: "workers", URL: server.URL}}}, Options{})
	must.NoError(t, err)
	instances, err := p.Instances(t.Context(), "workers")
	must.NoError(t, err)
	var got []string
	for _, i := range instances {
		got = append(got, i.ProviderID+" "+i.PreviousProviderID)
	}
	want := []string{
		"cloudpool://workers/sir-1 ", "aws:///i-0123456789abcdef0 cloudpool://workers/sir-2", "aws:///i-0123456789abcdef1 ",
	}
	check.Equal(t, want, got)
}

// TestRemovedPoolHidesNoInstanceOfAnother has a server with two pools and deletes one.
func TestRemovedPoolHidesNoInstanceOfAnother(t *testing.T) {
	var mu sync.Mutex
	pools := map[string][]string{"kept": {"a", "b"}, "dropped": {"c"}}
	answer, at := http.StatusNotFound, time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	change := func(do func()) { mu.Lock(); defer mu.Unlock(); do() }
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		at = at.Add(time.Second)
		if r.URL.Path == "/cloudpools" {
			urls := []string{}
			for name := range pools {
				urls = append(urls, `"/cloudpools/`+name+`"`)
			}
			_, _ = io.WriteString(w, "["+strings.Join(urls, ",")+"]")
			return
		}
		ids, there := pools[strings.Split(r.URL.Path, "/")[2]]
		if !there {
			w.Header().Set("Content-Type", "application/json")
			w.WriteHeader(answer)
			_, _ = io.WriteString(w, `{"message": "no such pool"}`)
			return
		}
		machines := make([]string, len(ids))
		for i, id := range ids {
			machines[i] = `{"machineState": "RUNNING", "cloudProvider": "OpenStack", "id": "00000000-0000-0000-0000-00000000000` + id + `"}`
		}
		_, _ = io.WriteString(w, `{"timestamp": "`+at.Format(time.RFC3339)+`", "machines": [`+strings.Join(machines, ",")+`]}`)
	}))
	defer server.Close()
	wait := cloud.Duration(0)
	p, err := New(Config{Pools: []PoolConfig{{Multi: true, URL: server.URL}}, ObservationWait: &wait}, Options{})
	must.NoError(t, err)
	id := func(last string) string { return "openstack:///00000000-0000-0000-0000-00000000000" + last }
	for _, one := range []string{"a", "b", "c"} {
		if _, err := p.Instance(t.Context(), id(one)); err != nil {
			t.Fatalf("%s: %v", one, err)
		}
	}
	change(func() {
		delete(pools, "dropped")
		pools["kept"], answer = []string{"a"}, http.StatusInternalServerError
	})
	if _, err := p.Instance(t.Context(), id("b")); err == nil || cloud.IsNotFound(err) {
		t.Errorf("unlisted pool that cannot be read: %v", err)
	}
	change(func() { answer = http.StatusNotFound })
	if _, err := p.Instance(t.Context(), id("b")); !cloud.IsNotFound(err) {
		t.Errorf("machine of the remaining pool: %v; want it gone", err)
	}
	for range 3 {
		for what, one := range map[string]string{"was observed in the deleted pool": "c", "was never observed": "d"} {
			if _, err := p.Instance(t.Context(), id(one)); err == nil || cloud.IsNotFound(err) {
				t.Errorf("I7: machine that %s: %v; want an unknown result", what, err)
			}
		}
	}
	change(func() { pools["kept"] = []string{"a", "c"} })
	if i, err := p.Instance(t.Context(), id("c")); err != nil || i.Group != "kept" {
		t.Errorf("moved to another pool: %+v, %v", i, err)
	}
	change(func() { pools["kept"] = []string{"a"} })
	if _, err := p.Instance(t.Context(), id("c")); !cloud.IsNotFound(err) {
		t.Errorf("removed from that pool: %v; want it gone", err)
	}
}
