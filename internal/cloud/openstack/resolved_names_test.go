package openstack

import (
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/slipway-dev/slipway/internal/cloud"
	"github.com/slipway-dev/slipway/internal/testing/check"
	"github.com/slipway-dev/slipway/internal/testing/must"
)

// addList registers a list for GETs of a path in any region. It filters by the query parameters that an item has.
func (s *fakeOpenStack) addList(path, key string, items ...map[string]any) {
	s.mux.HandleFunc("GET /{region}/"+path, s.withToken(func(w http.ResponseWriter, r *http.Request) {
		query := r.URL.Query()
		found := slices.DeleteFunc(slices.Clone(items), func(item map[string]any) bool {
			for field, value := range item {
				if want := query.Get(field); want != "" && want != value {
					return true
				}
			}
			return key == "images" && query.Get("visibility") == "" && item["visibility"] == "community"
		})
		if found == nil {
			found = []map[string]any{}
		}
		s.respond(w, http.StatusOK, map[string]any{key: found})
	}))
}

// addDefaults registers everything that the group of good names.
func (s *fakeOpenStack) addDefaults() {
	s.addImages(map[string]any{"id": "image", "name": "ubuntu", "visibility": "public"})
}

// addImages registers these images, and everything else that the group of good names.
func (s *fakeOpenStack) addImages(images ...map[string]any) {
	s.addList("v2.1/flavors/detail", "flavors", map[string]any{"id": "1", "name": "m.2c4g", "vcpus": 2, "ram": 4096})
	s.addList("v2/images", "images", images...)
	s.addList("v2.0/networks", "networks", map[string]any{"id": "net-id", "name": "net"})
}

func TestMissingFlavorDoesNotStopTheOthers(t *testing.T) {
	s := newFakeOpenStack(t)
	s.addDefaults()
	p := s.newProvider("south")
	g := p.groups[0]
	g.Flavors = []string{"m.gone", "m.2c4g"}
	for range 2 {
		templates, err := p.Templates(t.Context(), g.Name)
		must.Not(t, err != nil || len(templates) != 1 || templates[0].Name != "m.2c4g", "%+v, %v, want the existing flavor", templates, err)
		if _, err := p.Grow(t.Context(), g.Name, cloud.LaunchRequest{Count: 1, Template: "m.2c4g"}); err != nil {
			t.Errorf("server with the existing flavor: %v", err)
		}
		g.clearCachedNames()
	}
	check.ErrorContains(t, p.CheckConfiguredNames(t.Context()), `flavors[0]: "m.gone"`)
	g.clearCachedNames()
	g.Flavors = []string{"m.gone"}
	if _, err := p.Templates(t.Context(), g.Name); cloud.RefusalOf(err) != cloud.Invalid {
		t.Errorf("no flavor exists: %v", err)
	}
}

// TestZoneWithAHostCountsAsTheZone has zones with a host, which Nova reports without it.
func TestZoneWithAHostCountsAsTheZone(t *testing.T) {
	s := newFakeOpenStack(t)
	s.addDefaults()
	s.addList("v2.1/os-availability-zone", "availabilityZoneInfo", map[string]any{"zoneName": "az1"}, map[string]any{"zoneName": "az2"})
	p := s.newProvider("south")
	g := p.groups[0]
	for want, zones := range map[string][]string{"az1": {"az1:host1", "az1:host2"}, "az2": {"az2:host3"}, "": {"az1:host1", "az2:host3"}} {
		g.AvailabilityZones = zones
		templates, err := p.Templates(t.Context(), g.Name)
		check.Not(t, err != nil || len(templates) != 1 || templates[0].Zone != want, "%q: %+v, %v, want the zone %q", zones, templates, err, want)
	}

	g.AvailabilityZones = []string{"az1:host1", "az2:host2"}
	s.list = func(marker string) []map[string]any {
		if marker != "" {
			return nil
		}
		return []map[string]any{{
			"id": someID, "name": "m-0", "status": "ACTIVE", "OS-EXT-AZ:availability_zone": "az1",
			"metadata": map[string]string{ClusterKey: p.config.ClusterName, GroupKey: g.Name},
		}}
	}
	zones, err := p.assignZones(t.Context(), g, 2)
	check.Not(t, err != nil || !slices.Equal(zones, []string{"az2:host2", "az1:host1"}), "%q, %v, want the empty zone first", zones, err)
}

