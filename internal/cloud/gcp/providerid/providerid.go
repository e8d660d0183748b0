// Package providerid parses the IDs of Compute Engine VMs in Kubernetes. The agent imports this package, so it uses only the
// standard library.
package providerid

import (
	"fmt"
	"strings"
)

// VMName returns the name of the VM in a Node's spec.providerID, such as gce://project/europe-west4-a/vm-1.
func VMName(providerID string) (string, error) {
	path, found := strings.CutPrefix(providerID, "gce://")
	parts := strings.Split(path, "/")
	if !found || len(parts) != 3 || parts[0] == "" || parts[1] == "" || parts[2] == "" {
		return "", fmt.Errorf("node spec.providerID: provider ID %.200q: want gce://PROJECT/ZONE/NAME", providerID)
	}
	return parts[2], nil
}
