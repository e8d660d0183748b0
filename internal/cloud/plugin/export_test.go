package plugin

import "time"

// Normalizing and Silence are how long Normalize waits, and is not asked after it waited in vain.
const (
	Normalizing = normalizing
	Silence     = silence
)

// Pass has time pass for a plugin of which Normalize had no answer.
func (p *Provider) Pass(d time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.silentUntil = p.silentUntil.Add(-d)
}
