package vmsspodwatcher

import (
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/slipway-dev/slipway/api/v1alpha1"
	"github.com/slipway-dev/slipway/internal/cloud"
	"github.com/slipway-dev/slipway/internal/cloud/azure"
	"github.com/slipway-dev/slipway/internal/manager"
	"github.com/slipway-dev/slipway/internal/nodegroup"
	"github.com/slipway-dev/slipway/internal/testing/check"
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
		errs := nodegroup.Validate(&g)
		check.Not(t, len(errs) > 0, "%v: %v", changes, errs)
	}
}

func TestScaleSetOfMostNodesIsUsed(t *testing.T) {
	for want, ids := range map[ScaleSetID][]string{
		{}:                               {"", "aws:///eu-north-1a/i-1", "azure:///subscriptions/" + testSubscription + "/resourceGroups/g/providers/Microsoft.Compute/virtualMachines/a"},
		{testSubscription, testScaleSet}: {newProviderID("old", "0"), newProviderID(testScaleSet, "1"), newProviderID(testScaleSet, "2"), ""},
	} {
		check.Is(t, want, FindMostCommonScaleSet(ids))
	}
}

// TestAutoscalerSyncFollowsDeletionsOnly: each change of the pool restarts the cluster autoscaler. A change per cooldown
// would prevent its work.
func TestAutoscalerSyncFollowsDeletionsOnly(t *testing.T) {
	for _, cooldown := range []string{"COOLDOWN=20", "COOLDOWN=30m", "COOLDOWN="} {
		c := mustParse(t, "FAKENP_FLAG=true", "AKS_RG=rg", "AKS_NAME=aks", "FAKE_NODEPOOL=fake", cooldown)
		clouds, _ := c.MergeIntoClouds(testSubscription, manager.Clouds{})
		sync := clouds.Azure.CASSync
		check.Not(t, sync == nil || sync.Every != 0, "%s: %+v, want it only after deletions", cooldown, sync)
	}
}

func TestEnvironmentExtendsAzureConfig(t *testing.T) {
	c := mustParse(t, "FAKENP_FLAG=true", "AKS_RG=rg", "AKS_NAME=aks", "FAKE_NODEPOOL=fake", "COOLDOWN=20")
	got, warnings := c.MergeIntoClouds(testSubscription, manager.Clouds{Azure: &manager.AzureCloud{Config: azure.Config{Cloud: "AzureChina"}}})
	check.Len(t, 0, warnings)
	want := manager.Clouds{Azure: &manager.AzureCloud{
		Config:  azure.Config{Subscription: testSubscription, ResourceGroup: "MC_rg_aks_westeurope", Cloud: "AzureChina"},
		CASSync: &azure.CASSyncConfig{ResourceGroup: "rg", Cluster: "aks", AgentPool: "fake"},
	}}
	check.Equal(t, want, got)
	check.NoError(t, got.Azure.CASSync.Validate())
	check.NoError(t, check.Err(azure.New(got.Azure.Config, azure.Options{})))
}

func TestCloudConfigAddsSchedule(t *testing.T) {
	c := mustParse(t, "FAKENP_FLAG=true", "AKS_RG=rg", "AKS_NAME=aks", "FAKE_NODEPOOL=fake")
	file := azure.CASSyncConfig{Every: cloud.Duration(time.Hour)}
	got, warnings := c.MergeIntoClouds(testSubscription, manager.Clouds{Azure: &manager.AzureCloud{CASSync: &file}})
	check.Len(t, 0, warnings)
	check.Equal(t, &azure.CASSyncConfig{ResourceGroup: "rg", Cluster: "aks", AgentPool: "fake", Every: cloud.Duration(time.Hour)}, got.Azure.CASSync)
	check.NoError(t, got.Azure.CASSync.Validate())
	check.Is(t, azure.CASSyncConfig{Every: cloud.Duration(time.Hour)}, file) // the file is merged again later
}

