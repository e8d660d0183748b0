package cloud

// SystemUUIDResolver is a [Provider] that uses the firmware's system UUID as the instance ID.
type SystemUUIDResolver interface {
	// ProviderIDFromSystemUUID returns the canonical provider ID for a system UUID, and false if the UUID is malformed. It makes no
	// request: the instance may not exist.
	ProviderIDFromSystemUUID(systemUUID string) (providerID string, ok bool)
}

// ProviderIDOfNode returns the provider ID of a Node. If the Node has none, it returns the provider ID for the Node's
// system UUID. Only a [SystemUUIDResolver] can derive that ID. The result is "" if neither is known.
func ProviderIDOfNode(p Provider, h NodeIdentity) string {
	if system, ok := p.(SystemUUIDResolver); ok && h.ProviderID == "" {
		id, _ := system.ProviderIDFromSystemUUID(h.SystemUUID)
		return id
	}
	return h.ProviderID
}