// TestHostsOfAZoneAreFilledEvenly has a zone with two hosts, and launches of one and of four servers.
func TestHostsOfAZoneAreFilledEvenly(t *testing.T) {
	s := newFakeOpenStack(t)
	s.addDefaults()
	p := s.newProvider("south")
	g := p.groups[0]
	g.AvailabilityZones = []string{"az1:host1", "az1:host2", "az2:host3"}
	servers := map[string]int{}
	for _, count := range []int{1, 1, 4} {
		zones, err := p.assignZones(t.Context(), g, count)
		must.NoError(t, err)
		for _, z := range zones {
			servers[z]++
		}
	}
	check.Equal(t, map[string]int{"az1:host1": 2, "az1:host2": 2, "az2:host3": 2}, servers)
}

func TestUnreadableFlavorIsSkipped(t *testing.T) {
	s := newFakeOpenStack(t)
	s.addList("v2.1/flavors/detail", "flavors",
		map[string]any{"id": "1", "name": "m.2c4g", "vcpus": 2, "ram": 4096},
		map[string]any{"id": "2", "name": "g.1", "vcpus": 2, "ram": 4096, "extra_specs": map[string]string{"resources:VGPU": "many"}})
	s.addList("v2/images", "images", map[string]any{"id": "image", "name": "ubuntu"})
	s.addList("v2.0/networks", "networks", map[string]any{"id": "net-id", "name": "net"})
	p := s.newProvider("south")
	p.groups[0].Flavors = []string{"g.1", "m.2c4g"}
	p.groups[0].Resources = []ExtraSpecResource{{"resources:VGPU", "nvidia.com/gpu"}}
	templates, err := p.Templates(t.Context(), "workers")
	check.Not(t, err != nil || len(templates) != 1 || templates[0].Name != "m.2c4g", "%+v, %v, want the readable flavor", templates, err)
}

func TestSecurityGroupOfOwnProjectIsPreferred(t *testing.T) {
	group := func(id, project string, shared bool) map[string]any {
		return map[string]any{"id": id, "name": "kube", "project_id": project, "shared": shared}
	}
	for name, tc := range map[string]struct {
		project string
		groups  []map[string]any
		want    string // empty means an error
	}{
		"next to another project's": {"shop", []map[string]any{group("theirs", "blog", false), group("ours", "shop", false)}, "ours"},
		"only another project's":    {"shop", []map[string]any{group("theirs", "blog", false)}, ""},
		"shared":                    {"shop", []map[string]any{group("lent", "blog", true), group("theirs", "mail", false)}, "lent"},
		"two of the project":        {"shop", []map[string]any{group("a", "shop", false), group("b", "shop", false)}, ""},
		"project unknown":           {"", []map[string]any{group("only", "blog", false)}, "only"},
	} {
		t.Run(name, func(t *testing.T) {
			s := newFakeOpenStack(t)
			s.addDefaults()
			s.project = tc.project
			s.addList("v2.0/security-groups", "security_groups", tc.groups...)
			p := s.newProvider("south")
			p.groups[0].SecurityGroups = []string{"kube"}
			r, err := p.resolveNames(t.Context(), p.groups[0])
			switch {
			case tc.want == "" && cloud.RefusalOf(err) != cloud.Invalid:
				t.Errorf("%+v, %v, want an error", r, err)
			case tc.want != "" && (err != nil || r.securityGroups[0] != tc.want):
				t.Errorf("%+v, %v, want %s", r, err, tc.want)
			}
		})
	}
}

func TestImageIsSelectedByVisibility(t *testing.T) {
	image := func(id, visibility string) map[string]any {
		return map[string]any{"id": id, "name": "ubuntu", "visibility": visibility}
	}
	all := []map[string]any{image("everyones", "public"), image("ours", "private"), image("theirs", "community")}
	for visibility, want := range map[string]string{"private": "ours", "public": "everyones", "community": "theirs", "shared": "", "": ""} {
		s := newFakeOpenStack(t)
		s.addImages(all...)
		p := s.newProvider("south")
		p.groups[0].Image.Visibility = visibility
		r, err := p.resolveNames(t.Context(), p.groups[0])
		switch {
		case want == "" && cloud.RefusalOf(err) != cloud.Invalid:
			t.Errorf("%q: %+v, %v, want an error", visibility, r, err)
		case want != "" && (err != nil || r.image != want):
			t.Errorf("%q: %+v, %v, want %s", visibility, r, err, want)
		case visibility == "" && (!strings.Contains(err.Error(), "private") || !strings.Contains(err.Error(), "image.visibility")):
			t.Errorf("two with one name: %v, want their visibility in the error", err)
		}
	}
}

