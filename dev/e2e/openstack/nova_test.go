package openstack_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/gophercloud/gophercloud/v2/openstack/compute/v2/servergroups"
	"github.com/gophercloud/gophercloud/v2/openstack/compute/v2/servers"
	"github.com/gophercloud/gophercloud/v2/openstack/image/v2/imagedata"
	"github.com/gophercloud/gophercloud/v2/openstack/image/v2/images"
	secgroups "github.com/gophercloud/gophercloud/v2/openstack/networking/v2/extensions/security/groups"
	"github.com/gophercloud/gophercloud/v2/openstack/networking/v2/networks"

	openstackdev "github.com/slipway-dev/slipway/dev/openstack"
	"github.com/slipway-dev/slipway/internal/cloud"
	"github.com/slipway-dev/slipway/internal/cloud/openstack"
	"github.com/slipway-dev/slipway/internal/orphans"
)

// issuer is a Joiner that records its calls.
type issuer struct {
	mu        sync.Mutex
	issued    []string
	withdrawn []string
}

func (i *issuer) Issue(_ context.Context, machine string) (openstack.Join, error) {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.issued = append(i.issued, machine)
	return openstack.Join{Token: "token-of-" + machine, Expires: time.Now().Add(time.Hour)}, nil
}

func (i *issuer) Withdraw(_ context.Context, machine string) error {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.withdrawn = append(i.withdrawn, machine)
	return nil
}

// grow launches servers, and waits for the result.
func grow(t *testing.T, p *openstack.Provider, group string, order cloud.LaunchRequest) cloud.OperationStatus {
	t.Helper()
	op, err := p.Grow(t.Context(), group, order)
	if err != nil {
		t.Fatal(err)
	}
	return follow(t, p, op)
}

func TestServerHasAllSettingsOfItsGroup(t *testing.T) {
	c := openstackdev.RequireForTest(t)
	anti, err := servergroups.Create(t.Context(), nova(t, c, openstackdev.DemoCloud), servergroups.CreateOpts{
		Name: newGroupName(t), Policy: "anti-affinity",
	}).Extract()
	if err != nil {
		t.Fatal(err)
	}
	proxy := newNovaProxy(t, c.IDs.Endpoints["compute"])
	g := groupOf(newGroupName(t))
	g.ServerGroup, g.AvailabilityZones, g.ConfigDrive = anti.Name, []string{openstackdev.FirstZone}, true
	g.Metadata = map[string]string{"owner": "somebody"}
	g.NamePrefix = "worker"
	g.UserData = "#cloud-config\n# {{.Name}} {{.Flavor}} {{.Zone}} {{.Join.Token}}\n"
	config := configOf(c, g)
	config.Endpoints = map[string]string{"compute": proxy.Compute()}
	join := &issuer{}
	p := providerOf(t, config, openstack.Options{Joiner: join})
	t.Cleanup(func() {
		removeGroup(t, c, g.Name)
		_ = servergroups.Delete(context.WithoutCancel(t.Context()), nova(t, c, openstackdev.DemoCloud), anti.ID).ExtractErr()
	})
	if status := grow(t, p, g.Name, cloud.LaunchRequest{Count: 1}); status.Err != nil {
		t.Fatal(status.Err)
	}
	instances, err := p.Instances(t.Context(), g.Name)
	if err != nil || len(instances) != 1 {
		t.Fatalf("%+v, %v", instances, err)
	}
	i := instances[0]
	if !strings.HasPrefix(i.Name, "worker-") || i.ComputerName != i.Name || i.Zone != openstackdev.FirstZone || i.Type != "t.1c512m" || i.Tags["owner"] != "somebody" ||
		i.Created.IsZero() || i.State != cloud.Running {
		t.Errorf("%+v", i)
	}
	// A list does not contain server groups.
	s, err := servers.Get(t.Context(), nova(t, c, openstackdev.DemoCloud), serverOf(i.ProviderID)).Extract()
	if err != nil {
		t.Fatal(err)
	}
	if s.KeyName != openstackdev.KeyPair || len(s.SecurityGroups) != 1 || s.SecurityGroups[0]["name"] != "demo-sg" || !s.ConfigDrive ||
		s.ServerGroups == nil || !slices.Equal(*s.ServerGroups, []string{anti.ID}) {
		t.Errorf("Nova has %+v", s)
	}
	if data := userDataOf(t, proxy); len(data) != 1 || data[0] != fmt.Sprintf("#cloud-config\n# %s t.1c512m west token-of-%s\n", i.Name, i.Name) {
		t.Errorf("user data %q", data)
	}
	// The zone has one host. The second server cannot run on the same host as the first, and its launch fails with the
	// reason.
	status := grow(t, p, g.Name, cloud.LaunchRequest{Count: 1})
	if cloud.RefusalOf(status.Err) != cloud.NoCapacity {
		t.Errorf("a second server on one host: %v, want %s", status.Err, cloud.NoCapacity)
	}
	if join.mu.Lock(); len(join.issued) != 2 || join.issued[0] == join.issued[1] {
		t.Errorf("issued for %q", join.issued)
	}
	join.mu.Unlock()
	op, err := p.Delete(t.Context(), i.ProviderID)
	if err != nil {
		t.Fatal(err)
	}
	if status := follow(t, p, op); status.Err != nil {
		t.Error(status.Err)
	}
	if n := portsOf(t, c, s.ID); n != 0 {
		t.Errorf("%d ports of a deleted server remain", n)
	}
}

