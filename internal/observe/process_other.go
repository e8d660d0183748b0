//go:build !linux

package observe

// addProcessMetrics does nothing, because this operating system has no /proc.
func (r *Registry) addProcessMetrics() {}