// fakeNeutron fakes Neutron with ports, and Nova with a server that uses them.
type fakeNeutron struct {
	*fakeOpenStack
	ports          map[string]map[string]any // by ID
	portRequests   []map[string]any          // bodies of create requests, without names
	createStatus   int                       // status code for create requests of servers; 0 accepts them
	serverNetworks []any                     // networks of the last server
	serverDeleted  bool                      // whether the server is deleted
}

func newNeutron(t *testing.T) (*fakeNeutron, *Provider) {
	t.Helper()
	n := &fakeNeutron{fakeOpenStack: newFakeOpenStack(t), ports: map[string]map[string]any{}}
	n.addDefaults()
	n.addList("v2.0/subnets", "subnets", map[string]any{"id": "subnet-id", "name": "nodes", "network_id": "net-id"},
		map[string]any{"id": "other-id", "name": "nodes", "network_id": "other"})
	n.addList("v2.0/security-groups", "security_groups", map[string]any{"id": "group-id", "name": "kube", "project_id": ""})
	n.mux.HandleFunc("POST /{region}/v2.0/ports", n.withToken(n.createPort))
	n.mux.HandleFunc("GET /{region}/v2.0/ports", n.withToken(func(w http.ResponseWriter, r *http.Request) {
		found := []map[string]any{}
		for _, one := range n.ports {
			if device := r.URL.Query().Get("device_id"); device == "" || device == one["device_id"] {
				found = append(found, one) // a Neutron that ignores the description filter
			}
		}
		n.respond(w, http.StatusOK, map[string]any{"ports": found})
	}))
	n.mux.HandleFunc("GET /{region}/v2.0/ports/{id}", n.withToken(func(w http.ResponseWriter, r *http.Request) {
		n.respond(w, http.StatusOK, map[string]any{"port": n.ports[r.PathValue("id")]})
	}))
	n.mux.HandleFunc("DELETE /{region}/v2.0/ports/{id}", n.withToken(func(w http.ResponseWriter, r *http.Request) {
		delete(n.ports, r.PathValue("id"))
		w.WriteHeader(http.StatusNoContent)
	}))
	n.mux.HandleFunc("GET /{region}/v2.1/servers/{id}", n.withToken(func(w http.ResponseWriter, r *http.Request) {
		if n.serverDeleted {
			n.respond(w, http.StatusNotFound, map[string]any{"itemNotFound": map[string]any{"code": 404, "message": "Instance " + someID + " could not be found."}})
			return
		}
		n.respond(w, http.StatusOK, map[string]any{"server": map[string]any{
			"id": someID, "name": "a", "status": "ACTIVE", "metadata": map[string]string{ClusterKey: "prod", GroupKey: "workers"},
		}})
	}))
	n.mux.HandleFunc("DELETE /{region}/v2.1/servers/{id}", n.withToken(func(w http.ResponseWriter, r *http.Request) {
		n.serverDeleted = true
		for _, one := range n.ports {
			if one["device_id"] == r.PathValue("id") {
				one["device_id"] = ""
			}
		}
		w.WriteHeader(http.StatusNoContent)
	}))
	n.createHandler = func(w http.ResponseWriter, r *http.Request) {
		var sent struct {
			Server struct {
				Networks []any `json:"networks"`
			} `json:"server"`
		}
		_ = json.NewDecoder(r.Body).Decode(&sent)
		n.serverNetworks = sent.Server.Networks
		if n.createStatus != 0 {
			n.respond(w, n.createStatus, map[string]any{"forbidden": map[string]any{"code": n.createStatus, "message": "Quota exceeded"}})
			return
		}
		for _, one := range n.ports {
			if one["device_id"] == "" {
				one["device_id"] = someID
			}
		}
		n.respond(w, http.StatusAccepted, map[string]any{"server": map[string]string{"id": someID}})
	}
	p := n.newProvider("south")
	off := false
	g := p.groups[0]
	g.Networks, g.SecurityGroups = nil, []string{"kube"}
	g.Ports = []Port{
		{Network: "net", Subnet: "nodes", AllowedAddressPairs: []AddressPair{{IPAddress: "10.244.0.0/16"}}, VNICType: "direct"},
		{Network: "net", PortSecurity: &off},
	}
	return n, p
}

