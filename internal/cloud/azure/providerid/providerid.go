// Package providerid parses and formats the IDs of virtual machines in Kubernetes and Azure Resource Manager.
//
// cloud-provider-azure writes them to a Node's spec.providerID: "azure://" followed by the resource ID. Azure spells
// fixed segments and resource groups in different letter cases, so case is ignored. The agent imports this package, so
// it uses only the standard library.
package providerid

import (
	"errors"
	"fmt"
	"strings"
)

// The length limits that Azure has for the name of a virtual machine or scale set, and for the name of a resource
// group.
const (
	maxNameLength  = 64
	maxGroupLength = 90
)

const formatHint = "want azure:///subscriptions/…/resourceGroups/…/providers/Microsoft.Compute/" +
	"virtualMachineScaleSets/NAME/virtualMachines/NUMBER, or the same ending in Microsoft.Compute/virtualMachines/NAME"

// ID identifies a virtual machine.
type ID struct {
	Subscription  string
	ResourceGroup string
	// ScaleSet is the uniform scale set of the instance. It is empty for a single virtual machine and for a flexible
	// scale set.
	ScaleSet string
	// Name is the name of the virtual machine, or the instance number in ScaleSet.
	Name string
}

// Parse parses a provider ID. It returns an error if the ID is empty, malformed or of another cloud.
func Parse(providerID string) (ID, error) {
	id, err := parse(providerID)
	if err != nil {
		return ID{}, fmt.Errorf("provider ID %s: %w; %s", quoteTruncated(providerID), err, formatHint)
	}
	return id, nil
}

// ParseResourceID parses an ARM resource ID, which has no "azure://" prefix.
func ParseResourceID(resourceID string) (ID, error) {
	id, err := parseResourcePath(resourceID)
	if err != nil {
		return ID{}, fmt.Errorf("resource ID %s: %w", quoteTruncated(resourceID), err)
	}
	return id, nil
}

func parse(providerID string) (ID, error) {
	if providerID == "" {
		return ID{}, errors.New("is empty")
	}
	scheme, path, found := strings.Cut(providerID, "://")
	if !found || !strings.EqualFold(scheme, "azure") {
		return ID{}, errors.New("is not an Azure ID")
	}
	return parseResourcePath(path)
}

func parseResourcePath(path string) (ID, error) {
	segments := strings.Split(path, "/")
	var id ID
	switch {
	case matchesPattern(segments, "", "subscriptions", "*", "resourceGroups", "*", "providers", "Microsoft.Compute",
		"virtualMachineScaleSets", "*", "virtualMachines", "*"):
		id = ID{Subscription: segments[2], ResourceGroup: segments[4], ScaleSet: segments[8], Name: segments[10]}
	case matchesPattern(segments, "", "subscriptions", "*", "resourceGroups", "*", "providers", "Microsoft.Compute",
		"virtualMachines", "*"):
		id = ID{Subscription: segments[2], ResourceGroup: segments[4], Name: segments[8]}
	default:
		return ID{}, errors.New("does not name a virtual machine")
	}
	return id, id.validate()
}

// ScheduledEventName returns the instance's name in Azure Scheduled Events. Instance I of the uniform scale set V has
// the name V_I. Every other instance has the name of its virtual machine.
func (id ID) ScheduledEventName() string {
	if id.ScaleSet == "" {
		return id.Name
	}
	return id.ScaleSet + "_" + id.Name
}

// ScheduledEventName parses a Node's spec.providerID and returns the instance's name in Azure Scheduled Events.
func ScheduledEventName(providerID string) (string, error) {
	id, err := Parse(providerID)
	if err != nil {
		return "", fmt.Errorf("node spec.providerID: %w", err)
	}
	return id.ScheduledEventName(), nil
}

// ResourceID returns the ARM resource ID.
func (id ID) ResourceID() string {
	path := "/subscriptions/" + id.Subscription + "/resourceGroups/" + id.ResourceGroup + "/providers/Microsoft.Compute/"
	if id.ScaleSet != "" {
		path += "virtualMachineScaleSets/" + id.ScaleSet + "/"
	}
	return path + "virtualMachines/" + id.Name
}

// String returns the canonical provider ID, with names in lower case.
func (id ID) String() string {
	lower := ID{
		strings.ToLower(id.Subscription), strings.ToLower(id.ResourceGroup), strings.ToLower(id.ScaleSet),
		strings.ToLower(id.Name),
	}
	return "azure://" + lower.ResourceID()
}

// Equal reports whether two IDs name the same instance.
func (id ID) Equal(other ID) bool { return id.String() == other.String() }

// validate checks the lengths and characters of an ID. An instance name in a scale set has to be a number, because
// provider IDs name a scale set only if it is uniform.
func (id ID) validate() error {
	if len(id.ResourceGroup) > maxGroupLength {
		return fmt.Errorf("has a resource group name of %d characters, more than %d", len(id.ResourceGroup), maxGroupLength)
	}
	for what, text := range map[string]string{"subscription": id.Subscription, "resource group": id.ResourceGroup} {
		if isDotSegment(text) || strings.ContainsFunc(text, func(r rune) bool { return r <= ' ' || r == 0x7f || strings.ContainsRune(`?#%\`, r) }) {
			return fmt.Errorf("has a character that cannot be in a %s", what)
		}
	}
	if id.ScaleSet == "" {
		return validateName("virtual machine", id.Name)
	}
	if err := validateName("scale set", id.ScaleSet); err != nil {
		return err
	}
	if strings.Trim(id.Name, "0123456789") != "" || len(id.Name) > maxNameLength {
		return fmt.Errorf("has %s for an instance number", quoteTruncated(id.Name))
	}
	return nil
}

// matchesPattern reports whether segments match a pattern, ignoring letter case. "*" matches any text that is not
// empty.
func matchesPattern(segments []string, pattern ...string) bool {
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

func validateName(what, name string) error {
	if isDotSegment(name) {
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

// isDotSegment reports whether a URL would interpret the segment as the current or the parent folder.
func isDotSegment(segment string) bool { return segment == "." || segment == ".." }

// maxQuoted limits the length of an ID in an error message, in bytes. Every valid ID is shorter.
const maxQuoted = 512

func quoteTruncated(s string) string {
	if len(s) > maxQuoted {
		return fmt.Sprintf("%q…", s[:maxQuoted])
	}
	return fmt.Sprintf("%q", s)
}
