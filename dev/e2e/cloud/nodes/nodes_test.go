// Package nodes_test checks that the emulated Azure's VMs are the nodes of a real control plane.
package nodes_test

import (
	"os"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/slipway-dev/slipway/dev/azure"
	"github.com/slipway-dev/slipway/dev/controlplane"
	"github.com/slipway-dev/slipway/dev/testbed"
	"github.com/slipway-dev/slipway/internal/cloud"
	provider "github.com/slipway-dev/slipway/internal/cloud/azure"
)

func TestMain(m *testing.M) { os.Exit(testbed.RunTestsAndStopShared(m)) }

// newProvider returns the provider as the manager creates it. It has a workload's identity, with tokens from the token
// service.
func newProvider(t *testing.T, bed *testbed.Testbed) *provider.Provider {
	t.Helper()
	p, err := provider.New(bed.AzureProviderConfig(), provider.Options{})
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// leaseOf returns the last heartbeat time of a node's kubelet.
func leaseOf(t *testing.T, bed *testbed.Testbed, node string) metav1.MicroTime {
	t.Helper()
	lease, err := bed.Client().CoordinationV1().Leases(corev1.NamespaceNodeLease).Get(t.Context(), node, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return *lease.Spec.RenewTime
}

func TestADeletedInstancesNodeGoesSilentAndANewOnesJoins(t *testing.T) {
	bed := testbed.StartShared(t)
	pool := controlplane.AKSPool{Name: "come", Spot: true}
	if err := bed.AddPool(t.Context(), pool, 3); err != nil {
		t.Fatal(err)
	}
	p := newProvider(t, bed)

	victim := pool.Node(1)
	follow(t, p, func() (cloud.Operation, error) { return p.Delete(t.Context(), victim.ProviderID) })
	node, err := bed.Client().CoreV1().Nodes().Get(t.Context(), victim.Name, metav1.GetOptions{})
	if err != nil || node.Labels["dev.slipway.dev/machine"] != "off" {
		t.Errorf("the deleted machine's node is %v, %v; want it there, its machine off", node, err)
	}
	if _, err := p.Instance(t.Context(), victim.ProviderID); !cloud.IsNotFound(err) {
		t.Errorf("the deleted machine: %v", err)
	}

	follow(t, p, func() (cloud.Operation, error) {
		return p.Grow(t.Context(), pool.ScaleSetName(), cloud.LaunchRequest{Count: 1})
	})
	fresh := pool.Node(3)
	node, err = bed.Client().CoreV1().Nodes().Get(t.Context(), fresh.Name, metav1.GetOptions{})
	if err != nil || node.Spec.ProviderID != fresh.ProviderID {
		t.Fatalf("the new machine's node is %v, %v", node, err)
	}
	leaseOf(t, bed, fresh.Name)
	instance, err := p.Instance(t.Context(), node.Spec.ProviderID)
	if err != nil || instance.ComputerName != node.Name || instance.State != cloud.Running {
		t.Errorf("the new machine is %+v, %v; want it running, by its node's name", instance, err)
	}
	if n, ok := provider.ParseInstanceNumber(pool.ScaleSetName(), node.Name); !ok || n != 3 {
		t.Errorf("the node's name says instance %d", n)
	}
}

func TestAMachineWhoseNodeWasDeletedFirstCanBeDeleted(t *testing.T) {
	bed := testbed.StartShared(t)
	pool := controlplane.AKSPool{Name: "first"}
	if err := bed.AddAgentPool(t.Context(), pool, 2, 0, 0); err != nil {
		t.Fatal(err)
	}
	p := newProvider(t, bed)
	victim := pool.Node(0)
	if err := bed.Client().CoreV1().Nodes().Delete(t.Context(), victim.Name, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	follow(t, p, func() (cloud.Operation, error) { return p.Delete(t.Context(), victim.ProviderID) })
	if bed.ARM.Capacity(pool.ScaleSetName()) != 1 {
		t.Errorf("the capacity is %d", bed.ARM.Capacity(pool.ScaleSetName()))
	}
	if _, err := bed.Client().CoreV1().Nodes().Get(t.Context(), victim.Name, metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("the node came back: %v", err)
	}
}

func TestAPreemptedInstanceLeavesItsScaleSet(t *testing.T) {
	bed := testbed.StartShared(t)
	pool := controlplane.AKSPool{Name: "taken", Spot: true}
	if err := bed.AddPool(t.Context(), pool, 2); err != nil {
		t.Fatal(err)
	}
	p := newProvider(t, bed)
	record, err := bed.Azure.Announce(azure.Announcement{Type: azure.Preempt, Resources: []string{pool.ResourceName(0)}})
	if err == nil {
		err = bed.Azure.StartEvent(record.EventID)
	}
	if err != nil {
		t.Fatal(err)
	}
	if _, err := bed.Azure.AwaitState(t.Context(), func(s azure.State) bool {
		r, _ := s.Event(record.EventID)
		return !r.IsListed()
	}); err != nil {
		t.Fatal(err)
	}
	if _, err := p.Instance(t.Context(), pool.ProviderID(0)); !cloud.IsNotFound(err) {
		t.Errorf("the preempted machine: %v, want NotFound", err)
	}
	if g, err := p.Group(t.Context(), pool.ScaleSetName()); err != nil || g.Size != 1 {
		t.Errorf("the group is %+v, %v; want size 1", g, err)
	}
}

const pollInterval = 20 * time.Millisecond

// follow starts an operation and waits for its success.
func follow(t *testing.T, p cloud.Provider, begin func() (cloud.Operation, error)) {
	t.Helper()
	op, err := begin()
	if err != nil {
		t.Fatal(err)
	}
	for {
		status, err := p.Status(t.Context(), op)
		if err != nil || status.Err != nil {
			t.Fatalf("the operation ended with %v, %v", status.Err, err)
		}
		if status.Done {
			return
		}
		select {
		case <-time.After(pollInterval):
		case <-t.Context().Done():
			t.Fatal("the test's time is over")
		}
	}
}
