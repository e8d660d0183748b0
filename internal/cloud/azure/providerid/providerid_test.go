package providerid

import (
	"strconv"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/slipway-dev/slipway/internal/testing/check"
	"github.com/slipway-dev/slipway/internal/testing/must"
)

const (
	uniform = "azure:///subscriptions/0000-11/resourceGroups/mc_rg/providers/Microsoft.Compute/virtualMachineScaleSets/"
	single  = "azure:///subscriptions/0000-11/resourceGroups/mc_rg/providers/Microsoft.Compute/virtualMachines/"
)

func TestProviderIDIsParsedInAnyCase(t *testing.T) {
	for text, want := range map[string]ID{
		uniform + "V-vmss/virtualMachines/7":                                                          {"0000-11", "mc_rg", "V-vmss", "7"},
		strings.ToUpper(uniform) + "v/VIRTUALMACHINES/7":                                              {"0000-11", "MC_RG", "v", "7"},
		strings.ToLower(single) + "aks-flex_1":                                                        {"0000-11", "mc_rg", "", "aks-flex_1"},
		"azure:///subscriptions/s/resourceGroups/(é).x/providers/microsoft.compute/virtualMachines/n": {"s", "(é).x", "", "n"},
	} {
		got, err := Parse(text)
		check.Not(t, err != nil || got != want, "Parse(%q) = %+v, %v; want %+v", text, got, err, want)
		resource, err := ParseResourceID(text[len("azure://"):])
		check.Not(t, err != nil || resource != want, "ParseResource of the same = %+v, %v", resource, err)
	}
}

func TestI10UnsafeProviderIDIsRefused(t *testing.T) {
	for _, text := range []string{
		"", "aws:///a/i-0", single, single + "..", single + ".", single + "a/b", single + "a?x", uniform + "../virtualMachines/1",
		uniform + "v/virtualMachines/x", strings.Replace(single, "mc_rg", "..", 1) + "n",
		strings.Replace(single, "mc_rg", "a?b", 1) + "n", strings.Replace(single, "0000-11", "a%2fb", 1) + "n",
		strings.Replace(single, "mc_rg", strings.Repeat("g", 91), 1) + "n",
	} {
		if got, err := Parse(text); err == nil {
			t.Errorf("Parse(%q) = %+v, want an error", text, got)
		}
	}
}

func TestSpellingsOfOneIDAreEqual(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		id := ID{
			rapid.StringMatching(`[a-f0-9-]{8,36}`).Draw(t, "subscription"),
			rapid.StringMatching(`[A-Za-z0-9_-]{1,20}`).Draw(t, "group"),
			rapid.StringMatching(`([A-Za-z0-9]{1,20})?`).Draw(t, "set"),
			rapid.StringMatching(`[1-9][0-9]{0,5}`).Draw(t, "name"),
		}
		again, err := Parse("azure://" + strings.ToUpper(id.ResourceID()))
		must.NoError(t, err)
		check.Not(t, !again.Equal(id) || again.String() != id.String(), "%+v and %+v are not the same", id, again)
		other := id
		other.Name += "0"
		check.Not(t, other.Equal(id), "%+v and %+v are the same", id, other)
	})
}

func FuzzParse(f *testing.F) {
	f.Add(uniform + "v/virtualMachines/1")
	f.Add(single + "n")
	f.Add("AZURE:///Subscriptions/S/ResourceGroups/G/Providers/microsoft.compute/VirtualMachines/N")
	f.Fuzz(func(t *testing.T, text string) {
		id, err := Parse(text)
		if err != nil {
			check.Not(t, id != (ID{}), "got both %+v and %v", id, err)
			return
		}
		again, err := Parse(id.String())
		if err != nil || !again.Equal(id) {
			t.Errorf("%q is %+v, but its own spelling %q is %+v, %v", text, id, id.String(), again, err)
		}
		for _, segment := range strings.Split(id.ResourceID(), "/") {
			check.Not(t, segment == ".." || segment == "." || strings.ContainsAny(segment, "?#"), "%q has the segment %q", text, segment)
		}
	})
}

const (
	uniformPrefix = "azure:///subscriptions/0000-11/resourceGroups/mc_rg/providers/Microsoft.Compute/virtualMachineScaleSets/"
	singlePrefix  = "azure:///subscriptions/0000-11/resourceGroups/mc_rg/providers/Microsoft.Compute/virtualMachines/"
)

func TestResourceNameOfEachIDFormat(t *testing.T) {
	for _, tc := range []struct{ name, providerID, want string }{
		{"uniform scale set", uniformPrefix + "aks-pool-12345678-vmss/virtualMachines/0", "aks-pool-12345678-vmss_0"},
		{"uniform scale set, large number", uniformPrefix + "v/virtualMachines/1234567", "v_1234567"},
		{"single machine", singlePrefix + "vm-7", "vm-7"},
		{"flexible scale set", singlePrefix + "aks-flex_3f2a1b4c", "aks-flex_3f2a1b4c"},
		{"lower case", strings.ToLower(uniformPrefix) + "V/virtualmachines/3", "V_3"},
		{"upper case", strings.ToUpper(uniformPrefix) + "v/VIRTUALMACHINES/3", "v_3"},
		{"resource group with odd characters", "azure:///subscriptions/s/resourceGroups/(é).x/providers/" +
			"microsoft.compute/virtualMachines/n", "n"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got, err := ScheduledEventName(tc.providerID)
			check.Not(t, err != nil || got != tc.want, "ResourceName(%q) = %q, %v; want %q", tc.providerID, got, err, tc.want)
		})
	}
}

