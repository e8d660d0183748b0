package providerid

import "testing"

func TestI10VMNameIsReadOnlyFromComputeEngine(t *testing.T) {
	for providerID, want := range map[string]string{
		"gce://project-1/europe-west4-a/gke-pool-1-abcd":         "gke-pool-1-abcd",
		"gce://example.com:project-1/us-central1-a/vm":           "vm",
		"gce://project-1/europe-west4-a/":                        "",
		"gce://project-1/vm":                                     "",
		"gce://a/b/c/d":                                          "",
		"aws:///eu-west-1a/i-0123456789abcdef0":                  "",
		"azure:///subscriptions/s/resourceGroups/g/providers/vm": "",
		"": "",
	} {
		if got, err := VMName(providerID); got != want || (err == nil) != (want != "") {
			t.Errorf("%q: %q, %v; want %q", providerID, got, err, want)
		}
	}
}
