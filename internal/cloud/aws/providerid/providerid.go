// Package providerid parses the IDs of EC2 instances in Kubernetes. The agent imports this package, so it uses only the
// standard library.
package providerid

import (
	"fmt"
	"strings"
)

// InstanceID returns the ID of the EC2 instance in a Node's spec.providerID, such as aws:///eu-west-1a/i-0123456789abcdef0.
func InstanceID(providerID string) (string, error) {
	path, found := strings.CutPrefix(providerID, "aws://")
	id := path[strings.LastIndex(path, "/")+1:]
	if !found || !strings.HasPrefix(id, "i-") || strings.Trim(id[2:], "0123456789abcdef") != "" || len(id) == 2 {
		return "", fmt.Errorf("node spec.providerID: provider ID %q: want aws:///ZONE/i-0123456789abcdef0", clip(providerID))
	}
	return id, nil
}

// maxQuoteBytes limits how much of a provider ID an error quotes, in bytes.
const maxQuoteBytes = 200

func clip(s string) string {
	if len(s) > maxQuoteBytes {
		return strings.ToValidUTF8(s[:maxQuoteBytes], "") + "…"
	}
	return s
}
