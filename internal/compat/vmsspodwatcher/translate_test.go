package vmsspodwatcher

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/slipway-dev/slipway/api/v1alpha1"
	"github.com/slipway-dev/slipway/internal/cloud/azure"
	"github.com/slipway-dev/slipway/internal/manager"
	"github.com/slipway-dev/slipway/internal/nodegroup"
	"github.com/slipway-dev/slipway/internal/testing/golden"
	"github.com/slipway-dev/slipway/internal/testing/must"
)

const (
	testScaleSet     = "aks-ci-12345678-vmss"
	testSubscription = "00000000-0000-0000-0000-000000000001"
)

func newProviderID(scaleSet, id string) string {
	return "azure:///subscriptions/" + testSubscription + "/resourceGroups/mc_demo/providers/Microsoft.Compute/virtualMachineScaleSets/" +
		scaleSet + "/virtualMachines/" + id
}

func TestNodeGroupIsValid(t *testing.T) {
	for _, changes := range [][]string{
		nil, {"SCHEDULED_CHECK_FALG=true"}, {"COOLDOWN=0", "SCHEDULED_CHECK_FLAG=true"}, {"NAMESPACE"},
	} {
		c := mustParse(t, changes...)
		g := c.ToNodeGroup(testScaleSet, 2)
		if errs := nodegroup.Validate(&g); len(errs) > 0 {
			t.Errorf("%v: %v", changes, errs)
		}
	}
}

func TestScaleSetOfMostNodesIsUsed(t *testing.T) {
	for want, ids := range map[ScaleSetID][]string{
		{}:                               {"", "aws:///eu-north-1a/i-1", "azure:///subscriptions/" + testSubscription + "/resourceGroups/g/providers/Microsoft.Compute/virtualMachines/a"},
		{testSubscription, testScaleSet}: {newProviderID("old", "0"), newProviderID(testScaleSet, "1"), newProviderID(testScaleSet, "2"), ""},
	} {
		if got := FindMostCommonScaleSet(ids); got != want {
			t.Errorf("%+v, want %+v", got, want)
		}
	}
}

// TestAutoscalerSyncFollowsDeletionsOnly: each change of the pool restarts the cluster autoscaler. A change per cooldown
// would prevent its work.
func TestAutoscalerSyncFollowsDeletionsOnly(t *testing.T) {
	for _, cooldown := range []string{"COOLDOWN=20", "COOLDOWN=30m", "COOLDOWN="} {
		c := mustParse(t, "FAKENP_FLAG=true", "AKS_RG=rg", "AKS_NAME=aks", "FAKE_NODEPOOL=fake", cooldown)
		if sync := c.MergeIntoClouds(testSubscription, manager.Clouds{}).Azure.CASSync; sync == nil || sync.Every != 0 {
			t.Errorf("%s: %+v, want it only after deletions", cooldown, sync)
		}
	}
}

func TestEnvironmentExtendsAzureConfig(t *testing.T) {
	c := mustParse(t, "FAKENP_FLAG=true", "AKS_RG=rg", "AKS_NAME=aks", "FAKE_NODEPOOL=fake", "COOLDOWN=20")
	got := c.MergeIntoClouds(testSubscription, manager.Clouds{Azure: &manager.AzureCloud{Config: azure.Config{Cloud: "AzureChina"}}})
	want := manager.Clouds{Azure: &manager.AzureCloud{
		Config:  azure.Config{Subscription: testSubscription, ResourceGroup: "MC_rg_aks_westeurope", Cloud: "AzureChina"},
		CASSync: &azure.CASSyncConfig{ResourceGroup: "rg", Cluster: "aks", AgentPool: "fake"},
	}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	if err := got.Azure.CASSync.Validate(); err != nil {
		t.Error(err)
	}
	if _, err := azure.New(got.Azure.Config, azure.Options{}); err != nil {
		t.Error(err)
	}
}

// The tests below are named after faults of the tool. Tests that need a cluster are in dev/e2e/nodegroup.

func TestFaultCheckIgnoresCooldown(t *testing.T) {
	c := mustParse(t, "SCHEDULED_CHECK_FALG=true")
	g := c.ToNodeGroup(testScaleSet, 0)
	rule := g.Spec.ScaleDown.IdleByLabel
	if rule.Cooldown.Duration != c.Cooldown || rule.Checks != 2 || rule.CheckEvery.Duration != c.Cooldown || rule.KeepUnused {
		t.Errorf("%+v", rule)
	}
}

func TestFaultUnusedNodesStayWithoutCheck(t *testing.T) {
	for text, keep := range map[string]bool{"true": false, "false": true} {
		c := mustParse(t, "SCHEDULED_CHECK_FALG="+text)
		if got := c.ToNodeGroup(testScaleSet, 0).Spec.ScaleDown.IdleByLabel.KeepUnused; got != keep {
			t.Errorf("check %s: keepUnused is %t", text, got)
		}
	}
}

func TestFaultPendingPodsProtectNoNode(t *testing.T) {
	c := mustParse(t)
	if keep := c.ToNodeGroup(testScaleSet, 0).Spec.ScaleDown.IdleByLabel.KeepForPending; keep != nil && !*keep {
		t.Error("want Pending pods to protect nodes")
	}
}

func TestFaultPoolMinimumIsUnknown(t *testing.T) {
	c := mustParse(t)
	if got := c.ToNodeGroup(testScaleSet, 3).Spec.MinSize; got != 3 {
		t.Errorf("%d", got)
	}
}

func TestNoReplacementsAreLaunched(t *testing.T) {
	c := mustParse(t)
	if got := c.ToNodeGroup(testScaleSet, 0).Spec.Replacement; got != v1alpha1.ReplaceNever {
		t.Errorf("replacement is %q", got)
	}
}

func TestPlaceholderPodsAreEvicted(t *testing.T) {
	c := mustParse(t)
	if got := c.ToNodeGroup(testScaleSet, 0).Spec.Drain.Protection; got != v1alpha1.EvictProtected {
		t.Errorf("protection is %s", got)
	}
}

func TestMigrationMatchesGolden(t *testing.T) {
	for name, tt := range map[string]struct {
		at      ScaleSetID
		changes []string
	}{
		"minimal": {ScaleSetID{}, []string{"NAMESPACE", "COOLDOWN=300"}},
		"complete": {ScaleSetID{testSubscription, testScaleSet}, []string{
			"SCHEDULED_CHECK_FALG=true", "FAKENP_FLAG=true", "AKS_RG=rg", "AKS_NAME=aks", "FAKE_NODEPOOL=fake",
		}},
	} {
		m, err := Migrate(newEnvironment(tt.changes...), tt.at)
		must.NoError(t, err)
		got, err := m.ToFile()
		must.NoError(t, err)
		golden.Check(t, filepath.Join("testdata", name+".golden"), got)
		groups, err := manager.ParseGroups(got)
		if err != nil || len(groups) != 1 {
			t.Errorf("%s: the manager reads %d groups: %v", name, len(groups), err)
		}
		if filled := !strings.Contains(string(got), "FILL-IN"); filled != (name == "complete") {
			t.Errorf("%s: filled in: %t", name, filled)
		}
	}
}
