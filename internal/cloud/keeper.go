package cloud

// Keeper is a [Provider] some of whose machines may be Kept. Of the others no machine is read for that alone.
type Keeper interface {
	// KeepsMachines does nothing: it tells that [Instance.Kept] is filled in.
	KeepsMachines()
}
