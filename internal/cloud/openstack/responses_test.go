package openstack

import (
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/gophercloud/gophercloud/v2"
	"github.com/gophercloud/gophercloud/v2/openstack/compute/v2/flavors"
	"github.com/gophercloud/gophercloud/v2/openstack/compute/v2/servers"
	"github.com/gophercloud/gophercloud/v2/openstack/identity/v3/tokens"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/slipway-dev/slipway/internal/cloud"
	"github.com/slipway-dev/slipway/internal/testing/check"
	"github.com/slipway-dev/slipway/internal/testing/must"
)

const someID = "11111111-2222-3333-4444-555555555555"

func TestServiceErrorsMapToProviderErrors(t *testing.T) {
	for _, tc := range []struct {
		status    int
		body      string
		retry     string
		refusal   cloud.Refusal
		throttled time.Duration
		gone      bool
	}{
		{404, `{"itemNotFound": {"code": 404, "message": "Instance ` + someID + ` could not be found."}}`, "", "", 0, true},
		{404, `{"itemNotFound": {"code": 404, "message": "The resource could not be found."}}`, "", "", 0, false},
		{404, "<html>404 Not Found: " + someID + "</html>", "", "", 0, false}, // page of a proxy that repeats the address
		{404, "", "", "", 0, false},
		{200, `{"itemNotFound": {"message": "Instance ` + someID + ` could not be found."}}`, "", "", 0, false},
		{403, `{"forbidden": {"code": 403, "message": "Quota exceeded for cores: Requested 4, but already used 4 of 4 cores"}}`, "", cloud.NoQuota, 0, false},
		{403, `{"forbidden": {"code": 403, "message": "Maximum number of ports exceeded"}}`, "", cloud.NoQuota, 0, false},
		{413, `{"overLimit": {"code": 413, "message": "VolumeLimitExceeded: quota"}}`, "", cloud.NoQuota, 0, false},
		{403, `{"forbidden": {"code": 403, "message": "Policy doesn't allow it"}}`, "", cloud.NoRight, 0, false},
		{401, `{"error": {"code": 401, "message": "The request you have made requires authentication.", "title": "Unauthorized"}}`, "", cloud.NoRight, 0, false},
		{429, `{"overLimit": {"message": "rate-limited"}}`, "7", "", 7 * time.Second, false},
		{413, `{"overLimit": {"message": "rate-limited"}}`, "", "", defaultRetryDelay, false},
		{503, "", "9", "", 9 * time.Second, false},
		{503, "", "", "", 0, false},
		{409, `{"conflictingRequest": {"message": "Cannot 'delete' instance x while it is in task_state rebuilding"}}`, "", "", busyRetryDelay, false},
		{409, `{"conflictingRequest": {"message": "Instance x is locked"}}`, "", cloud.Protected, 0, false},
		{409, `{"NeutronError": {"type": "IpAddressGenerationFailure", "message": "No more IP addresses available on network 7."}}`, "", cloud.NoCapacity, 0, false},
		{400, `{"badRequest": {"code": 400, "message": "Can not find requested image"}}`, "", cloud.Invalid, 0, false},
		{400, "<html>bad gateway</html>", "", "", 0, false},
		{500, `{"computeFault": {"message": "Unexpected API Error."}}`, "", "", 0, false},
	} {
		err := fromAPIError("asking", gophercloud.ErrUnexpectedResponseCode{
			Actual: tc.status, Body: []byte(tc.body), ResponseHeader: http.Header{"Retry-After": {tc.retry}},
		})
		var throttled *cloud.ThrottledError
		_ = errors.As(err, &throttled)
		var after time.Duration
		if throttled != nil {
			after = throttled.RetryAfter
		}
		if cloud.RefusalOf(err) != tc.refusal || after != tc.throttled || isGone(err, someID) != tc.gone || cloud.IsNotFound(err) {
			t.Errorf("%d %s: %v, refusal %q, delay %s, gone %t", tc.status, tc.body, err, cloud.RefusalOf(err), after, isGone(err, someID))
		}
	}
}

// endlessResponse is a service with an endless response.
type endlessResponse struct{}

func (endlessResponse) RoundTrip(*http.Request) (*http.Response, error) {
	return &http.Response{StatusCode: http.StatusOK, Body: io.NopCloser(endlessResponse{})}, nil
}

func (endlessResponse) Read(into []byte) (int, error) { return len(into), nil }

