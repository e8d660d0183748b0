package providerid

import "testing"

const server = "f81d4fae-7dec-11d0-a765-00a0c91e6bf6"

func FuzzParse(f *testing.F) {
	for _, id := range []string{"aws:///eu-west-1a/i-01234567", "gce://p/z/n", "openstack:///" + server, "azure:///subscriptions/s/resourceGroups/g/providers/Microsoft.Compute/virtualMachines/n"} {
		f.Add(id)
	}
	f.Fuzz(func(t *testing.T, text string) {
		id, err := Parse(text)
		if err != nil {
			return
		}
		if again, err := Parse(id.String()); err != nil || again.String() != id.String() {
			t.Errorf("%q is %s, and that %s, %v", text, id, again, err)
		}
	})
}
