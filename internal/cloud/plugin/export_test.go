package plugin

import "time"

// Normalizing and Silence export the timeout and the pause of Normalize.
const (
	Normalizing = normalizing
	Silence     = silence
)

// Pass lets time pass after a timeout of Normalize.
func (p *Provider) Pass(d time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.silentUntil = p.silentUntil.Add(-d)
}