func TestI10ForeignProviderIDIsRefused(t *testing.T) {
	for _, tc := range []struct{ name, providerID string }{
		{"empty", ""},
		{"AWS", "aws:///eu-west-1a/i-0123456789abcdef0"},
		{"GCE", "gce://project/zone/name"},
		{"OpenStack", "openstack:///7b5b8e5c-0d0e-4a3c-9f9f-0c7d0a4a4a4a"},
		{"kwok", "kwok://node-1"},
		{"no scheme", strings.TrimPrefix(singlePrefix, "azure://") + "n"},
		{"scheme only begins alike", "azurestack" + strings.TrimPrefix(singlePrefix, "azure") + "n"},
		{"scale set without instance", uniformPrefix + "v"},
		{"instance is empty", uniformPrefix + "v/virtualMachines/"},
		{"instance is no number", uniformPrefix + "v/virtualMachines/v_abc123"},
		{"scale set is empty", uniformPrefix + "/virtualMachines/1"},
		{"machine is empty", singlePrefix},
		{"something after the end", singlePrefix + "n/extensions/e"},
		{"slash at the end", singlePrefix + "n/"},
		{"another provider", strings.Replace(singlePrefix, "Microsoft.Compute", "Microsoft.Batch", 1) + "n"},
		{"space in the name", singlePrefix + "n "},
		{"line break in the name", singlePrefix + "n\n"},
		{"name too long", singlePrefix + strings.Repeat("n", 65)},
		{"no group", "azure:///subscriptions/s/resourceGroups//providers/Microsoft.Compute/virtualMachines/n"},
		{"two slashes", strings.Replace(singlePrefix, ":///", "://", 1) + "n"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got, err := ScheduledEventName(tc.providerID)
			must.Not(t, err == nil, "ResourceName(%q) = %q, want an error", tc.providerID, got)
			check.Contains(t, err.Error(), "spec.providerID", strconv.Quote(tc.providerID), "want azure:///")
		})
	}
}

func TestEqualResourceNamesMeanOneInstance(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		scaleSet := rapid.StringMatching(`[A-Za-z0-9][A-Za-z0-9._-]{0,62}`).Draw(t, "scale set")
		number := rapid.StringMatching(`0|[1-9][0-9]{0,4}`)
		a, b := number.Draw(t, "a"), number.Draw(t, "b")
		first, err := ScheduledEventName(randomizeCase(t, uniformPrefix) + scaleSet + randomizeCase(t, "/virtualMachines/") + a)
		must.NoError(t, err)
		second, err := ScheduledEventName(randomizeCase(t, uniformPrefix) + randomizeCase(t, scaleSet) + "/virtualMachines/" + b)
		must.NoError(t, err)
		check.Not(t, first != scaleSet+"_"+a, "got %q, want %s_%s", first, scaleSet, a)
		got := strings.EqualFold(first, second)
		check.Not(t, got != (a == b), "EqualFold(%q, %q) = %v", first, second, got)
	})
}

// randomizeCase turns some letters to upper and some to lower case.
func randomizeCase(t *rapid.T, s string) string {
	upper := rapid.SliceOfN(rapid.Bool(), len(s), len(s)).Draw(t, "upper")
	out := []byte(s)
	for i, c := range out {
		if upper[i] {
			out[i] = strings.ToUpper(string(c))[0]
		} else {
			out[i] = strings.ToLower(string(c))[0]
		}
	}
	return string(out)
}

func FuzzResourceName(f *testing.F) {
	f.Add(uniformPrefix + "v/virtualMachines/1")
	f.Add(singlePrefix + "n")
	f.Add("AZURE:///Subscriptions/S/ResourceGroups/G/Providers/microsoft.compute/VirtualMachines/N")
	f.Add("aws:///a/i-0")
	f.Add("")
	f.Fuzz(func(t *testing.T, providerID string) {
		name, err := ScheduledEventName(providerID)
		if err != nil {
			check.Not(t, name != "", "got both name %q and error %v", name, err)
			return
		}
		segments := strings.Split(providerID, "/")
		last := segments[len(segments)-1]
		check.Not(t, name != last && name != segments[len(segments)-3]+"_"+last, "ResourceName(%q) = %q, which is not made of its names", providerID, name)
		check.Not(t, !strings.EqualFold(providerID[:9], "azure:///"), "ResourceName(%q) = %q, but that is no Azure ID", providerID, name)
	})
}
