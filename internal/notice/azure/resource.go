// Package azure reads notices from the Scheduled Events of the Azure instance metadata service (IMDS).
//
// Facts about the service are from Microsoft's page "Azure Metadata Service: Scheduled Events" (api-version
// 2020-07-01). One document lists the events of every machine of a scale set or placement group, so that an event
// concerns this machine only when its Resources name this machine exactly.
//
// The package is linked into the node agent and is kept to the standard library for its memory's sake.
package azure

import (
	"errors"
	"fmt"
	"strings"
)

// Name is this source's name, found in [notice.Notice.Source].
const Name = "azure"

// maxNameLength is Azure's own limit for the name of a virtual machine and of a scale set.
const maxNameLength = 64

const wantProviderID = "want azure:///subscriptions/…/resourceGroups/…/providers/Microsoft.Compute/" +
	"virtualMachineScaleSets/NAME/virtualMachines/NUMBER, or the same ending in Microsoft.Compute/virtualMachines/NAME"

// ResourceName works out from a node's spec.providerID by which name Scheduled Events call its machine: V_I for
// instance I of the uniform scale set V; N for the machine N that stands alone or in a flexible scale set. Fixed
// segments are accepted in any letter case, as the Azure API writes them in several.
//
// It is an error, never a guess, when the provider ID is empty, malformed or of another cloud.
func ResourceName(providerID string) (string, error) {
	name, err := resourceName(providerID)
	if err != nil {
		return "", fmt.Errorf("node spec.providerID %s: %w; %s", quote(providerID), err, wantProviderID)
	}
	return name, nil
}

// SameResource reports whether two resource names mean one machine: equal as a whole, letter case aside.
func SameResource(a, b string) bool { return strings.EqualFold(a, b) }

func resourceName(providerID string) (string, error) {
	if providerID == "" {
		return "", errors.New("is empty")
	}
	scheme, path, found := strings.Cut(providerID, "://")
	if !found || !strings.EqualFold(scheme, "azure") {
		return "", errors.New("is not of Azure")
	}
	segments := strings.Split(path, "/")
	switch {
	case matches(segments, "", "subscriptions", "*", "resourceGroups", "*", "providers", "Microsoft.Compute",
		"virtualMachineScaleSets", "*", "virtualMachines", "*"):
		return instanceName(segments[8], segments[10])
	case matches(segments, "", "subscriptions", "*", "resourceGroups", "*", "providers", "Microsoft.Compute",
		"virtualMachines", "*"):
		return segments[8], validName("virtual machine", segments[8])
	default:
		return "", errors.New("does not name a virtual machine")
	}
}

// matches compares segments with a pattern, letter case aside; "*" stands for any text that is not empty.
func matches(segments []string, pattern ...string) bool {
	if len(segments) != len(pattern) {
		return false
	}
	for i, want := range pattern {
		if want == "*" && segments[i] != "" {
			continue
		}
		if !strings.EqualFold(segments[i], want) {
			return false
		}
	}
	return true
}

// instanceName insists on a number: a machine of a flexible scale set has a name of its own there, which events
// would not spell V_I, so that accepting it would mean never to recognise an event.
func instanceName(scaleSet, instance string) (string, error) {
	if err := validName("scale set", scaleSet); err != nil {
		return "", err
	}
	if strings.Trim(instance, "0123456789") != "" {
		return "", fmt.Errorf("has %s for an instance number", quote(instance))
	}
	return scaleSet + "_" + instance, nil
}

func validName(what, name string) error {
	if len(name) > maxNameLength {
		return fmt.Errorf("has a %s name of %d characters, more than %d", what, len(name), maxNameLength)
	}
	for _, r := range name {
		switch {
		case r >= 'a' && r <= 'z', r >= 'A' && r <= 'Z', r >= '0' && r <= '9', strings.ContainsRune("._-", r):
		default:
			return fmt.Errorf("has the character %q in its %s name", r, what)
		}
	}
	return nil
}
