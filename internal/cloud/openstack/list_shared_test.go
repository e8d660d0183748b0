package openstack

import (
	"fmt"
	"net/http"
	"sync"
	"testing"

	"github.com/slipway-dev/slipway/internal/cloud"
	"github.com/slipway-dev/slipway/internal/testing/must"
)

func TestGroupsShareOneServerList(t *testing.T) {
	s := newFakeOpenStack(t)
	s.addDefaults()
	reads := 0
	s.list = func(string) []map[string]any {
		reads++
		return []map[string]any{{
			"id": someID, "name": "a", "status": "ACTIVE", "metadata": map[string]string{ClusterKey: "prod", GroupKey: "group-1"},
		}}
	}
	p := s.newProvider("south")
	p.groups = nil
	for i := range 10 {
		g := validConfig().Groups[0]
		g.Name = fmt.Sprint("group-", i)
		p.groups = append(p.groups, &group{GroupConfig: g})
	}
	ask := func(want int) {
		t.Helper()
		var all sync.WaitGroup
		for i, g := range p.groups {
			all.Go(func() {
				size, err := p.Group(t.Context(), g.Name)
				machines, otherErr := p.Instances(t.Context(), g.Name)
				if has := map[bool]int{true: 1}[i == 1]; err != nil || otherErr != nil || size.Size != has || len(machines) != has {
					t.Errorf("%s: %+v, %v, %+v, %v", g.Name, size, err, machines, otherErr)
				}
			})
		}
		all.Wait()
		if reads != want {
			t.Errorf("the servers were listed %d times, want %d", reads, want)
		}
	}
	ask(1)
	if _, err := p.Grow(t.Context(), "group-1", cloud.LaunchRequest{Count: 1}); err != nil {
		t.Fatal(err)
	}
	ask(2) // the list must include the new server
}

func TestServersOfAFinishedLaunchAreRunning(t *testing.T) {
	s := newFakeOpenStack(t)
	s.addDefaults()
	server := map[string]any{
		"id": someID, "name": "a", "status": "BUILD", "metadata": map[string]string{ClusterKey: "prod", GroupKey: "workers"},
	}
	s.list = func(string) []map[string]any { return []map[string]any{server} }
	s.mux.HandleFunc("GET /{region}/v2.1/servers/"+someID, s.withToken(func(w http.ResponseWriter, _ *http.Request) {
		s.respond(w, http.StatusOK, map[string]any{"server": server})
	}))
	p := s.newProvider("south")
	op, err := p.Grow(t.Context(), "workers", cloud.LaunchRequest{Count: 1})
	must.NoError(t, err)
	check := func(done bool, want cloud.State) {
		t.Helper()
		status, err := p.Status(t.Context(), op)
		if err != nil || status.Done != done {
			t.Errorf("status %+v, %v; want done %t", status, err, done)
		}
		instances, err := p.Instances(t.Context(), "workers")
		if err != nil || len(instances) != 1 || instances[0].State != want {
			t.Errorf("listed %+v, %v; want one instance, %s", instances, err, want)
		}
	}
	check(false, cloud.Pending)
	server["status"] = "ACTIVE"
	check(true, cloud.Running)
}