func TestOversizedResponseIsNotRetried(t *testing.T) {
	response, err := cloud.LimitResponses(endlessResponse{}, maxResponseSize).RoundTrip(nil)
	must.NoError(t, err)
	_, err = io.Copy(io.Discard, response.Body)
	must.Not(t, !cloud.IsResponseTooLarge(err), "reading ended with %v, want a TooLargeError", err)
	again := retryReads(t.Context(), http.MethodGet, "", nil, err, 1)
	check.Not(t, !errors.Is(again, err), "retrying: %v, want it to end with %v", again, err)
	check.NoError(t, response.Body.Close())
}

func TestServerFaultsAreClassified(t *testing.T) {
	for message, want := range map[string]cloud.Refusal{
		"No valid host was found. ": cloud.NoCapacity,
		"Exceeded maximum number of retries. Exhausted all hosts available for": cloud.NoCapacity,
		"No more IP addresses available on network 7.":                          cloud.NoCapacity,
		"Quota exceeded for instances: Requested 1, but already used 10":        cloud.NoQuota,
		"Maximum number of ports exceeded":                                      cloud.NoQuota,
		"Image 1 could not be found.":                                           cloud.Invalid,
		"Image 1 is unacceptable: Image is not raw format":                      cloud.Invalid,
		"Failed to deallocate the network(s).":                                  "",
		"":                                                                      "",
	} {
		check.Is(t, want, classifyFault(message), message)
	}
}

func TestI7UnknownStatusIsUnknown(t *testing.T) {
	for _, tc := range []struct {
		status, task string
		want         cloud.State
	}{
		{"ACTIVE", "", cloud.Running},
		{"ACTIVE", "deleting", cloud.Deleting},
		{"ERROR", "deleting", cloud.Deleting},
		{"ACTIVE", "soft-deleting", cloud.Deleting},
		{"SOFT_DELETED", "", cloud.Deleting},
		{"DELETED", "", cloud.Deleting},
		{"BUILD", "spawning", cloud.Pending},
		{"ERROR", "", cloud.Failed},
		{"SHUTOFF", "", cloud.Stopped},
		{"UNKNOWN", "", cloud.Unknown},
		{"NEWER_THAN_THIS", "", cloud.Unknown},
		{"", "", cloud.Unknown},
	} {
		check.Is(t, tc.want, toState(tc.status, tc.task), tc.status, tc.task)
	}
}

func TestHostNameIsDerivedAsInNova(t *testing.T) {
	given := "given"
	for want, s := range map[string]servers.Server{
		"given":     {Name: "other", Hostname: &given},
		"my-node-1": {Name: "My_Node 1"}, "a-b": {Name: "a.b"}, "x": {Name: "-x.ü"},
	} {
		check.Is(t, want, hostname(&s), s.Name)
	}
}

func TestProviderIDIsNormalized(t *testing.T) {
	c := validConfig()
	c.Region = "here"
	p, err := New(c, Options{})
	must.NoError(t, err)
	for _, id := range []string{"openstack:///" + someID, "openstack://here/" + strings.ToUpper(someID)} {
		if got, err := p.Normalize(id); err != nil || got != "openstack:///"+someID {
			t.Errorf("%s: %q, %v", id, got, err)
		}
	}
	if got, ok := p.ProviderIDFromSystemUUID(strings.ToUpper(someID)); !ok || got != "openstack:///"+someID {
		t.Errorf("system UUID: %q, %t", got, ok)
	}
	for _, text := range []string{"", "Not Specified", "ec2-" + someID} {
		if got, ok := p.ProviderIDFromSystemUUID(text); ok {
			t.Errorf("%q is not a UUID, got %q", text, got)
		}
	}
	for _, id := range []string{"openstack://there/" + someID, someID, "openstack:///", "azure:///" + someID, "openstack:///" + someID + "/x"} {
		if got, err := p.Normalize(id); cloud.RefusalOf(err) != cloud.Invalid {
			t.Errorf("%s: %q, %v", id, got, err)
		}
	}
}

