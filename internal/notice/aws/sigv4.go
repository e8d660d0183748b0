package aws

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"net/http"
	"slices"
	"strings"
	"time"
)

// credentials sign requests to the AWS API.
type credentials struct {
	keyID, secret, sessionToken string
	expires                     time.Time // zero is never
}

const (
	signingAlgorithm = "AWS4-HMAC-SHA256"
	signingTime      = "20060102T150405Z"
)

// sign adds AWS Signature Version 4 to a POST request for the root path of an API. It signs all headers that the request
// has, and the host. The request must have no query. See "Create a signed AWS API request" in the IAM user guide.
func (c credentials) sign(r *http.Request, body []byte, region, service string, now time.Time) {
	at := now.UTC().Format(signingTime)
	r.Header.Set("X-Amz-Date", at)
	if c.sessionToken != "" {
		r.Header.Set("X-Amz-Security-Token", c.sessionToken)
	}
	values := map[string]string{"host": r.URL.Host}
	for name := range r.Header {
		values[strings.ToLower(name)] = strings.Join(strings.Fields(r.Header.Get(name)), " ")
	}
	names := make([]string, 0, len(values))
	for name := range values {
		names = append(names, name)
	}
	slices.Sort(names)
	var headers strings.Builder
	for _, name := range names {
		headers.WriteString(name + ":" + values[name] + "\n")
	}
	signed := strings.Join(names, ";")
	canonical := strings.Join([]string{r.Method, "/", "", headers.String(), signed, hexSum(body)}, "\n")
	scope := strings.Join([]string{at[:8], region, service, "aws4_request"}, "/")
	toSign := strings.Join([]string{signingAlgorithm, at, scope, hexSum([]byte(canonical))}, "\n")
	key := []byte("AWS4" + c.secret)
	for _, part := range []string{at[:8], region, service, "aws4_request"} {
		key = keyedSum(key, part)
	}
	r.Header.Set("Authorization", signingAlgorithm+" Credential="+c.keyID+"/"+scope+", SignedHeaders="+signed+
		", Signature="+hex.EncodeToString(keyedSum(key, toSign)))
}

func hexSum(data []byte) string {
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:])
}

func keyedSum(key []byte, data string) []byte {
	h := hmac.New(sha256.New, key)
	h.Write([]byte(data))
	return h.Sum(nil)
}
