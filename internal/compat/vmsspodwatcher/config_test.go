package vmsspodwatcher

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/slipway-dev/slipway/internal/testing/must"
)

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
		if got := mustParse(t, "COOLDOWN="+text).Cooldown; got != want {
			t.Errorf("%q is %s, want %s", text, got, want)
		}
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
		if c.ScheduledCheck != tt.on || (len(c.Warnings) > 0) != tt.warns {
			t.Errorf("%v: %t, %q", tt.set, c.ScheduledCheck, c.Warnings)
		}
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
		if err == nil || !strings.Contains(err.Error(), "$"+name) {
			t.Errorf("nothing set: %v, want %s named", err, name)
		}
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
		if c.Cooldown < 0 || c.LabelKey == "" || c.LabelValue == "" || c.NodePool == "" {
			t.Errorf("accepted: %+v", c)
		}
		if _, err := Migrate(strings.Split(text, "\n"), ScaleSetID{}); err != nil {
			t.Errorf("accepted but not migrated: %v", err)
		}
	})
}