// userDataOf returns the user data of the servers that were requested through a proxy.
func userDataOf(t *testing.T, f *novaProxy) []string {
	t.Helper()
	var all []string
	for _, r := range f.seen() {
		if r.method != http.MethodPost || !strings.HasSuffix(r.path, "/servers") {
			continue
		}
		var body struct {
			Server struct {
				UserData []byte `json:"user_data"` // encoding/json decodes base64
			} `json:"server"`
		}
		if err := json.Unmarshal(r.body, &body); err != nil {
			t.Fatal(err)
		}
		all = append(all, string(body.Server.UserData))
	}
	return all
}

func TestNoValidHostIsNoCapacity(t *testing.T) {
	c := openstackdev.RequireForTest(t)
	g := groupOf(newGroupName(t))
	g.Flavors = []string{"giant"}
	p := providerOf(t, configOf(c, g), openstack.Options{})
	t.Cleanup(func() { removeGroup(t, c, g.Name) })
	if status := grow(t, p, g.Name, cloud.LaunchRequest{Count: 2, Template: "giant"}); cloud.RefusalOf(status.Err) != cloud.NoCapacity {
		t.Errorf("%v, want %s", status.Err, cloud.NoCapacity)
	}
	instances, err := p.Instances(t.Context(), g.Name)
	if err != nil || len(instances) != 2 {
		t.Fatalf("%+v, %v", instances, err)
	}
	for _, i := range instances {
		if i.State != cloud.Failed || i.Refusal != cloud.NoCapacity || !strings.Contains(i.Message, "No valid host") {
			t.Errorf("listed as %+v", i)
		}
		op, err := p.Delete(t.Context(), i.ProviderID)
		if err != nil {
			t.Fatal(err)
		}
		if status := follow(t, p, op); status.Err != nil {
			t.Error(status.Err)
		}
	}
	if group, err := p.Group(t.Context(), g.Name); err != nil || group.Size != 0 {
		t.Errorf("afterwards %+v, %v", group, err)
	}
}