func TestOverriddenVariablesAreReported(t *testing.T) {
	const other = "00000000-0000-0000-0000-000000000002"
	file := manager.Clouds{Azure: &manager.AzureCloud{
		Config:  azure.Config{Subscription: other, ResourceGroup: "Other"},
		CASSync: &azure.CASSyncConfig{ResourceGroup: "RG", Cluster: "other", AgentPool: "other"},
	}}
	c := mustParse(t, "AZURE_SUBSCRIPTION_ID="+testSubscription, "FAKENP_FLAG=true", "AKS_RG=rg", "AKS_NAME=aks", "FAKE_NODEPOOL=fake")
	got, warnings := c.MergeIntoClouds(testSubscription, file)
	check.Equal(t, file, got)
	check.Len(t, 4, warnings) // AKS_RG differs only in letter case
	check.Contains(t, strings.Join(warnings, "\n"), "$VMSS_RG: MC_rg_aks_westeurope is ignored, because azure.resourceGroup in --cloud-config overrides it with Other",
		"$AZURE_SUBSCRIPTION_ID: "+testSubscription, "$AKS_NAME: aks", "$FAKE_NODEPOOL: fake")
	c = mustParse(t)
	_, warnings = c.MergeIntoClouds(testSubscription, file)
	check.Len(t, 1, warnings) // the sync and the subscription are only in the file
}

// The tests below are named after faults of the tool. Tests that need a cluster are in dev/e2e/nodegroup.

func TestFaultCheckIgnoresCooldown(t *testing.T) {
	c := mustParse(t, "SCHEDULED_CHECK_FALG=true")
	g := c.ToNodeGroup(testScaleSet, 0)
	rule := g.Spec.ScaleDown.IdleByLabel
	check.Not(t, rule.Cooldown.Duration != c.Cooldown || rule.Checks != 2 || rule.CheckEvery.Duration != c.Cooldown || rule.KeepUnused, "%+v", rule)
}

func TestFaultUnusedNodesStayWithoutCheck(t *testing.T) {
	for text, keep := range map[string]bool{"true": false, "false": true} {
		c := mustParse(t, "SCHEDULED_CHECK_FALG="+text)
		got := c.ToNodeGroup(testScaleSet, 0).Spec.ScaleDown.IdleByLabel.KeepUnused
		check.Not(t, got != keep, "check %s: keepUnused is %t", text, got)
	}
}

func TestFaultPendingPodsProtectNoNode(t *testing.T) {
	c := mustParse(t)
	keep := c.ToNodeGroup(testScaleSet, 0).Spec.ScaleDown.IdleByLabel.KeepForPending
	check.Not(t, keep != nil && !*keep, "want Pending pods to protect nodes")
}

func TestFaultPoolMinimumIsUnknown(t *testing.T) {
	c := mustParse(t)
	check.Is(t, 3, c.ToNodeGroup(testScaleSet, 3).Spec.MinSize)
}

func TestNoReplacementsAreLaunched(t *testing.T) {
	c := mustParse(t)
	check.Is(t, v1alpha1.ReplaceNever, c.ToNodeGroup(testScaleSet, 0).Spec.Replacement)
}

func TestPlaceholderPodsAreEvicted(t *testing.T) {
	c := mustParse(t)
	check.Is(t, v1alpha1.EvictProtected, c.ToNodeGroup(testScaleSet, 0).Spec.Drain.Protection)
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
		check.Not(t, err != nil || len(groups) != 1, "%s: the manager reads %d groups: %v", name, len(groups), err)
		filled := !strings.Contains(string(got), "FILL-IN")
		check.Not(t, filled != (name == "complete"), "%s: filled in: %t", name, filled)
	}
}

// newEnvironment returns a complete environment with changes: NAME=VALUE sets a variable, NAME removes it.
func newEnvironment(changes ...string) []string {
	all := []string{
		"COOLDOWN=10m", "LABEL_KEY=app", "LABEL_VALUE=runner", "NAMESPACE=ci", "VMSS_RG=MC_rg_aks_westeurope", "FOCUS_NODEPOOL=ci",
		"HOME=/root",
	}
	for _, c := range changes {
		name, _, sets := strings.Cut(c, "=")
		all = slices.DeleteFunc(all, func(e string) bool { return strings.HasPrefix(e, name+"=") })
		if sets {
			all = append(all, c)
		}
	}
	return all
}

