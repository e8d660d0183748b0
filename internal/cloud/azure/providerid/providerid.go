// Package providerid reads and writes the IDs by which Kubernetes and Azure Resource Manager name a virtual machine.
//
// cloud-provider-azure puts them in a node's spec.providerID: "azure://" before the machine's resource ID. Azure's own
// answers spell their fixed segments and their resource groups in several letter cases, so letter case is never taken
// to mean anything. The package is linked into the node agent and keeps to the standard library.
package providerid

import (
	"errors"
	"fmt"
	"strings"
)

// maxNameLength is Azure's own limit for the name of a virtual machine and of a scale set; maxGroupLength that of a
// resource group.
const (
	maxNameLength  = 64
	maxGroupLength = 90
)

const want = "want azure:///subscriptions/…/resourceGroups/…/providers/Microsoft.Compute/" +
	"virtualMachineScaleSets/NAME/virtualMachines/NUMBER, or the same ending in Microsoft.Compute/virtualMachines/NAME"

// ID names a virtual machine.
type ID struct {
	Subscription  string
	ResourceGroup string
	// ScaleSet is the uniform scale set that the machine is an instance of; empty for one that stands alone or in a
	// flexible scale set, which has a name of its own.
	ScaleSet string
	// Name is the machine's own name, or the instance's number in ScaleSet.
	Name string
}

// Parse reads a provider ID. It is an error, never a guess, when the ID is empty, malformed or of another cloud.
func Parse(providerID string) (ID, error) {
	id, err := parse(providerID)
	if err != nil {
		return ID{}, fmt.Errorf("provider ID %s: %w; %s", quote(providerID), err, want)
	}
	return id, nil
}

// ParseResource reads the same from a resource ID as Azure's answers have it, which has no "azure://" before it.
func ParseResource(resourceID string) (ID, error) {
	id, err := parsePath(resourceID)
	if err != nil {
		return ID{}, fmt.Errorf("resource ID %s: %w", quote(resourceID), err)
	}
	return id, nil
}

func parse(providerID string) (ID, error) {
	if providerID == "" {
		return ID{}, errors.New("is empty")
	}
	scheme, path, found := strings.Cut(providerID, "://")
	if !found || !strings.EqualFold(scheme, "azure") {
		return ID{}, errors.New("is not of Azure")
	}
	return parsePath(path)
}

func parsePath(path string) (ID, error) {
	segments := strings.Split(path, "/")
	var id ID
	switch {
	case matches(segments, "", "subscriptions", "*", "resourceGroups", "*", "providers", "Microsoft.Compute",
		"virtualMachineScaleSets", "*", "virtualMachines", "*"):
		id = ID{Subscription: segments[2], ResourceGroup: segments[4], ScaleSet: segments[8], Name: segments[10]}
	case matches(segments, "", "subscriptions", "*", "resourceGroups", "*", "providers", "Microsoft.Compute",
		"virtualMachines", "*"):
		id = ID{Subscription: segments[2], ResourceGroup: segments[4], Name: segments[8]}
	default:
		return ID{}, errors.New("does not name a virtual machine")
	}
	return id, id.validate()
}

// Resource is the name by which Azure's Scheduled Events call the machine: V_I for instance I of the uniform scale set
// V, and the machine's own name for any other.
func (id ID) Resource() string {
	if id.ScaleSet == "" {
		return id.Name
	}
	return id.ScaleSet + "_" + id.Name
}

// ResourceName returns the [ID.Resource] of a node's spec.providerID.
//
// It is an error, never a guess, when the provider ID is empty, malformed or of another cloud.
func ResourceName(providerID string) (string, error) {
	id, err := Parse(providerID)
	if err != nil {
		return "", fmt.Errorf("node spec.providerID: %w", err)
	}
	return id.Resource(), nil
}

// ResourceID is the machine's ID in Azure Resource Manager.
func (id ID) ResourceID() string {
	path := "/subscriptions/" + id.Subscription + "/resourceGroups/" + id.ResourceGroup + "/providers/Microsoft.Compute/"
	if id.ScaleSet != "" {
		path += "virtualMachineScaleSets/" + id.ScaleSet + "/"
	}
	return path + "virtualMachines/" + id.Name
}

// String is the provider ID in the one spelling that can be compared: names in lower case.
func (id ID) String() string {
	lower := ID{
		strings.ToLower(id.Subscription), strings.ToLower(id.ResourceGroup), strings.ToLower(id.ScaleSet),
		strings.ToLower(id.Name),
	}
	return "azure://" + lower.ResourceID()
}

// Same reports whether two IDs mean one machine.
func (id ID) Same(other ID) bool { return id.String() == other.String() }

// validate insists on a number for an instance of a scale set: a machine of a flexible one has a name of its own there,
// which neither events nor a node's provider ID spell in that way.
func (id ID) validate() error {
	if len(id.ResourceGroup) > maxGroupLength {
		return fmt.Errorf("has a resource group name of %d characters, more than %d", len(id.ResourceGroup), maxGroupLength)
	}
	for what, text := range map[string]string{"subscription": id.Subscription, "resource group": id.ResourceGroup} {
		if isDots(text) || strings.ContainsFunc(text, func(r rune) bool { return r <= ' ' || r == 0x7f || strings.ContainsRune(`?#%\`, r) }) {
			return fmt.Errorf("has a character that cannot be in a %s", what)
		}
	}
	if id.ScaleSet == "" {
		return validName("virtual machine", id.Name)
	}
	if err := validName("scale set", id.ScaleSet); err != nil {
		return err
	}
	if strings.Trim(id.Name, "0123456789") != "" || len(id.Name) > maxNameLength {
		return fmt.Errorf("has %s for an instance number", quote(id.Name))
	}
	return nil
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

func validName(what, name string) error {
	if isDots(name) {
		return fmt.Errorf("has %q for a %s name", name, what)
	}
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

// isDots reports a segment that a URL would take for a step up, or for none.
func isDots(segment string) bool { return segment == "." || segment == ".." }

// maxQuoted is how much of an ID an error shows, in bytes: enough for any that is right.
const maxQuoted = 512

func quote(s string) string {
	if len(s) > maxQuoted {
		return fmt.Sprintf("%q…", s[:maxQuoted])
	}
	return fmt.Sprintf("%q", s)
}