func TestConfiguredCapacityOverridesTheFlavor(t *testing.T) {
	// Regression test: the OpenStack autoscaler divided memory by 1024·1000. 4096 MB in Nova are 4 GiB.
	f := &flavors.Flavor{Name: "g", VCPUs: 2, RAM: 4096, Disk: 20, ExtraSpecs: map[string]string{
		"pci_passthrough:alias": "a100:2, l4:1", "resources:VGPU": "1", "bad": "many",
	}}
	g := &group{GroupConfig: GroupConfig{Resources: []ExtraSpecResource{
		{"pci_passthrough:alias", "nvidia.com/gpu"}, {"resources:VGPU", "nvidia.com/gpu"}, {"not:there", "x/y"},
	}}}
	check := func(want map[corev1.ResourceName]string) {
		t.Helper()
		got, err := g.flavorCapacity(f)
		must.Not(t, err != nil || len(got) != len(want), "%v, %v", got, err)
		for name, text := range want {
			if q := got[name]; q.Cmp(resource.MustParse(text)) != 0 {
				t.Errorf("%s: %s, want %s", name, q.String(), text)
			}
		}
	}
	check(map[corev1.ResourceName]string{"cpu": "2", "memory": "4Gi", "pods": "110", "ephemeral-storage": "20Gi", "nvidia.com/gpu": "4"})
	g.BootVolume = &BootVolume{SizeGiB: 50}
	g.Nodes.Capacity = corev1.ResourceList{"pods": resource.MustParse("64")}
	check(map[corev1.ResourceName]string{"cpu": "2", "memory": "4Gi", "pods": "64", "ephemeral-storage": "50Gi", "nvidia.com/gpu": "4"})
	g.Resources = []ExtraSpecResource{{"bad", "x/y"}}
	if _, err := g.flavorCapacity(f); cloud.RefusalOf(err) != cloud.Invalid {
		t.Errorf("extra spec that is not a number: %v", err)
	}
}

func TestFlavorsAreChosenInOrderOrSmallestFirst(t *testing.T) {
	all := []flavors.Flavor{
		{ID: "1", Name: "big", VCPUs: 8, RAM: 16384},
		{ID: "2", Name: "small", VCPUs: 2, RAM: 4096},
		{ID: "3", Name: "small-ssd", VCPUs: 2, RAM: 4096, Disk: 20, ExtraSpecs: map[string]string{"ssd": "true"}},
		{ID: "4", Name: "tiny", VCPUs: 1, RAM: 512},
	}
	memory := resource.MustParse("4Gi")
	for want, s := range map[string]FlavorSelection{
		"tiny small small-ssd big": {}, "small small-ssd big": {MinVCPUs: 2}, "tiny small small-ssd": {MaxMemory: &memory},
		"small-ssd": {ExtraSpecs: map[string]string{"ssd": "true"}}, "small": {Name: "small"},
	} {
		chosen, err := s.selectFlavors(all)
		var names []string
		for _, f := range chosen {
			names = append(names, f.Name)
		}
		got := strings.Join(names, " ")
		check.Not(t, err != nil || got != want, "%+v: %q, %v; want %q", s, got, err, want)
	}
	if _, err := (&FlavorSelection{MinVCPUs: 99}).selectFlavors(all); cloud.RefusalOf(err) != cloud.Invalid {
		t.Errorf("none within the limits: %v", err)
	}
	check.ErrorContains(t, check.Err(findFlavor(all, "m9")), "big, small, small-ssd, tiny")
}

func TestConfiguredRegionIsUsed(t *testing.T) {
	catalog := &tokens.ServiceCatalog{Entries: []tokens.CatalogEntry{{Type: "compute", Endpoints: []tokens.Endpoint{
		{Interface: "public", RegionID: "north", URL: "https://north"},
		{Interface: "public", Region: "south", URL: "https://south"},
		{Interface: "internal", RegionID: "north", URL: "https://inside"},
	}}}}
	for _, tc := range []struct{ region, face, want, failure string }{
		{"north", "public", "https://north", ""},
		{"south", "public", "https://south", ""},
		{"", "internal", "https://inside", ""},
		{"", "public", "", "want one of north, south"},
		{"LK", "public", "", `"LK"`},
		{"north", "admin", "", "no admin endpoint"},
	} {
		s := &session{login: &login{region: tc.region, availability: gophercloud.Availability(tc.face)}}
		got, err := s.findEndpoint(catalog, "compute")
		if got != tc.want || (err != nil) != (tc.failure != "") || err != nil && !strings.Contains(err.Error(), tc.failure) {
			t.Errorf("%+v: %q, %v", tc, got, err)
		}
	}
}

