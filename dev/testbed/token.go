package testbed

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"k8s.io/client-go/tools/clientcmd"
)

// TokenExpiry returns when the agent's token expires. The API server may have granted a shorter lifetime than
// requested.
func (a *Agent) TokenExpiry() (time.Time, error) {
	config, err := clientcmd.LoadFromFile(a.Kubeconfig)
	if err != nil {
		return time.Time{}, fmt.Errorf("credentials of the agent on %s: %w", a.Node, err)
	}
	for _, user := range config.AuthInfos {
		return parseTokenExpiry(user.Token)
	}
	return time.Time{}, fmt.Errorf("credentials of the agent on %s: %s has no user", a.Node, a.Kubeconfig)
}

// parseTokenExpiry returns the expiry time of a JSON Web Token, from the claim "exp" (RFC 7519, section 4.1.4).
func parseTokenExpiry(token string) (time.Time, error) {
	parts := strings.Split(token, ".")
	if len(parts) != 3 {
		return time.Time{}, fmt.Errorf("token has %d parts: a JSON Web Token has 3", len(parts))
	}
	raw, err := base64.RawURLEncoding.DecodeString(parts[1])
	if err != nil {
		return time.Time{}, fmt.Errorf("decode the token's claims as base64: %w", err)
	}
	var claims struct {
		Expires int64 `json:"exp"`
	}
	if err := json.Unmarshal(raw, &claims); err != nil {
		return time.Time{}, fmt.Errorf("parse the token's claims as JSON: %w", err)
	}
	return time.Unix(claims.Expires, 0), nil
}
