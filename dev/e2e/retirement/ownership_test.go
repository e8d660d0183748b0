package retirement_test

import (
	"strings"
	"sync"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/slipway-dev/slipway/api/v1alpha1"
	"github.com/slipway-dev/slipway/dev/controlplane"
	"github.com/slipway-dev/slipway/dev/faultproxy"
	"github.com/slipway-dev/slipway/dev/testbed"
	"github.com/slipway-dev/slipway/internal/retirement"
)

var cloudpoolRights struct {
	sync.Once
	err error
}

// cloudpoolRetirements returns a client for NodeRetirements with the token of the shipped cloudpool.
func (f *fixture) cloudpoolRetirements() dynamic.ResourceInterface {
	f.t.Helper()
	cloudpoolRights.Do(func() {
		cloudpoolRights.err = f.ApplyManifests(f.ctx, "cloudpool/rbac.yaml", "cloudpool/admission.yaml")
	})
	f.check(cloudpoolRights.err)
	f.check(f.AwaitPermissions(f.ctx, managerNamespace, "slipway-cloudpool", "slipway-cloudpool"))
	path, err := f.ServiceAccountKubeconfig(f.ctx, managerNamespace, "slipway-cloudpool", controlplane.TokenOptions{})
	f.check(err)
	config, err := clientcmd.BuildConfigFromFlags("", path)
	f.check(err)
	client, err := dynamic.NewForConfig(config)
	f.check(err)
	return client.Resource(retirements)
}

// named returns a NodeRetirement for the test's own manager.
func (f *fixture) named(name, spec string) *unstructured.Unstructured {
	o := parse(f.t, "NodeRetirement", spec)
	o.SetGenerateName("")
	o.SetName(name)
	o.SetLabels(map[string]string{shard: f.name})
	f.t.Cleanup(func() {
		_ = dynamic.NewForConfigOrDie(f.RESTConfig()).Resource(retirements).Delete(f.Background(), name, metav1.DeleteOptions{})
	})
	return o
}

// TestI4ACloudpoolsTokenDeletesNoVMOfItsOwn uses the token to create a NodeRetirement for a VM in no group. Its Node is
// made up.
func TestI4ACloudpoolsTokenDeletesNoVMOfItsOwn(t *testing.T) {
	t.Parallel()
	f := newFixture(t, "standalone", 1, inputGroup)
	vm := f.ARM.AddVM("standalone-db")
	f.manage("", faultproxy.New(kindOf))
	cloudpool := f.cloudpoolRetirements()
	spec := "nodeName: " + vm.Resource + "\nproviderID: " + vm.ProviderID + "\nreason: Requested"

	f.check(testbed.PollUntil(f.ctx, "the policy is in force", func() bool {
		_, err := cloudpool.Create(f.ctx, f.named("standalone-try", spec), metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		return apierrors.IsForbidden(err) && strings.Contains(err.Error(), "spec.nodeUID")
	}))
	withUID := spec + "\nnodeUID: 11111111-2222-3333-4444-555555555555"
	_, err := cloudpool.Create(f.ctx, f.named("standalone-uid", withUID), metav1.CreateOptions{})
	f.check(err)
	if rt := f.awaitPhase("standalone-uid", v1alpha1.Refused); retirement.EarlyEndCode(rt) != retirement.InstanceNotOwned {
		t.Errorf("with a made-up UID: %s, %s", retirement.EarlyEndCode(rt), rt.Status.Message)
	}
	f.create("NodeRetirement", "standalone-any", spec)
	f.named("standalone-any", spec)
	if rt := f.awaitPhase("standalone-any", v1alpha1.Refused); retirement.EarlyEndCode(rt) != retirement.InstanceNotOwned {
		t.Errorf("without a UID: %s, %s", retirement.EarlyEndCode(rt), rt.Status.Message)
	}
	if _, there := f.ARM.VM(vm.Resource); !there {
		t.Error("I4: the VM is gone")
	}
	f.left(1)
}

func TestTheCloudpoolsTokenSetsOnlyTheFieldsItNeeds(t *testing.T) {
	t.Parallel()
	f := newFixture(t, "fields", 1, inputGroup)
	cloudpool := f.cloudpoolRetirements()
	const good = "nodeName: fields-node\nnodeUID: 11111111-2222-3333-4444-555555555555\nreason: Surplus\nproviderID: azure:///x\ngroup: fields"
	refuses := func(spec, want string) bool {
		_, err := cloudpool.Create(f.ctx, f.named("fields-try", spec), metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		return apierrors.IsForbidden(err) && strings.Contains(err.Error(), want)
	}
	f.check(testbed.PollUntil(f.ctx, "the policy is in force", func() bool {
		return refuses("nodeName: fields-node\nreason: Surplus", "spec.nodeUID")
	}))
	for name, tt := range map[string]struct{ spec, want string }{
		"another reason": {strings.Replace(good, "Surplus", "InstanceGone", 1), "spec.reason"},
		"no reason":      {"nodeName: fields-node\nnodeUID: u\nreason: Idle", "spec.reason"},
		"an override":    {good + "\noverrideProtection: {by: me, why: so, until: '2030-01-01T00:00:00Z'}", "overrideProtection"},
		"a notice":       {good + "\nnotice: {source: azure, id: '1', type: Preempt}", "notice"},
		"a lifetime":     {good + "\nttlAfterFinished: 0s", "ttlAfterFinished"},
	} {
		if !refuses(tt.spec, tt.want) {
			t.Errorf("%s is not refused with %q", name, tt.want)
		}
	}
	if _, err := cloudpool.Create(f.ctx, f.named("fields-good", good), metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}}); err != nil {
		t.Errorf("what the cloudpool does itself: %v", err)
	}
}
