package providerid

import "testing"

func TestI10InstanceIDIsReadOnlyFromEC2(t *testing.T) {
	for providerID, want := range map[string]string{
		"aws:///eu-west-1a/i-0123456789abcdef0":     "i-0123456789abcdef0",
		"aws:///us-east-1-bos-1a/i-1234abcd":        "i-1234abcd",
		"aws:///i-1234abcd":                         "i-1234abcd",
		"aws:///eu-west-1a/fargate-ip-10-0-0-1":     "",
		"aws:///eu-west-1a/i-":                      "",
		"aws:///eu-west-1a/i-0123/":                 "",
		"gce://project/zone/i-1234abcd":             "",
		"azure:///subscriptions/s/i-0123456789abcd": "",
		"": "",
	} {
		if got, err := InstanceID(providerID); got != want || (err == nil) != (want != "") {
			t.Errorf("%q: %q, %v; want %q", providerID, got, err, want)
		}
	}
}
