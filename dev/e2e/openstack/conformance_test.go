// Package openstack_test contains the tests of the OpenStack provider that need a real OpenStack. `make test-openstack`
// starts an OpenStack. Without it the tests are skipped. They change quotas, images and similar settings of one project,
// and do not run in parallel.
package openstack_test

import (
	"context"
	"encoding/json"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/google/uuid"
	"github.com/gophercloud/gophercloud/v2"
	"github.com/gophercloud/gophercloud/v2/openstack/compute/v2/servers"

	openstackdev "github.com/slipway-dev/slipway/dev/openstack"
	"github.com/slipway-dev/slipway/internal/cloud"
	"github.com/slipway-dev/slipway/internal/cloud/conformance"
	"github.com/slipway-dev/slipway/internal/cloud/openstack"
)

// spare is the group of servers that a test passes to the next tests.
const spare = "spare"

// novaCloud is a group of servers of the real Nova. A proxy in front of Nova simulates the faults.
type novaCloud struct {
	*openstackdev.Cloud
	t     *testing.T
	nova  *novaProxy
	group string

	mu      sync.Mutex
	held    map[string]string // servers with an accepted deletion that was not forwarded, with the token of the request
	holding string            // the server for which the next deletion is held
	failing bool              // in ERROR, rather than deleting forever
}

func newNova(t *testing.T) conformance.Cloud {
	c := &novaCloud{Cloud: openstackdev.RequireForTest(t), t: t, group: newGroupName(t), held: map[string]string{}}
	c.nova = newNovaProxy(t, c.IDs.Endpoints["compute"])
	c.fill(conformance.MinInstances)
	t.Cleanup(func() {
		c.ClearFaults(t)
		c.moveTo(c.group, spare)
	})
	return c
}

// fill reuses servers of other tests, and launches the missing servers.
func (c *novaCloud) fill(want int) {
	c.moveTo(spare, c.group)
	launch(c.t, c.Cloud, c.group, max(0, want-len(c.active())))
	for len(c.active()) < want {
		look(c.t)
	}
}

func (c *novaCloud) active() []servers.Server {
	return slices.DeleteFunc(serversOf(c.t, c.Cloud, c.group), func(s servers.Server) bool {
		return s.Status != "ACTIVE" || s.TaskState != ""
	})
}

// moveTo changes the group of servers, at most six. It deletes servers in an unexpected state.
func (c *novaCloud) moveTo(from, to string) {
	ctx := context.WithoutCancel(c.t.Context())
	client := nova(c.t, c.Cloud, openstackdev.DemoCloud)
	kept := 0
	for _, s := range serversOf(c.t, c.Cloud, from) {
		if s.TaskState == "deleting" {
			continue
		}
		if kept == conformance.MinInstances || s.Status != "ACTIVE" {
			if err := servers.Delete(ctx, client, s.ID).ExtractErr(); err != nil && !gophercloud.ResponseCodeIs(err, http.StatusNotFound) {
				c.t.Error(err)
			}
			continue
		}
		if _, err := servers.UpdateMetadata(ctx, client, s.ID, servers.MetadataOpts{openstack.GroupKey: to}).Extract(); err != nil {
			c.t.Error(err)
		}
		kept++
	}
}

func (c *novaCloud) Provider(t *testing.T) cloud.Provider {
	config := configOf(c.Cloud, groupOf(c.group))
	config.Endpoints = map[string]string{"compute": c.nova.Compute()}
	return providerOf(t, config, openstack.Options{PageSize: 4})
}

func (c *novaCloud) Group() string { return c.group }

func (c *novaCloud) ProviderIDs() []string {
	var ids []string
	for _, s := range serversOf(c.t, c.Cloud, c.group) {
		if s.TaskState != "deleting" {
			ids = append(ids, idOf(s.ID))
		}
	}
	return ids
}

func idOf(server string) string { return "openstack:///" + server }

func serverOf(id string) string { return strings.TrimPrefix(id, "openstack:///") }

func (c *novaCloud) GroupSize() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	n := 0
	for _, id := range c.ProviderIDs() {
		if _, deleting := c.held[serverOf(id)]; !deleting || c.failing {
			n++
		}
	}
	return n
}

func (c *novaCloud) MissingID() string { return idOf(uuid.NewString()) }

func (c *novaCloud) ForeignID() string { return "openstack://Elsewhere/" + uuid.NewString() }

func (c *novaCloud) LoseInstance(t *testing.T, machine string) {
	t.Helper()
	if err := servers.Delete(t.Context(), nova(t, c.Cloud, openstackdev.DemoCloud), serverOf(machine)).ExtractErr(); err != nil {
		t.Fatal(err)
	}
	c.AwaitGone(t, machine)
}

func (c *novaCloud) AwaitGone(t *testing.T, machine string) {
	t.Helper()
	for {
		err := servers.Get(t.Context(), nova(t, c.Cloud, openstackdev.DemoCloud), serverOf(machine)).Err
		if gophercloud.ResponseCodeIs(err, http.StatusNotFound) {
			return
		}
		look(t)
	}
}