func TestOperationRoundTrips(t *testing.T) {
	for _, o := range []operation{{Delete: someID}, {Create: []string{someID}}} {
		got, err := decodeOperation(o.toCloudOperation(time.Now()).ID)
		check.Not(t, err != nil || got.Delete != o.Delete || len(got.Create) != len(o.Create), "%+v: %+v, %v", o, got, err)
	}
	for _, id := range []string{"", "x", "{}", `{"delete":"x"}`, `{"delete":"` + someID + `","create":["` + someID + `"]}`, `{"create":[]}`} {
		if o, err := decodeOperation(id); err == nil {
			t.Errorf("%q: %+v", id, o)
		}
	}
}

func FuzzServiceErrors(f *testing.F) {
	f.Add(404, `{"itemNotFound": {"code": 404, "message": "Instance x could not be found."}}`)
	f.Add(500, "<html>")
	f.Add(404, `{"a": null}`)
	f.Fuzz(func(t *testing.T, status int, body string) {
		err := fromAPIError("asking", gophercloud.ErrUnexpectedResponseCode{Actual: status, Body: []byte(body)})
		check.Not(t, isGone(err, someID) && (status != http.StatusNotFound || !json.Valid([]byte(body))), "I7: %d %q means gone", status, body)
		_ = classifyFault(body)
		_, _ = sumDeviceCounts(body)
		_, _ = decodeOperation(body)
	})
}

func TestI4MetadataDecidesTheOwnerOfAServer(t *testing.T) {
	p := &Provider{
		config: Config{ClusterName: "shop", FormerClusterNames: []string{"kubernetes"}},
		groups: []*group{{GroupConfig: GroupConfig{Name: "workers", AdoptNamePrefix: "kube-worker-"}}},
	}
	for name, c := range map[string]struct {
		server        servers.Server
		group         string
		ours, adopted bool
	}{
		"marked":              {servers.Server{Name: "x", Metadata: map[string]string{ClusterKey: "shop", GroupKey: "workers"}}, "workers", true, false},
		"other cluster":       {servers.Server{Name: "kube-worker-ab12", Metadata: map[string]string{ClusterKey: "blog", GroupKey: "workers"}}, "workers", false, false},
		"former cluster name": {servers.Server{Name: "x", Metadata: map[string]string{ClusterKey: "kubernetes", GroupKey: "workers"}}, "workers", true, true},
		"no metadata, prefix": {servers.Server{Name: "kube-worker-ab12", Metadata: map[string]string{}}, "workers", true, true},
		"no metadata":         {servers.Server{Name: "web", Metadata: map[string]string{}}, "", false, false},
	} {
		c.server.ID, c.server.Status = someID, "ACTIVE"
		m, err := p.toServerInstance(&c.server)
		check.Not(t, err != nil || m.belongsToCluster != c.ours || m.OwnerUncertain != c.adopted || m.Group != c.group, "%s: %+v, %v", name, m, err)
	}
}

func TestServerThatCannotBeDeletedIsProtected(t *testing.T) {
	p := &Provider{config: Config{ClusterName: "shop"}}
	ours, yes := map[string]string{ClusterKey: "shop", GroupKey: "workers"}, true
	for name, c := range map[string]struct {
		server servers.Server
		why    string // empty when it is not kept
	}{
		"this cluster":           {servers.Server{Status: "ACTIVE", Metadata: ours}, ""},
		"locked":                 {servers.Server{Status: "ACTIVE", Metadata: ours, Locked: &yes}, "locked"},
		"no cluster":             {servers.Server{Status: "ACTIVE", Metadata: map[string]string{}}, "cluster shop"},
		"no cluster, deleting":   {servers.Server{Status: "ACTIVE", TaskState: "deleting", Metadata: map[string]string{}}, ""},
		"locked, soft-deleted":   {servers.Server{Status: "SOFT_DELETED", Metadata: ours, Locked: &yes}, "locked"},
		"other cluster, stopped": {servers.Server{Status: "SHUTOFF", Metadata: map[string]string{ClusterKey: "blog"}}, "cluster shop"},
	} {
		c.server.ID = someID
		m, err := p.toServerInstance(&c.server)
		if err != nil || m.DeletionProtected != (c.why != "") || (m.DeletionProtectionReason != "") != m.DeletionProtected || !strings.Contains(m.DeletionProtectionReason, c.why) {
			t.Errorf("%s: %+v, %v; want it protected because of %q", name, m.Instance, err, c.why)
		}
	}
}
