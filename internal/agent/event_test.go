package agent

import (
	"context"
	"slices"
	"testing"
	"time"
)

// The node is registered again under another UID while an Event of the old node waits.
func TestEventKeepsUIDOfItsNode(t *testing.T) {
	withTestNode(t, time.Second, func(t *testing.T, m *testNode) {
		m.startAgent(t, 0, nil)
		time.Sleep(time.Second)
		m.agent.events.throttle.setEnd(time.Now().Add(time.Minute))
		m.agent.events.queueEvent(newUncordonedEvent())
		m.mu.Lock()
		m.node.UID = "uid-new"
		m.mu.Unlock()
		m.agent.updates <- func(context.Context) { m.agent.recordsRead = false }
		time.Sleep(time.Second)
		m.agent.events.queueEvent(newUncordonedEvent())
		time.Sleep(time.Minute)
		m.crashAgent()
		if want := []string{"uid-n", "uid-new"}; !slices.Equal(m.eventNodeUIDs, want) {
			t.Errorf("the Events are about %v, want %v", m.eventNodeUIDs, want)
		}
	})
}
