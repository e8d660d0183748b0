package plugin

import "time"

// NormalizeTimeout and Silence export the timeout and the pause of Normalize.
const (
	NormalizeTimeout = normalizeTimeout
	NormalizePause   = normalizePause
)

// AdvanceTime lets time pass after a timeout of Normalize.
func (p *Provider) AdvanceTime(d time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.pausedUntil = p.pausedUntil.Add(-d)
}