func mustParse(t *testing.T, changes ...string) Config {
	t.Helper()
	c, err := Parse(newEnvironment(changes...))
	must.NoError(t, err)
	return c
}

func TestCooldownIsDurationOrSeconds(t *testing.T) {
	for text, want := range map[string]time.Duration{
		"10m": 10 * time.Minute, "300": 5 * time.Minute, "0": 0, "1h30m": 90 * time.Minute, "": 10 * time.Minute,
	} {
		check.Is(t, want, mustParse(t, "COOLDOWN="+text).Cooldown, text)
	}
}

func TestCheckFlagIsReadInBothSpellings(t *testing.T) {
	for _, tt := range []struct {
		set   []string
		on    bool
		warns bool
	}{
		{nil, false, false},
		{[]string{"SCHEDULED_CHECK_FALG=true"}, true, false},
		{[]string{"SCHEDULED_CHECK_FLAG=TRUE"}, true, false},
		{[]string{"SCHEDULED_CHECK_FALG=1", "SCHEDULED_CHECK_FLAG=true"}, true, false},
		{[]string{"SCHEDULED_CHECK_FALG=false", "SCHEDULED_CHECK_FLAG=true"}, false, true},
		{[]string{"SCHEDULED_CHECK_FALG=off"}, false, false},
	} {
		c := mustParse(t, tt.set...)
		check.Not(t, c.ScheduledCheck != tt.on || (len(c.Warnings) > 0) != tt.warns, "%v: %t, %q", tt.set, c.ScheduledCheck, c.Warnings)
	}
}

func TestI10BadInputNamesVariableAndValue(t *testing.T) {
	for change, want := range map[string]string{
		"COOLDOWN=soon":                `$COOLDOWN: "soon": want a duration such as 10m, or seconds`,
		"COOLDOWN=-5":                  `$COOLDOWN: "-5"`,
		"LABEL_KEY":                    `$LABEL_KEY: "": want the label key`,
		"LABEL_KEY=a b":                `$LABEL_KEY: "a b"`,
		"LABEL_VALUE=":                 `$LABEL_VALUE: "": want the label value`,
		"NAMESPACE=CI":                 `$NAMESPACE: "CI"`,
		"VMSS_RG":                      `$VMSS_RG: ""`,
		"FOCUS_NODEPOOL=My Pool":       `$FOCUS_NODEPOOL: "My Pool"`,
		"SCHEDULED_CHECK_FALG=perhaps": `$SCHEDULED_CHECK_FALG: "perhaps": want true or false`,
		"FAKENP_FLAG=true":             `$AKS_RG: "": want the resource group of the AKS cluster, because $FAKENP_FLAG is on`,
		"AZURE_SUBSCRIPTION_ID=prod":   `$AZURE_SUBSCRIPTION_ID: "prod": want a subscription ID, a GUID`,
	} {
		if _, err := Parse(newEnvironment(change)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %s", change, err, want)
		}
	}
	_, err := Parse(nil)
	for _, name := range []string{"LABEL_KEY", "LABEL_VALUE", "VMSS_RG", "FOCUS_NODEPOOL"} {
		check.Not(t, err == nil || !strings.Contains(err.Error(), "$"+name), "nothing set: %v, want %s named", err, name)
	}
}

func FuzzParse(f *testing.F) {
	f.Add("COOLDOWN=300\nLABEL_KEY=a\nLABEL_VALUE=b\nVMSS_RG=g\nFOCUS_NODEPOOL=p")
	f.Add("SCHEDULED_CHECK_FALG=true\nFAKENP_FLAG=true\nFAKE_NODEPOOL=p\nAKS_RG=\x00\nAKS_NAME=é")
	f.Fuzz(func(t *testing.T, text string) {
		c, err := Parse(strings.Split(text, "\n"))
		if err != nil {
			return
		}
		check.Not(t, c.Cooldown < 0 || c.LabelKey == "" || c.LabelValue == "" || c.NodePool == "", "accepted: %+v", c)
		if _, err := Migrate(strings.Split(text, "\n"), ScaleSetID{}); err != nil {
			t.Errorf("accepted but not migrated: %v", err)
		}
	})
}
