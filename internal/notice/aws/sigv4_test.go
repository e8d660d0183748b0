package aws

import (
	"net/http"
	"strings"
	"testing"
	"time"
)

// The requests and signatures are from the AWS Signature Version 4 test suite: post-vanilla and
// post-x-www-form-urlencoded.
func TestSignaturesMatchAWSTestSuite(t *testing.T) {
	keys := credentials{keyID: "AKIDEXAMPLE", secret: "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY"}
	at := time.Date(2015, 8, 30, 12, 36, 0, 0, time.UTC)
	for _, tt := range []struct{ contentType, body, want string }{
		{"", "", "5da7c1a2acd57cee7505fc6676e4e544621c30862966e37dddb68e92efbe5d6b"},
		{"application/x-www-form-urlencoded", "Param1=value1", "ff11897932ad3f4e8b18135d722051e5ac45fc38421b1da7b9d196a0fe09473a"},
	} {
		r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "https://example.amazonaws.com/", nil)
		if err != nil {
			t.Fatal(err)
		}
		if tt.contentType != "" {
			r.Header.Set("Content-Type", tt.contentType)
		}
		keys.sign(r, []byte(tt.body), "us-east-1", "service", at)
		if got := r.Header.Get("Authorization"); !strings.HasSuffix(got, "Signature="+tt.want) {
			t.Errorf("%q: %s, want %s", tt.body, got, tt.want)
		}
	}
}