func (n *fakeNeutron) createPort(w http.ResponseWriter, r *http.Request) {
	var sent struct {
		Port map[string]any `json:"port"`
	}
	_ = json.NewDecoder(r.Body).Decode(&sent)
	id := fmt.Sprintf("00000000-0000-0000-0000-00000000000%d", len(n.portRequests))
	n.ports[id] = map[string]any{
		"id": id, "name": sent.Port["name"], "description": sent.Port["description"], "device_id": "", "created_at": time.Now().UTC().Format(time.RFC3339),
	}
	delete(sent.Port, "name")
	n.portRequests = append(n.portRequests, sent.Port)
	n.respond(w, http.StatusCreated, map[string]any{"port": n.ports[id]})
}

func TestServerPortsAreCreatedAndDeleted(t *testing.T) {
	n, p := newNeutron(t)
	must.NoError(t, check.Err(p.Grow(t.Context(), "workers", cloud.LaunchRequest{Count: 1})))
	want := []map[string]any{
		{
			"description": "slipway.cluster=prod", "network_id": "net-id", "fixed_ips": []any{map[string]any{"subnet_id": "subnet-id"}},
			"allowed_address_pairs": []any{map[string]any{"ip_address": "10.244.0.0/16"}}, "binding:vnic_type": "direct",
			"security_groups": []any{"group-id"},
		},
		{"description": "slipway.cluster=prod", "network_id": "net-id", "port_security_enabled": false, "security_groups": []any{}},
	}
	check.Equal(t, want, n.portRequests)
	check.Not(t, len(n.serverNetworks) != 2 || len(n.ports) != 2, "server with networks %v, ports %v", n.serverNetworks, n.ports)
	op, err := p.Delete(t.Context(), "openstack:///"+someID)
	must.NoError(t, err)
	if status, err := p.Status(t.Context(), op); err != nil || !status.Done || len(n.ports) != 0 {
		t.Errorf("%+v, %v, remaining ports %v", status, err, n.ports)
	}
}

func TestPortsOfARefusedServerAreDeleted(t *testing.T) {
	n, p := newNeutron(t)
	n.createStatus = http.StatusForbidden
	if _, err := p.Grow(t.Context(), "workers", cloud.LaunchRequest{Count: 1}); cloud.RefusalOf(err) != cloud.NoQuota {
		t.Fatal(err)
	}
	check.Not(t, len(n.portRequests) != 2 || len(n.ports) != 0, "%d ports created, %v remain", len(n.portRequests), n.ports)
}

func TestI4OnlyUnusedPortsOfTheClusterAreDeleted(t *testing.T) {
	n, p := newNeutron(t)
	old := time.Now().Add(-time.Hour).UTC().Format(time.RFC3339)
	left := func(id, name, description, device, created string) {
		n.ports[id] = map[string]any{"id": id, "name": name, "description": description, "device_id": device, "created_at": created}
	}
	n.list = func(string) []map[string]any {
		return []map[string]any{{
			"id": someID, "name": "building", "status": "BUILD", "metadata": map[string]string{ClusterKey: "prod", GroupKey: "workers"},
		}}
	}
	left("crashed", "w-1", "slipway.cluster=prod", "", old)
	left("building", "building", "slipway.cluster=prod", "", old)
	left("used", "w-2", "slipway.cluster=prod", someID, old)
	left("new", "w-3", "slipway.cluster=prod", "", time.Now().UTC().Format(time.RFC3339))
	left("others", "w-4", "slipway.cluster=blog", "", old)
	left("unmarked", "w-5", "", "", old)
	must.NoError(t, p.deleteUnusedPorts(t.Context()))
	if _, swept := n.ports["crashed"]; swept || len(n.ports) != 5 {
		t.Errorf("remaining %v, want all except the one of the crash", n.ports)
	}
}