func TestQuotaExhaustedDuringLaunchIsNoQuota(t *testing.T) {
	c := openstackdev.RequireForTest(t)
	g := groupOf(newGroupName(t))
	g.UserData = "{{.Join.Token}}"
	join := &issuer{}
	config := configOf(c, g)
	config.ParallelCreates = 1 // Nova's own count is not exact for concurrent requests
	p := providerOf(t, config, openstack.Options{Joiner: join})
	t.Cleanup(func() {
		setQuota(t, c, -1, -1)
		removeGroup(t, c, g.Name)
	})
	pages, err := servers.List(nova(t, c, openstackdev.DemoCloud), servers.ListOpts{}).AllPages(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	used, err := servers.ExtractServers(pages)
	if err != nil {
		t.Fatal(err)
	}
	setQuota(t, c, len(used)+1, -1)
	if _, err := p.Grow(t.Context(), g.Name, cloud.LaunchRequest{Count: 4}); cloud.RefusalOf(err) != cloud.NoQuota {
		t.Errorf("%v, want %s", err, cloud.NoQuota)
	}
	if group, err := p.Group(t.Context(), g.Name); err != nil || group.Size != 1 {
		t.Errorf("the group is %+v, %v; want the one server within the quota", group, err)
	}
	if len(join.issued) != 2 || !slices.Equal(join.withdrawn, join.issued[1:]) {
		t.Errorf("issued for %q, withdrawn from %q; want it withdrawn from the refused server", join.issued, join.withdrawn)
	}
}

// newImage creates an image, and deletes it after the test.
func newImage(t *testing.T, c *openstackdev.Cloud, name string, tags ...string) string {
	t.Helper()
	client := glance(t, c, openstackdev.DemoCloud)
	image, err := images.Create(t.Context(), client, images.CreateOpts{
		Name: name, Tags: tags, DiskFormat: "raw", ContainerFormat: "bare",
	}).Extract()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = images.Delete(context.WithoutCancel(t.Context()), client, image.ID).ExtractErr() })
	if err := imagedata.Upload(t.Context(), client, image.ID, bytes.NewReader(make([]byte, 1024))).ExtractErr(); err != nil {
		t.Fatal(err)
	}
	return image.ID
}

