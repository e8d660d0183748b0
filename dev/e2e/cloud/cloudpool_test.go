package cloud_test

import (
	"context"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	emulator "github.com/slipway-dev/slipway/dev/cloudpool"
	"github.com/slipway-dev/slipway/internal/cloud"
	"github.com/slipway-dev/slipway/internal/cloud/cloudpool"
	"github.com/slipway-dev/slipway/internal/cloud/conformance"
)

const workers = "workers"

type poolCloud struct {
	*emulator.Pool
	kind   emulator.Kind
	config cloudpool.Config
	grow   sync.Mutex
}

func newCloudpool(t *testing.T, kind emulator.Kind, multi bool) *poolCloud {
	t.Helper()
	const password = "secret"
	region := map[emulator.Kind]string{emulator.EC2: "eu-west-1", emulator.Spot: "eu-west-1"}[kind]
	p := emulator.New(emulator.Options{Name: workers, Kind: kind, Region: region, User: "admin", Password: password})
	t.Cleanup(p.Close)
	handler := p.Handler()
	if multi {
		handler = emulator.NewMultiPoolHandler(map[string]*emulator.Pool{workers: p})
	}
	server := httptest.NewServer(handler)
	t.Cleanup(server.Close)
	file := filepath.Join(t.TempDir(), "password")
	if err := os.WriteFile(file, []byte(password+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := p.AddMachines(t.Context(), conformance.MinInstances); err != nil {
		t.Fatal(err)
	}
	settle, wait := cloud.Duration(300*time.Millisecond), cloud.Duration(10*time.Second)
	one := cloudpool.PoolConfig{Name: workers, URL: server.URL, Scope: map[emulator.Kind]string{
		emulator.OpenStack: "RegionOne", emulator.EC2: region, emulator.Spot: region, emulator.GCE: emulator.Project,
		emulator.Azure: emulator.Subscription,
	}[kind]}
	if multi {
		one.Name, one.Multi = "", true
	}
	return &poolCloud{Pool: p, kind: kind, config: cloudpool.Config{
		Pools: []cloudpool.PoolConfig{one}, Auth: cloudpool.Auth{Username: "admin", PasswordFile: file},
		SettleTime: &settle, ObservationWait: &wait, PollInterval: cloud.Duration(20 * time.Millisecond),
		RequestTimeout: cloud.Duration(time.Minute),
	}}
}

func (c *poolCloud) Provider(t *testing.T) cloud.Provider {
	t.Helper()
	p, err := cloudpool.New(c.config, cloudpool.Options{Lock: func(context.Context, string) (func(), error) {
		c.grow.Lock()
		return c.grow.Unlock, nil
	}})
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func (*poolCloud) Group() string { return workers }

func (c *poolCloud) ProviderIDs() []string {
	var ids []string
	for _, m := range c.Pool.Machines() {
		ids = append(ids, m.ProviderID)
	}
	return ids
}

func (c *poolCloud) GroupSize() int { return c.DesiredSize() }

func (c *poolCloud) MissingID() string {
	id := c.ProviderIDs()[0]
	if c.kind == emulator.GCE || c.kind == emulator.Azure {
		return id + "-never-was"
	}
	last := "0"
	if strings.HasSuffix(id, last) {
		last = "1"
	}
	return id[:len(id)-1] + last
}

func (c *poolCloud) ForeignID() string {
	id := c.ProviderIDs()[0]
	for is, other := range map[string]string{
		"openstack:///": "openstack://RegionTwo/", "aws:///eu-west-1": "aws:///us-east-1", emulator.Project: "other-project",
		emulator.Subscription: "00000000-0000-0000-0000-0000000000ff",
	} {
		id = strings.Replace(id, is, other, 1)
	}
	return id
}

func (c *poolCloud) id(providerID string) string {
	for _, m := range c.Pool.Machines() {
		if m.ProviderID == providerID {
			return m.ID
		}
	}
	return ""
}

func (c *poolCloud) LoseInstance(t *testing.T, machine string) {
	t.Helper()
	if !c.Pool.EndMachine(c.id(machine)) {
		t.Fatalf("machine %s does not exist", machine)
	}
}

func (c *poolCloud) AwaitGone(t *testing.T, machine string) {
	t.Helper()
	if err := c.AwaitMachines(t.Context(), func([]emulator.Machine) bool { return c.id(machine) == "" }); err != nil {
		t.Fatal(err)
	}
}

// InjectFault translates faults to a cloudpool server. A list has no pages, so a page fault hits the middle of the answer. A
// stale server answers from a cache and reports its age. If the cache never gets newer, the server counts as
// unavailable, see below. A server forgets no operations, only what it knows of its machines.
func (c *poolCloud) InjectFault(t *testing.T, f conformance.Fault) {
	t.Helper()
	machine := c.id(f.ProviderID)
	switch f.FaultKind {
	case conformance.Unavailable:
		c.Pool.InjectFaults(emulator.Fault{Kind: emulator.Status, Status: http.StatusInternalServerError})
	case conformance.ConnectionReset:
		c.Pool.InjectFaults(emulator.Fault{Kind: emulator.Reset})
	case conformance.TruncatedResponse, conformance.ListFailsMidway:
		c.Pool.InjectFaults(emulator.Fault{Kind: emulator.Half})
	case conformance.ProxyPage:
		c.Pool.InjectFaults(emulator.Fault{Kind: emulator.HTML})
	case conformance.ProxyNotFound:
		c.Pool.InjectFaults(emulator.Fault{Kind: emulator.HTML, Status: http.StatusNotFound})
	case conformance.PermissionDenied:
		c.Pool.InjectFaults(emulator.Fault{Kind: emulator.Status, Status: http.StatusForbidden})
	case conformance.Throttled:
		c.Pool.InjectFaults(emulator.Fault{Kind: emulator.Throttled, After: f.RetryAfter})
	case conformance.DeletionFails:
		c.Pool.InjectFaults(emulator.Fault{Kind: emulator.TerminationFails, Machine: machine})
	case conformance.DeletionHangs:
		c.Pool.InjectFaults(emulator.Fault{Kind: emulator.TerminationHangs, Machine: machine})
	case conformance.StaleLists:
		c.Pool.InjectFaults(emulator.Fault{Kind: emulator.Stale, After: 200 * time.Millisecond})
	case conformance.QuotaExhausted:
		c.Pool.InjectFaults(emulator.Fault{
			Kind: emulator.Status, Status: http.StatusBadGateway, Method: http.MethodPost, Path: "/pool/size",
			Message: "failure to process POST /pool/size: Quota exceeded for instances",
		})
	case conformance.ForgetsOperations:
		for _, m := range c.Pool.Machines() {
			if m.State == emulator.Terminating {
				c.RemoveMembership(m.ID)
			}
		}
	}
}

func (c *poolCloud) ClearFaults(*testing.T) { c.Pool.ClearFaults() }

func (c *poolCloud) DeletionRequests() int { return c.CountRequests(http.MethodPost, "/terminate") }

func TestCloudpoolPassesConformance(t *testing.T) {
	t.Parallel()
	for _, kind := range []emulator.Kind{emulator.OpenStack, emulator.EC2, emulator.Spot, emulator.GCE, emulator.Azure} {
		t.Run(string(kind), func(t *testing.T) {
			t.Parallel()
			conformance.RunParallel(t, func(t *testing.T) conformance.Cloud { return newCloudpool(t, kind, kind == emulator.GCE) })
		})
	}
}

// TestI7UnrepeatedObservationProvesNothing uses a server with an observation as old as the provider. It never
// gets newer.
func TestI7UnrepeatedObservationProvesNothing(t *testing.T) {
	t.Parallel()
	c := newCloudpool(t, emulator.OpenStack, false)
	wait := cloud.Duration(0)
	c.config.ObservationWait = &wait
	p, victim, missing := c.Provider(t), c.ProviderIDs()[0], c.MissingID()
	c.Pool.InjectFaults(emulator.Fault{Kind: emulator.Stale})
	for range 3 {
		if i, err := p.Instance(t.Context(), missing); !cloud.IsThrottled(err) {
			t.Errorf("a machine that one observation lacks: %+v, %v; want Throttled", i, err)
		}
		if _, err := p.Delete(t.Context(), victim); !cloud.IsThrottled(err) {
			t.Errorf("a deletion after a possibly older observation: %v; want Throttled", err)
		}
	}
	if c.DeletionRequests() > 0 {
		t.Error("a machine was terminated")
	}
	c.Pool.ClearFaults()
	if _, err := p.Instance(t.Context(), missing); !cloud.IsNotFound(err) {
		t.Errorf("with a second observation: %v, want NotFound", err)
	}
}

// TestLostTerminationResponseTerminatesOnce uses a server that terminates a machine and cannot answer. It shows the
// machine as alive for a while. Each termination would lower the desired size.
func TestLostTerminationResponseTerminatesOnce(t *testing.T) {
	t.Parallel()
	c := newCloudpool(t, emulator.OpenStack, false)
	victim, size := c.ProviderIDs()[0], c.GroupSize()
	c.Pool.InjectFaults(emulator.Fault{Kind: emulator.Stale, After: 200 * time.Millisecond},
		emulator.Fault{Kind: emulator.LoseResponse, Path: "/terminate", Times: 1})
	if _, err := c.Provider(t).Delete(t.Context(), victim); err == nil || cloud.IsNotFound(err) {
		t.Fatalf("Delete: %v, want an error other than NotFound", err)
	}
	next := c.Provider(t) // another process continues
	op, err := next.Delete(t.Context(), victim)
	if err != nil && !cloud.IsNotFound(err) {
		t.Fatal(err)
	}
	for err == nil {
		var status cloud.OperationStatus
		if status, err = next.Status(t.Context(), op); err != nil || status.Err != nil {
			t.Fatal(err, status.Err)
		}
		if status.Done {
			break
		}
	}
	c.AwaitGone(t, victim)
	if c.DeletionRequests() != 1 || c.GroupSize() != size-1 {
		t.Errorf("%d terminations, and a size of %d; want 1 and %d", c.DeletionRequests(), c.GroupSize(), size-1)
	}
}
