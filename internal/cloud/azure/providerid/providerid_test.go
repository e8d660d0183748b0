package providerid

import (
	"strings"
	"testing"

	"pgregory.net/rapid"

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
		if err != nil || got != want {
			t.Errorf("Parse(%q) = %+v, %v; want %+v", text, got, err, want)
		}
		resource, err := ParseResourceID(text[len("azure://"):])
		if err != nil || resource != want {
			t.Errorf("ParseResource of the same = %+v, %v", resource, err)
		}
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
		if !again.Equal(id) || again.String() != id.String() {
			t.Errorf("%+v and %+v are not the same", id, again)
		}
		other := id
		other.Name += "0"
		if other.Equal(id) {
			t.Errorf("%+v and %+v are the same", id, other)
		}
	})
}

func FuzzParse(f *testing.F) {
	f.Add(uniform + "v/virtualMachines/1")
	f.Add(single + "n")
	f.Add("AZURE:///Subscriptions/S/ResourceGroups/G/Providers/microsoft.compute/VirtualMachines/N")
	f.Fuzz(func(t *testing.T, text string) {
		id, err := Parse(text)
		if err != nil {
			if id != (ID{}) {
				t.Errorf("got both %+v and %v", id, err)
			}
			return
		}
		again, err := Parse(id.String())
		if err != nil || !again.Equal(id) {
			t.Errorf("%q is %+v, but its own spelling %q is %+v, %v", text, id, id.String(), again, err)
		}
		for _, segment := range strings.Split(id.ResourceID(), "/") {
			if segment == ".." || segment == "." || strings.ContainsAny(segment, "?#") {
				t.Errorf("%q has the segment %q", text, segment)
			}
		}
	})
}
