package openstack

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"sync"
	"testing"

	"github.com/gophercloud/gophercloud/v2"

	"github.com/slipway-dev/slipway/internal/cloud"
	"github.com/slipway-dev/slipway/internal/testing/check"
	"github.com/slipway-dev/slipway/internal/testing/must"
)

// TestI7ListIsCompleteWhileServersMoveCells has a Nova that returns a short page without a next link during scheduling,
// and omits one server between two pages.
func TestI7ListIsCompleteWhileServersMoveCells(t *testing.T) {
	s := newFakeOpenStack(t)
	p := s.newProvider("south")
	p.pageSize = 4
	var all []map[string]any
	for i := range 8 {
		all = append(all, map[string]any{
			"id": fmt.Sprintf("00000000-0000-0000-0000-00000000000%d", i), "name": fmt.Sprint("m-", i), "status": "BUILD",
			"metadata": map[string]string{ClusterKey: p.config.ClusterName, GroupKey: p.groups[0].Name},
		})
	}
	reads := 0
	s.list = func(marker string) []map[string]any {
		if marker == "" {
			reads++
			return all[:3] // the fourth was counted twice
		}
		at := slices.IndexFunc(all, func(m map[string]any) bool { return m["id"] == marker }) + 1
		if reads == 1 && at < 7 {
			at++ // it moved to its cell, which is not searched for servers newer than the marker
		}
		if at == len(all) {
			at-- // the last server moves while its page is built, and is returned again
		}
		return all[min(at, len(all)):min(at+4, len(all))]
	}
	got, err := p.Instances(t.Context(), p.groups[0].Name)
	check.Not(t, err != nil || len(got) != len(all), "%d servers and %v, want %d", len(got), err, len(all))
	for _, m := range all {
		m["status"] = "ACTIVE"
	}
	reads = 0
	p.servers.Outdate()
	if got, err := p.Instances(t.Context(), p.groups[0].Name); err != nil || len(got) != 3 || reads != 1 {
		t.Errorf("%d servers in %d reads, %v: want 3 in 1, because no server is building", len(got), reads, err)
	}
}

// TestServerGroupIsFoundOnAnyPage has a Nova that pages server groups by offset only, without links, and with its own
// limit.
func TestServerGroupIsFoundOnAnyPage(t *testing.T) {
	for name, paged := range map[string]bool{"with an offset": true, "without paging": false} {
		t.Run(name, func(t *testing.T) {
			var all []map[string]any
			for i := range 2*listPageSize + 7 {
				all = append(all, map[string]any{"id": fmt.Sprint("id-", i), "name": fmt.Sprint("group-", i), "policy": "anti-affinity"})
			}
			s := &fakeOpenStack{t: t}
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				page := all
				if paged {
					const most = 100 // osapi_max_limit
					offset, _ := strconv.Atoi(r.URL.Query().Get("offset"))
					limit, _ := strconv.Atoi(r.URL.Query().Get("limit"))
					page = all[min(offset, len(all)):]
					page = page[:min(len(page), limit, most)]
				}
				s.respond(w, http.StatusOK, map[string]any{"server_groups": page})
			}))
			defer server.Close()
			c := &gophercloud.ServiceClient{ProviderClient: &gophercloud.ProviderClient{}, Endpoint: server.URL + "/"}
			for _, i := range []int{0, 99, 100, listPageSize, 2*listPageSize + 6} {
				if id, err := findServerGroup(t.Context(), c, fmt.Sprint("group-", i)); err != nil || id != fmt.Sprint("id-", i) {
					t.Errorf("group-%d: %q, %v", i, id, err)
				}
			}
			if id, err := findServerGroup(t.Context(), c, "none"); err == nil {
				t.Errorf("missing group: %q", id)
			}
		})
	}
}

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
		check.Not(t, reads != want, "the servers were listed %d times, want %d", reads, want)
	}
	ask(1)
	must.NoError(t, check.Err(p.Grow(t.Context(), "group-1", cloud.LaunchRequest{Count: 1})))
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
		check.Not(t, err != nil || status.Done != done, "status %+v, %v; want done %t", status, err, done)
		instances, err := p.Instances(t.Context(), "workers")
		check.Not(t, err != nil || len(instances) != 1 || instances[0].State != want, "listed %+v, %v; want one instance, %s", instances, err, want)
	}
	check(false, cloud.Pending)
	server["status"] = "ACTIVE"
	check(true, cloud.Running)
}