func TestDeletedImageIsInvalid(t *testing.T) {
	c := openstackdev.RequireForTest(t)
	g := groupOf(newGroupName(t))
	g.Image = openstack.Image{ID: newImage(t, c, "passing")}
	p := providerOf(t, configOf(c, g), openstack.Options{})
	if err := p.CheckConfiguredNames(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := images.Delete(t.Context(), glance(t, c, openstackdev.DemoCloud), g.Image.ID).ExtractErr(); err != nil {
		t.Fatal(err)
	}
	for _, when := range []string{"while it is remembered", "when it is looked up"} {
		if _, err := p.Grow(t.Context(), g.Name, cloud.LaunchRequest{Count: 1}); cloud.RefusalOf(err) != cloud.Invalid {
			t.Errorf("%s: %v, want %s", when, err, cloud.Invalid)
		}
	}
	if group, err := p.Group(t.Context(), g.Name); err != nil || group.Size != 0 {
		t.Errorf("%+v, %v", group, err)
	}
}

func TestI10AmbiguousNamesAreRefusedWithCandidates(t *testing.T) {
	c := openstackdev.RequireForTest(t)
	name := newGroupName(t)
	twins := []string{newImage(t, c, name, "rolling"), newImage(t, c, name, "rolling")}
	for range 2 {
		network, err := networks.Create(t.Context(), neutron(t, c, openstackdev.DemoCloud), networks.CreateOpts{Name: name}).Extract()
		if err != nil {
			t.Fatal(err)
		}
		security, err := secgroups.Create(t.Context(), neutron(t, c, openstackdev.DemoCloud), secgroups.CreateOpts{Name: name}).Extract()
		if err != nil {
			t.Fatal(err)
		}
		twins = append(twins, network.ID, security.ID)
		t.Cleanup(func() {
			_ = networks.Delete(context.WithoutCancel(t.Context()), neutron(t, c, openstackdev.DemoCloud), network.ID).ExtractErr()
			_ = secgroups.Delete(context.WithoutCancel(t.Context()), neutron(t, c, openstackdev.DemoCloud), security.ID).ExtractErr()
		})
	}
	g := groupOf(name)
	g.Image, g.Networks, g.SecurityGroups = openstack.Image{Name: name}, []string{name}, []string{name}
	err := providerOf(t, configOf(c, g), openstack.Options{}).CheckConfiguredNames(t.Context())
	if err == nil {
		t.Fatal("ambiguous names are accepted")
	}
	for _, id := range twins {
		if !strings.Contains(err.Error(), id) {
			t.Errorf("%s is not listed in: %v", id, err)
		}
	}

	g.Flavors, g.KeyPair, g.ServerGroup = []string{"no-such-flavor"}, "no-such-key", "no-such-group"
	g.Image, g.Networks, g.SecurityGroups = openstack.Image{Name: "no-such-image"}, []string{"no-such-network"}, []string{"no-such-sg"}
	err = providerOf(t, configOf(c, g), openstack.Options{}).CheckConfiguredNames(t.Context())
	for _, missing := range []string{
		`flavors[0]: "no-such-flavor"`, "m.2c4g", "no-such-key", "no-such-group", "no-such-image", `networks[0]: network "no-such-network"`, "no-such-sg",
	} {
		if err == nil || !strings.Contains(err.Error(), missing) {
			t.Errorf("%q is not in: %v", missing, err)
		}
	}

	g = groupOf(name)
	g.Image, g.Networks, g.SecurityGroups = openstack.Image{Tag: "rolling"}, []string{c.IDs.Network}, []string{c.IDs.SecurityGroup}
	if err := providerOf(t, configOf(c, g), openstack.Options{}).CheckConfiguredNames(t.Context()); err != nil {
		t.Errorf("a tag of two images: %v, want the newest image", err)
	}
}

func TestTemplatesMatchFlavorsOfNova(t *testing.T) {
	c := openstackdev.RequireForTest(t)
	g := groupOf(newGroupName(t))
	g.Flavors, g.FlavorSelection = nil, &openstack.FlavorSelection{MaxVCPUs: 4}
	templates, err := providerOf(t, configOf(c, g), openstack.Options{}).Templates(t.Context(), g.Name)
	if err != nil || len(templates) != 3 || templates[0].Name != "t.1c512m" || templates[2].Name != "m.4c8g" {
		t.Fatalf("%+v, %v", templates, err)
	}
	capacity := templates[1].Capacity
	if capacity.Cpu().String() != "2" || capacity.Memory().String() != "4Gi" || capacity.StorageEphemeral().String() != "20Gi" {
		t.Errorf("%v", capacity)
	}
}

func TestForeignAndLockedServersAreNotDeleted(t *testing.T) {
	c := openstackdev.RequireForTest(t)
	client := nova(t, c, openstackdev.DemoCloud)
	g := groupOf(newGroupName(t))
	launch(t, c, g.Name, 1)
	t.Cleanup(func() { removeGroup(t, c, g.Name) })
	for len(serversOf(t, c, g.Name)) == 0 || serversOf(t, c, g.Name)[0].Status != "ACTIVE" {
		look(t)
	}
	s := serversOf(t, c, g.Name)[0]
	p := providerOf(t, configOf(c, g), openstack.Options{})
	refused := func(who *openstack.Provider, why string) {
		t.Helper()
		if i, err := who.Instance(t.Context(), idOf(s.ID)); err != nil || !i.DeletionProtected || !strings.Contains(i.DeletionProtectionReason, why) {
			t.Errorf("Instance: %+v, %v, want it protected with %q", i, err, why)
		}
		if _, err := who.Delete(t.Context(), idOf(s.ID)); cloud.RefusalOf(err) != cloud.Protected || !strings.Contains(err.Error(), why) {
			t.Errorf("Delete: %v, want the refusal %s with %q", err, cloud.Protected, why)
		}
	}
	if err := servers.Lock(t.Context(), client, s.ID).ExtractErr(); err != nil {
		t.Fatal(err)
	}
	refused(p, "locked")
	if err := servers.Unlock(t.Context(), client, s.ID).ExtractErr(); err != nil {
		t.Fatal(err)
	}
	other := configOf(c, g)
	other.ClusterName = "another"
	refused(providerOf(t, other, openstack.Options{}), "cluster another")

	// The OpenStack autoscaler creates servers without any mark. Such a server belongs to the group that adopts it.
	for _, key := range []string{openstack.ClusterKey, openstack.GroupKey} {
		if err := servers.DeleteMetadatum(t.Context(), client, s.ID, key).ExtractErr(); err != nil {
			t.Fatal(err)
		}
	}
	refused(p, "does not name")
	g.AdoptNamePrefix = s.Name
	adopting := providerOf(t, configOf(c, g), openstack.Options{})
	if i, err := adopting.Instance(t.Context(), idOf(s.ID)); err != nil || i.Group != g.Name || i.DeletionProtected {
		t.Errorf("%+v, %v", i, err)
	}
	op, err := adopting.Delete(t.Context(), idOf(s.ID))
	if err != nil {
		t.Fatal(err)
	}
	if status := follow(t, adopting, op); status.Err != nil {
		t.Error(status.Err)
	}
}

func TestLostLaunchResponseLaunchesOneServer(t *testing.T) {
	c := openstackdev.RequireForTest(t)
	proxy := newNovaProxy(t, c.IDs.Endpoints["compute"])
	g := groupOf(newGroupName(t))
	g.UserData = "{{.Join.Token}}"
	config := configOf(c, g)
	config.Endpoints = map[string]string{"compute": proxy.Compute()}
	join := &issuer{}
	p := providerOf(t, config, openstack.Options{Joiner: join})
	t.Cleanup(func() { removeGroup(t, c, g.Name) })
	proxy.setFaults(func(_ http.ResponseWriter, r *http.Request) bool {
		if r.Method != http.MethodPost {
			return false
		}
		proxy.forward.ServeHTTP(httptest.NewRecorder(), r)
		panic(http.ErrAbortHandler)
	}, nil, false)
	if _, err := p.Grow(t.Context(), g.Name, cloud.LaunchRequest{Count: 1}); err == nil || cloud.RefusalOf(err) != "" {
		t.Errorf("Grow: %v, want an error that leaves the result open", err)
	}
	if n := proxy.count(http.MethodPost, "/servers$"); n != 1 {
		t.Errorf("%d requests", n)
	}
	if group, err := p.Group(t.Context(), g.Name); err != nil || group.Size != 1 {
		t.Errorf("%+v, %v; want the created server", group, err)
	}
	if len(join.withdrawn) != 0 {
		t.Errorf("join credentials were withdrawn from %q", join.withdrawn)
	}
}

func TestBootVolumeIsDeletedWithItsServer(t *testing.T) {
	c := openstackdev.RequireForTest(t)
	proxy := newNovaProxy(t, c.IDs.Endpoints["compute"])
	g := groupOf(newGroupName(t))
	g.BootVolume = &openstack.BootVolume{SizeGiB: 7}
	config := configOf(c, g)
	config.Endpoints = map[string]string{"compute": proxy.Compute()}
	p := providerOf(t, config, openstack.Options{})
	t.Cleanup(func() { removeGroup(t, c, g.Name) })
	// This OpenStack has no Cinder, and the server therefore ends in ERROR. Only the request to Nova matters.
	if _, err := p.Grow(t.Context(), g.Name, cloud.LaunchRequest{Count: 1}); err != nil {
		t.Logf("without Cinder: %v", err)
	}
	var body struct {
		Server struct {
			ImageRef string           `json:"imageRef"`
			Devices  []map[string]any `json:"block_device_mapping_v2"`
		} `json:"server"`
	}
	for _, r := range proxy.seen() {
		if r.method == http.MethodPost {
			if err := json.Unmarshal(r.body, &body); err != nil {
				t.Fatal(err)
			}
		}
	}
	if body.Server.ImageRef != "" || len(body.Server.Devices) != 1 || body.Server.Devices[0]["delete_on_termination"] != true ||
		body.Server.Devices[0]["uuid"] != c.IDs.Image || body.Server.Devices[0]["volume_size"] != 7.0 ||
		body.Server.Devices[0]["destination_type"] != "volume" {
		t.Errorf("Nova received %+v", body.Server)
	}
}

func TestI7ListWithoutUnavailableCellIsAnError(t *testing.T) {
	c := openstackdev.RequireForTest(t)
	proxy := newNovaProxy(t, c.IDs.Endpoints["compute"])
	g := groupOf(newGroupName(t))
	launch(t, c, g.Name, 1)
	t.Cleanup(func() { removeGroup(t, c, g.Name) })
	config := configOf(c, g)
	config.Endpoints = map[string]string{"compute": proxy.Compute()}
	p := providerOf(t, config, openstack.Options{})
	// Nova answers in this way from microversion 2.69, see its guide "Handling Down Cells".
	proxy.setFaults(nil, func(server map[string]any) {
		for key := range server {
			if key != "id" && key != "tenant_id" && key != "created" && key != "links" {
				delete(server, key)
			}
		}
		server["status"] = "UNKNOWN"
	}, false)
	if list, err := p.Instances(t.Context(), g.Name); err == nil || cloud.IsNotFound(err) || list != nil {
		t.Errorf("Instances = %+v, %v; want an error", list, err)
	}
	if group, err := p.Group(t.Context(), g.Name); err == nil {
		t.Errorf("Group = %+v, want an error", group)
	}
	i, err := p.Instance(t.Context(), idOf(serversOf(t, c, g.Name)[0].ID))
	if err != nil || i.State != cloud.Unknown {
		t.Errorf("Instance = %+v, %v; want it %s", i, err, cloud.Unknown)
	}
}

func TestOrphanedInstanceIsDeletedAfterGracePeriod(t *testing.T) {
	c := openstackdev.RequireForTest(t)
	g := groupOf(newGroupName(t))
	launch(t, c, g.Name, 2)
	t.Cleanup(func() { removeGroup(t, c, g.Name) })
	config := configOf(c, g)
	p := providerOf(t, config, openstack.Options{})
	both := serversOf(t, c, g.Name)
	nodes := []orphans.Node{
		{Name: "other-name", SystemUUID: strings.ToUpper(both[0].ID), Ready: true},
		{Name: "ghost", ProviderID: "openstack:///" + "00000000-0000-4000-8000-000000000000"},
	}
	finder := orphans.NewFinder(p, orphans.GracePeriod{JoinTimeout: time.Minute, ConfirmFor: time.Hour, MinScans: 2})
	var found []orphans.Finding
	for _, later := range []time.Duration{10 * time.Minute, 90 * time.Minute} {
		machines, err := p.Instances(t.Context(), g.Name)
		if err != nil {
			t.Fatal(err)
		}
		if found, err = finder.FindOrphans(t.Context(), machines, nodes, time.Now().Add(later)); err != nil {
			t.Fatal(err)
		}
	}
	if len(found) != 2 || found[0].Kind != orphans.OrphanedInstance || found[0].ProviderID != idOf(both[1].ID) || !found[0].IsDue ||
		len(found[0].Proofs) < 3 || found[1].Kind != orphans.OrphanedNode || found[1].Name != "ghost" {
		t.Fatalf("found %+v", found)
	}
	hosts := func(context.Context) ([]cloud.NodeIdentity, error) { return nil, errors.New("unreachable") }
	if begun, err := orphans.DeleteDueOrphanedInstances(t.Context(), p, hosts, found, discardLog()); err == nil || len(begun) != 0 {
		t.Errorf("I7: without the Nodes %v are deleted, %v", begun, err)
	}
	hosts = func(context.Context) ([]cloud.NodeIdentity, error) {
		return []cloud.NodeIdentity{{Name: nodes[0].Name, SystemUUID: nodes[0].SystemUUID}, {Name: nodes[1].Name, ProviderID: nodes[1].ProviderID}}, nil
	}
	begun, err := orphans.DeleteDueOrphanedInstances(t.Context(), p, hosts, found, discardLog())
	if err != nil || len(begun) != 1 || begun[0].ProviderID != idOf(both[1].ID) {
		t.Errorf("deleted %v, %v", begun, err)
	}
	for len(serversOf(t, c, g.Name)) > 1 {
		look(t)
	}
	if left := serversOf(t, c, g.Name); left[0].ID != both[0].ID {
		t.Errorf("remaining: %s", left[0].ID)
	}
}
