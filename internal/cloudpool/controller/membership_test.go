package controller

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"time"

	api "github.com/slipway-dev/slipway/internal/cloud/cloudpool/wire"
)

// memoryPool is a pool in memory that supports memberships and sizes only.
type memoryPool struct {
	Backend
	pool    api.Pool
	size    api.Size
	fails   map[string]error
	changes []string
}

// Pool returns a newer observation with each call.
func (m *memoryPool) Pool(context.Context) (api.Pool, error) {
	m.pool.Timestamp = m.pool.Timestamp.Add(time.Millisecond)
	return m.pool, m.fails["pool"]
}

func (m *memoryPool) Size(context.Context) (api.Size, error) { return m.size, m.fails["size"] }

func (m *memoryPool) SetDesiredSize(_ context.Context, n int) error {
	if err := m.fails["desired"]; err != nil {
		return err
	}
	m.size.Desired = n
	m.changes = append(m.changes, "desired")
	return nil
}

func (m *memoryPool) SetMembershipStatus(_ context.Context, s api.SetMembershipStatus) error {
	for i := range m.pool.Machines {
		if m.pool.Machines[i].ID == s.MachineID {
			m.pool.Machines[i].Membership = &s.MembershipStatus
		}
	}
	m.changes = append(m.changes, "membership")
	return m.fails["membership"]
}

// newMemoryPool returns a pool with one machine for each membership.
func newMemoryPool(desired int, memberships ...api.MembershipStatus) *memoryPool {
	m := &memoryPool{size: api.Size{Desired: desired}, fails: map[string]error{}}
	for i := range memberships {
		m.pool.Machines = append(m.pool.Machines, api.Machine{ID: string(rune('a' + i)), State: api.Running, Membership: &memberships[i]})
	}
	return m
}

var (
	evictableMember = api.MembershipStatus{Active: true, Evictable: true}
	protectedMember = api.MembershipStatus{Active: true}
	inactiveMember  = api.MembershipStatus{}
)

func TestMembershipChangeNeverRaisesSize(t *testing.T) {
	for name, tt := range map[string]struct {
		desired     int
		memberships []api.MembershipStatus
		machine     string
		want        api.MembershipStatus
		refused     bool
		warns       bool
	}{
		"activated above desired size": {2, []api.MembershipStatus{evictableMember, evictableMember, inactiveMember}, "c", evictableMember, false, true},
		"activated up to desired size": {3, []api.MembershipStatus{evictableMember, evictableMember, inactiveMember}, "c", evictableMember, false, false},
		"evictable above desired size": {2, []api.MembershipStatus{evictableMember, evictableMember, protectedMember}, "c", evictableMember, true, false},
		"evictable at desired size":    {3, []api.MembershipStatus{evictableMember, evictableMember, protectedMember}, "c", evictableMember, false, false},
		"deactivated":                  {3, []api.MembershipStatus{evictableMember, evictableMember, evictableMember}, "c", inactiveMember, false, false},
		"made non-evictable":           {2, []api.MembershipStatus{evictableMember, evictableMember, evictableMember}, "c", protectedMember, false, false},
		"not a member":                 {3, []api.MembershipStatus{evictableMember, evictableMember, evictableMember}, "x", evictableMember, false, false},
	} {
		t.Run(name, func(t *testing.T) {
			pool := newMemoryPool(tt.desired, tt.memberships...)
			var log strings.Builder
			u := &Updater{opts: UpdaterOptions{Backend: pool}, log: slog.New(slog.NewTextHandler(&log, nil))}
			err := u.forwardMembershipIfSafe(t.Context(), api.SetMembershipStatus{MachineID: tt.machine, MembershipStatus: tt.want}, "")
			asked := "membership"
			if tt.refused {
				asked = ""
			}
			if got := strings.Join(pool.changes, ","); (ToResult(err) == NotPossible) != tt.refused || err != nil && !tt.refused ||
				got != asked || pool.size.Desired != tt.desired || log.Len() > 0 != tt.warns {
				t.Errorf("%v, asked %q, desired size %d, log %q", err, got, pool.size.Desired, &log)
			}
		})
	}
}

func TestMembershipIsNotSetIfPoolIsUnreadable(t *testing.T) {
	for _, what := range []string{"pool", "size"} {
		pool := newMemoryPool(2, evictableMember, inactiveMember)
		pool.fails[what] = errors.New("away")
		u := &Updater{opts: UpdaterOptions{Backend: pool}, log: slog.New(slog.DiscardHandler)}
		err := u.forwardMembershipIfSafe(t.Context(), api.SetMembershipStatus{MachineID: "b", MembershipStatus: evictableMember}, "")
		if !errors.Is(err, pool.fails[what]) || len(pool.changes) > 0 {
			t.Errorf("%s: %v, asked %q", what, err, pool.changes)
		}
	}
}
