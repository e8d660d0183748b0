package agent

import (
	"context"
	"slices"
	"testing"
	"time"
)

// TestEventNamesItsNode has a node be made anew, under another UID, while an Event of the old one waits.
func TestEventNamesItsNode(t *testing.T) {
	onMachine(t, time.Second, func(t *testing.T, m *machine) {
		m.start(t, 0, nil)
		time.Sleep(time.Second)
		m.agent.events.throttle.setEnd(time.Now().Add(time.Minute))
		m.agent.events.emit(newUncordonedEvent())
		m.mu.Lock()
		m.node.UID = "uid-new"
		m.mu.Unlock()
		m.agent.updates <- func(context.Context) { m.agent.recordsRead = false }
		time.Sleep(time.Second)
		m.agent.events.emit(newUncordonedEvent())
		time.Sleep(time.Minute)
		m.crash()
		if want := []string{"uid-n", "uid-new"}; !slices.Equal(m.about, want) {
			t.Errorf("the Events are about %v, want %v", m.about, want)
		}
	})
}
