//go:build !linux

package controlplane

// PinToCoreHalves does nothing and returns zeros. Only Linux can restrict another process to given cores.
func (c *Cluster) PinToCoreHalves(...string) (others, measured int, err error) { return 0, 0, nil }
