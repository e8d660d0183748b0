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

// members is a pool of which nothing but memberships and sizes is asked.
type members struct {
	Backend
	pool  api.Pool
	size  api.Size
	fails map[string]error
	asked []string
}

// Pool is observed anew each time.
func (m *members) Pool(context.Context) (api.Pool, error) {
	m.pool.Timestamp = m.pool.Timestamp.Add(time.Millisecond)
	return m.pool, m.fails["pool"]
}

func (m *members) Size(context.Context) (api.Size, error) { return m.size, m.fails["size"] }

func (m *members) SetDesiredSize(_ context.Context, n int) error {
	if err := m.fails["desired"]; err != nil {
		return err
	}
	m.size.Desired = n
	m.asked = append(m.asked, "desired")
	return nil
}

func (m *members) SetMembershipStatus(_ context.Context, s api.SetMembershipStatus) error {
	for i := range m.pool.Machines {
		if m.pool.Machines[i].ID == s.MachineID {
			m.pool.Machines[i].Membership = &s.MembershipStatus
		}
	}
	m.asked = append(m.asked, "membership")
	return m.fails["membership"]
}

// pooled is a pool of machines of these memberships, and what size it is meant to have.
func pooled(desired int, memberships ...api.MembershipStatus) *members {
	m := &members{size: api.Size{Desired: desired}, fails: map[string]error{}}
	for i := range memberships {
		m.pool.Machines = append(m.pool.Machines, api.Machine{ID: string(rune('a' + i)), State: api.Running, Membership: &memberships[i]})
	}
	return m
}

var (
	plain   = api.MembershipStatus{Active: true, Evictable: true}
	blessed = api.MembershipStatus{Active: true}
	waiting = api.MembershipStatus{}
)

func TestMembershipNeverRaisesTheSize(t *testing.T) {
	for name, tt := range map[string]struct {
		desired     int
		memberships []api.MembershipStatus
		machine     string
		want        api.MembershipStatus
		refused     bool
		warns       bool
	}{
		"counts again and is one too many": {2, []api.MembershipStatus{plain, plain, waiting}, "c", plain, false, true},
		"counts again and is wanted":       {3, []api.MembershipStatus{plain, plain, waiting}, "c", plain, false, false},
		"may go while too many are there":  {2, []api.MembershipStatus{plain, plain, blessed}, "c", plain, true, false},
		"may go while as many are there":   {3, []api.MembershipStatus{plain, plain, blessed}, "c", plain, false, false},
		"is put aside":                     {3, []api.MembershipStatus{plain, plain, plain}, "c", waiting, false, false},
		"is kept":                          {2, []api.MembershipStatus{plain, plain, plain}, "c", blessed, false, false},
		"is not a member":                  {3, []api.MembershipStatus{plain, plain, plain}, "x", plain, false, false},
	} {
		t.Run(name, func(t *testing.T) {
			pool := pooled(tt.desired, tt.memberships...)
			var log strings.Builder
			u := &Updater{o: UpdaterOptions{Backend: pool}, log: slog.New(slog.NewTextHandler(&log, nil))}
			err := u.setMembership(t.Context(), api.SetMembershipStatus{MachineID: tt.machine, MembershipStatus: tt.want}, "")
			asked := "membership"
			if tt.refused {
				asked = ""
			}
			if got := strings.Join(pool.asked, ","); (ResultOf(err) == NotPossible) != tt.refused || err != nil && !tt.refused ||
				got != asked || pool.size.Desired != tt.desired || log.Len() > 0 != tt.warns {
				t.Errorf("%v, asked %q, desired size %d, log %q", err, got, pool.size.Desired, &log)
			}
		})
	}
}

func TestMembershipIsNotSetWhenThePoolCannotBeRead(t *testing.T) {
	for _, what := range []string{"pool", "size"} {
		pool := pooled(2, plain, waiting)
		pool.fails[what] = errors.New("away")
		u := &Updater{o: UpdaterOptions{Backend: pool}, log: slog.New(slog.DiscardHandler)}
		err := u.setMembership(t.Context(), api.SetMembershipStatus{MachineID: "b", MembershipStatus: plain}, "")
		if !errors.Is(err, pool.fails[what]) || len(pool.asked) > 0 {
			t.Errorf("%s: %v, asked %q", what, err, pool.asked)
		}
	}
}
