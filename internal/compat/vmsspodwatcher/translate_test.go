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
	set          = "aks-ci-12345678-vmss"
	subscription = "00000000-0000-0000-0000-000000000001"
)

func providerID(in, id string) string {
	return "azure:///subscriptions/" + subscription + "/resourceGroups/mc_demo/providers/Microsoft.Compute/virtualMachineScaleSets/" +
		in + "/virtualMachines/" + id
}

func TestTheGroupIsOneThatTheManagerTakes(t *testing.T) {
	for _, changes := range [][]string{
		nil, {"SCHEDULED_CHECK_FALG=true"}, {"COOLDOWN=0", "SCHEDULED_CHECK_FLAG=true"}, {"NAMESPACE"},
	} {
		c := parsed(t, changes...)
		g := c.NodeGroup(set, 2)
		if errs := nodegroup.Check(&g); len(errs) > 0 {
			t.Errorf("%v: %v", changes, errs)
		}
	}
}

func TestThePlaceIsThatOfMostNodes(t *testing.T) {
	for want, ids := range map[Place][]string{
		{}:                  {"", "aws:///eu-north-1a/i-1", "azure:///subscriptions/" + subscription + "/resourceGroups/g/providers/Microsoft.Compute/virtualMachines/a"},
		{subscription, set}: {providerID("old", "0"), providerID(set, "1"), providerID(set, "2"), ""},
	} {
		if got := PlaceOf(ids); got != want {
			t.Errorf("%+v, want %+v", got, want)
		}
	}
}

// TestTheClusterAutoscalerIsSyncedAfterDeletionsAlone: each change of the pool restarts it, so that one per cooldown would keep it from
// its work where nothing was deleted.
func TestTheClusterAutoscalerIsSyncedAfterDeletionsAlone(t *testing.T) {
	for _, cooldown := range []string{"COOLDOWN=20", "COOLDOWN=30m", "COOLDOWN="} {
		c := parsed(t, "FAKENP_FLAG=true", "AKS_RG=rg", "AKS_NAME=aks", "FAKE_NODEPOOL=fake", cooldown)
		if sync := c.Clouds(subscription, manager.Clouds{}).Azure.CASSync; sync == nil || sync.Every != 0 {
			t.Errorf("%s: %+v, want it for deletions, and for nothing else", cooldown, sync)
		}
	}
}

func TestEnvironmentConfiguresAzureAndKeepsTheFile(t *testing.T) {
	c := parsed(t, "FAKENP_FLAG=true", "AKS_RG=rg", "AKS_NAME=aks", "FAKE_NODEPOOL=fake", "COOLDOWN=20")
	got := c.Clouds(subscription, manager.Clouds{Azure: &manager.AzureCloud{Config: azure.Config{Cloud: "AzureChina"}}})
	want := manager.Clouds{Azure: &manager.AzureCloud{
		Config:  azure.Config{Subscription: subscription, ResourceGroup: "MC_rg_aks_westeurope", Cloud: "AzureChina"},
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

// What the tool did wrong, or not at all, is named by the tests below. Those that need a cluster are in dev/e2e/nodegroup.

func TestFaultTheCheckMayBeatTheCooldown(t *testing.T) {
	c := parsed(t, "SCHEDULED_CHECK_FALG=true")
	g := c.NodeGroup(set, 0)
	rule := g.Spec.ScaleDown.IdleByLabel
	if rule.Cooldown.Duration != c.Cooldown || rule.Checks != 2 || rule.CheckEvery.Duration != c.Cooldown || rule.KeepUnused {
		t.Errorf("%+v", rule)
	}
}

func TestFaultUnusedNodesStayOnlyWithoutTheCheck(t *testing.T) {
	for text, keep := range map[string]bool{"true": false, "false": true} {
		c := parsed(t, "SCHEDULED_CHECK_FALG="+text)
		if got := c.NodeGroup(set, 0).Spec.ScaleDown.IdleByLabel.KeepUnused; got != keep {
			t.Errorf("check %s: keepUnused is %t", text, got)
		}
	}
}

func TestFaultPendingPodsKeepNoNode(t *testing.T) {
	c := parsed(t)
	if keep := c.NodeGroup(set, 0).Spec.ScaleDown.IdleByLabel.KeepForPending; keep != nil && !*keep {
		t.Error("Pending pods do not count")
	}
}

func TestFaultTheMinimumOfThePoolIsUnknown(t *testing.T) {
	c := parsed(t)
	if got := c.NodeGroup(set, 3).Spec.Minimum; got != 3 {
		t.Errorf("%d", got)
	}
}

func TestMachinesAreTheClusterAutoscalersToMake(t *testing.T) {
	c := parsed(t)
	if got := c.NodeGroup(set, 0).Spec.Replacement; got != v1alpha1.ReplaceNever {
		t.Errorf("replacement is %q", got)
	}
}

func TestPlaceholderPodsLeaveWithTheirNode(t *testing.T) {
	c := parsed(t)
	if got := c.NodeGroup(set, 0).Spec.Drain.Protection; got != v1alpha1.EvictProtected {
		t.Errorf("protection is %s", got)
	}
}

func TestMigrationsAreAsTheyWere(t *testing.T) {
	for name, tt := range map[string]struct {
		at      Place
		changes []string
	}{
		"minimal": {Place{}, []string{"NAMESPACE", "COOLDOWN=300"}},
		"whole": {Place{subscription, set}, []string{
			"SCHEDULED_CHECK_FALG=true", "FAKENP_FLAG=true", "AKS_RG=rg", "AKS_NAME=aks", "FAKE_NODEPOOL=fake",
		}},
	} {
		m, err := Migrate(env(tt.changes...), tt.at)
		must.NoError(t, err)
		got, err := m.File()
		must.NoError(t, err)
		golden.Check(t, filepath.Join("testdata", name+".golden"), got)
		groups, err := manager.ParseGroups(got)
		if err != nil || len(groups) != 1 {
			t.Errorf("%s: the manager reads %d groups: %v", name, len(groups), err)
		}
		if filled := !strings.Contains(string(got), "FILL-IN"); filled != (name == "whole") {
			t.Errorf("%s: filled in: %t", name, filled)
		}
	}
}
