package cloud

// Keeper is a [Provider] that fills in [Instance.Kept]. For other providers, Slipway reads no instance only for that
// field.
type Keeper interface {
	// KeepsMachines does nothing. It marks the provider.
	KeepsMachines()
}
