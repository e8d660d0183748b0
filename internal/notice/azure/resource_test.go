package azure

import "testing"

func TestResourceNamesMustMatchCompletely(t *testing.T) {
	for _, tc := range []struct {
		a, b string
		want bool
	}{
		{"vmss_1", "vmss_1", true},
		{"vmss_1", "VMSS_1", true},
		{"vmss_1", "vmss_10", false},
		{"vmss_10", "vmss_1", false},
		{"vmss_1", "avmss_1", false},
		{"vmss_1", " vmss_1", false},
		{"vmss_1", "", false},
	} {
		if got := IsSameResource(tc.a, tc.b); got != tc.want {
			t.Errorf("SameResource(%q, %q) = %v, want %v", tc.a, tc.b, got, tc.want)
		}
	}
}