func (c *novaCloud) DeletionRequests() int {
	return c.nova.count(http.MethodDelete, `/servers/[^/]+$`)
}

// UnsupportedFaults implements conformance.Limited.
func (c *novaCloud) UnsupportedFaults() map[conformance.FaultKind]string {
	return map[conformance.FaultKind]string{conformance.ForgetsOperations: "Nova has no operations: the server itself is followed"}
}

func (c *novaCloud) InjectFault(t *testing.T, f conformance.Fault) {
	t.Helper()
	switch f.FaultKind {
	case conformance.Unavailable:
		c.nova.setFaults(novaError(http.StatusInternalServerError, "computeFault", "The server has either erred."), nil, false)
	case conformance.ConnectionReset:
		c.nova.setFaults(abort, nil, false)
	case conformance.TruncatedResponse:
		c.nova.setFaults(nil, nil, true)
	case conformance.ProxyPage:
		c.nova.setFaults(html(http.StatusOK), nil, false)
	case conformance.ProxyNotFound:
		c.nova.setFaults(html(http.StatusNotFound), nil, false)
	case conformance.PermissionDenied:
		c.nova.setFaults(novaError(http.StatusForbidden, "forbidden", "Policy doesn't allow os_compute_api:servers to be performed."), nil, false)
	case conformance.Throttled:
		c.nova.setFaults(throttled(f.RetryAfter), nil, false)
	case conformance.ListFailsMidway:
		c.nova.setFaults(func(w http.ResponseWriter, r *http.Request) bool {
			if r.URL.Query().Get("marker") == "" {
				return false
			}
			return novaError(http.StatusInternalServerError, "computeFault", "Unexpected.")(w, r)
		}, nil, false)
	case conformance.DeletionFails, conformance.DeletionHangs:
		c.mu.Lock()
		c.holding, c.failing = serverOf(f.ProviderID), f.FaultKind == conformance.DeletionFails
		c.mu.Unlock()
		c.nova.setFaults(c.acceptDeletion, c.show, false)
	case conformance.StaleLists:
		c.nova.setFaults(c.stale(t), nil, false)
	case conformance.QuotaExhausted:
		setQuota(t, c.Cloud, 0, -1) // existing servers may stay
	default:
		t.Fatalf("unsupported fault: %s", f.FaultKind)
	}
}

// acceptDeletion accepts a deletion instead of Nova.
func (c *novaCloud) acceptDeletion(w http.ResponseWriter, r *http.Request) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if r.Method != http.MethodDelete || !strings.HasSuffix(r.URL.Path, "/"+c.holding) {
		return false
	}
	c.held[c.holding] = r.Header.Get("X-Auth-Token")
	w.WriteHeader(http.StatusNoContent)
	return true
}

// show changes Nova's answer about a server with a accepted deletion. The server appears as deleting, or as failed.
func (c *novaCloud) show(server map[string]any) {
	c.mu.Lock()
	defer c.mu.Unlock()
	id, _ := server["id"].(string)
	if _, held := c.held[id]; !held {
		return
	}
	if c.failing {
		server["status"] = "ERROR"
		server["fault"] = map[string]any{"code": 500, "created": "2026-01-01T00:00:00Z", "message": "Failed to deallocate the network(s)."}
		return
	}
	server["OS-EXT-STS:task_state"] = "deleting"
}

// stale freezes the list in its current state.
func (c *novaCloud) stale(t *testing.T) func(http.ResponseWriter, *http.Request) bool {
	client := nova(t, c.Cloud, openstackdev.DemoCloud)
	var list json.RawMessage
	_, err := client.Get(t.Context(), client.ServiceURL("servers", "detail"), &list, nil) //nolint:bodyclose // it has been read
	if err != nil {
		t.Fatal(err)
	}
	answer := always(http.StatusOK, jsonType, string(list), nil)
	return func(w http.ResponseWriter, r *http.Request) bool {
		return strings.HasSuffix(r.URL.Path, "/servers/detail") && answer(w, r)
	}
}

func (c *novaCloud) ClearFaults(t *testing.T) {
	t.Helper()
	c.nova.setFaults(nil, nil, false)
	setQuota(t, c.Cloud, -1, -1)
	c.mu.Lock()
	held, failing := c.held, c.failing
	c.held, c.holding, c.failing = map[string]string{}, "", false
	c.mu.Unlock()
	for id := range held {
		if failing {
			continue
		}
		err := servers.Delete(context.WithoutCancel(t.Context()), nova(t, c.Cloud, openstackdev.DemoCloud), id).ExtractErr()
		if err != nil && !gophercloud.ResponseCodeIs(err, http.StatusNotFound) {
			t.Error(err)
		}
	}
}

func TestOpenStackPassesConformance(t *testing.T) {
	openstackdev.RequireForTest(t)
	conformance.Run(t, newNova)
}
