//go:build !linux

package observe

// ofProcess defines nothing: there is no /proc here.
func (r *Registry) ofProcess() {}
