package cloud

// Keeper is a [Provider] that reports which instances a user has protected from deletion. For other providers, Slipway
// reads no instance only for that.
type Keeper interface {
	// KeepsMachines does nothing. It marks the provider.
	KeepsMachines()
}
