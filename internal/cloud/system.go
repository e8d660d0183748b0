package cloud

// SystemIdentifier is a [Provider] whose machines have the UUID of their system, as the firmware tells it, as their ID.
type SystemIdentifier interface {
	// IDOfSystem gives the provider ID of the machine whose system has a UUID, spelt as [Provider.Normalize] does; false for what is
	// no UUID. It asks nobody: the machine need not exist.
	IDOfSystem(systemUUID string) (providerID string, ok bool)
}

// IDOfHost gives the provider ID that a Node says its machine has, or the one that its system's UUID stands for; empty for neither.
func IDOfHost(p Provider, h Host) string {
	if system, ok := p.(SystemIdentifier); ok && h.ProviderID == "" {
		id, _ := system.IDOfSystem(h.SystemUUID)
		return id
	}
	return h.ProviderID
}
