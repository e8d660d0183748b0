//go:build !linux

package observe

// addProcessMetrics does nothing, because there is no /proc.
func (r *Registry) addProcessMetrics() {}
