package cloud

// SystemIdentifier is a [Provider] that uses the system UUID of the firmware as the instance ID.
type SystemIdentifier interface {
	// IDOfSystem returns the canonical provider ID for a system UUID, and false if the UUID is malformed. It makes no
	// request: the instance may not exist.
	IDOfSystem(systemUUID string) (providerID string, ok bool)
}

// IDOfHost returns the Node's provider ID, or else the provider ID for its system UUID. It returns "" if the Node has
// neither.
func IDOfHost(p Provider, h Host) string {
	if system, ok := p.(SystemIdentifier); ok && h.ProviderID == "" {
		id, _ := system.IDOfSystem(h.SystemUUID)
		return id
	}
	return h.ProviderID
}
