//go:build !linux

package controlplane

// Apart does nothing and returns zeros, because only Linux can pin another process to cores.
func (c *Cluster) Apart(...string) (others, measured int, err error) { return 0, 0, nil }
