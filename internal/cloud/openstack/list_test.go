package openstack

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"testing"

	"github.com/gophercloud/gophercloud/v2"
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
	if err != nil || len(got) != len(all) {
		t.Errorf("%d servers and %v, want %d", len(got), err, len(all))
	}
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
