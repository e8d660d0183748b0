package cloud

// SystemUUIDResolver is a [Provider] that uses the system UUID of the firmware as the instance ID.
type SystemUUIDResolver interface {
	// ProviderIDFromSystemUUID returns the canonical provider ID for a system UUID, and false if the UUID is malformed. It makes no
	// request: the instance may not exist.
	ProviderIDFromSystemUUID(systemUUID string) (providerID string, ok bool)
}

// ProviderIDOfNode returns the Node's provider ID, or else the provider ID for its system UUID. It returns "" if the Node has
// neither.
func ProviderIDOfNode(p Provider, h NodeIdentity) string {
	if system, ok := p.(SystemUUIDResolver); ok && h.ProviderID == "" {
		id, _ := system.ProviderIDFromSystemUUID(h.SystemUUID)
		return id
	}
	return h.ProviderID
}
