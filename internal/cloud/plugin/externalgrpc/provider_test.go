package externalgrpc

import (
	"context"
	"net"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	pb "github.com/slipway-dev/slipway/api/externalgrpc/v1"
	"github.com/slipway-dev/slipway/internal/cloud"
	"github.com/slipway-dev/slipway/internal/testing/check"
	"github.com/slipway-dev/slipway/internal/testing/must"
	"github.com/slipway-dev/slipway/internal/testing/virtual"
)

// staticProvider is a provider without a connection. It never deletes its instances.
type staticProvider struct {
	pb.CloudProviderClient

	machines         map[string][]string // by group
	failed           map[string]bool     // by provider ID
	sizes            map[string]int32
	onDeletion       func(ctx context.Context) error
	sent             bool // whether a deletion is sent
	deletionRequests int  // number of deletion requests
}

func (*staticProvider) Refresh(context.Context, *pb.RefreshRequest, ...grpc.CallOption) (*pb.RefreshResponse, error) {
	return &pb.RefreshResponse{}, nil
}

func (s *staticProvider) NodeGroups(context.Context, *pb.NodeGroupsRequest, ...grpc.CallOption) (*pb.NodeGroupsResponse, error) {
	answer := &pb.NodeGroupsResponse{}
	for id := range s.sizes {
		answer.NodeGroups = append(answer.NodeGroups, &pb.NodeGroup{Id: id, MaxSize: 20})
	}
	return answer, nil
}

func (s *staticProvider) NodeGroupTargetSize(_ context.Context, r *pb.NodeGroupTargetSizeRequest, _ ...grpc.CallOption) (
	*pb.NodeGroupTargetSizeResponse, error,
) {
	return &pb.NodeGroupTargetSizeResponse{TargetSize: s.sizes[r.GetId()]}, nil
}

func (s *staticProvider) NodeGroupNodes(_ context.Context, r *pb.NodeGroupNodesRequest, _ ...grpc.CallOption) (*pb.NodeGroupNodesResponse, error) {
	answer := &pb.NodeGroupNodesResponse{}
	for _, id := range s.machines[r.GetId()] {
		i := &pb.Instance{Id: id}
		if s.failed[id] {
			i.Status = &pb.InstanceStatus{ErrorInfo: &pb.InstanceErrorInfo{ErrorCode: "QUOTA", ErrorMessage: "no cores"}}
		}
		answer.Instances = append(answer.Instances, i)
	}
	return answer, nil
}

// NodeGroupIncreaseSize does not make the instances.
func (s *staticProvider) NodeGroupIncreaseSize(_ context.Context, r *pb.NodeGroupIncreaseSizeRequest, _ ...grpc.CallOption) (
	*pb.NodeGroupIncreaseSizeResponse, error,
) {
	s.sizes[r.GetId()] += r.GetDelta()
	return &pb.NodeGroupIncreaseSizeResponse{}, nil
}

func (s *staticProvider) NodeGroupDeleteNodes(ctx context.Context, _ *pb.NodeGroupDeleteNodesRequest, options ...grpc.CallOption) (
	*pb.NodeGroupDeleteNodesResponse, error,
) {
	s.deletionRequests++
	for _, o := range options {
		if p, ok := o.(grpc.PeerCallOption); ok && s.sent {
			p.PeerAddr.Addr = &net.TCPAddr{}
		}
	}
	return &pb.NodeGroupDeleteNodesResponse{}, s.onDeletion(ctx)
}

func (s *staticProvider) newProvider(t *testing.T) *Provider {
	t.Helper()
	p, err := New(Config{Name: "rack", Address: "unix:///none", ProviderIDPrefix: "rack://", Insecure: true})
	must.NoError(t, err)
	p.client = s
	return p
}

func TestUndeliveredDeletionIsRetried(t *testing.T) {
	unavailable := func(context.Context) error { return status.Error(codes.Unavailable, "error reading from server: EOF") }
	hang := func(ctx context.Context) error {
		<-ctx.Done()
		return status.FromContextError(ctx.Err()).Err()
	}
	for name, test := range map[string]struct {
		deletion func(context.Context) error
		sent     bool
		after    time.Duration
	}{
		"connection broke": {unavailable, true, deletionTimeout},
		"timeout":          {hang, true, deletionTimeout},
		"never sent":       {unavailable, false, 0},
	} {
		t.Run(name, virtual.InVirtualTime(func(t *testing.T) {
			s := &staticProvider{
				machines: map[string][]string{"a": {"rack://a/1", "rack://a/2"}}, sizes: map[string]int32{"a": 2},
				onDeletion: test.deletion, sent: test.sent,
			}
			p := s.newProvider(t)
			defer p.Close() //nolint:errcheck // it never connected
			op, err := p.Delete(t.Context(), "rack://a/1")
			lost := test.after > 0
			must.Not(t, lost != (err == nil), "Delete: %+v, %v", op, err)
			for time.Since(op.Started) < test.after-time.Minute {
				must.NoError(t, check.Err(p.Delete(t.Context(), "rack://a/1")))
				if st, err := p.Status(t.Context(), op); err != nil || st.Done {
					t.Fatalf("after %s: %+v, %v", time.Since(op.Started), st, err)
				}
				time.Sleep(time.Minute)
			}
			check.Is(t, 1, s.deletionRequests, test.after)
			time.Sleep(2 * time.Minute)
			if test.after > 0 {
				if st, err := p.Status(t.Context(), op); err != nil || !st.Done || st.Err == nil || !strings.Contains(st.Err.Error(), "NodeGroupDeleteNodes: ") {
					t.Errorf("after %s: %+v, %v", time.Since(op.Started), st, err)
				}
			}
			s.onDeletion = func(context.Context) error { return nil }
			if _, err := p.Delete(t.Context(), "rack://a/1"); err != nil || s.deletionRequests != 2 {
				t.Errorf("%d requests, %v, want 2", s.deletionRequests, err)
			}
		}))
	}
}

func TestEmptyGroupDoesNotAffectOthers(t *testing.T) {
	for range 100 { // the order of the groups is random
		s := &staticProvider{
			machines: map[string][]string{"b": {"rack://b/1", "rack://b/2"}}, sizes: map[string]int32{"a": 1, "b": 2},
		}
		p := s.newProvider(t)
		if i, err := p.Instance(t.Context(), "rack://b/1"); err != nil || i.Group != "b" {
			t.Fatalf("listed instance: %+v, %v", i, err)
		}
		s.machines["b"] = []string{"rack://b/2"}
		if _, err := p.Instance(t.Context(), "rack://b/1"); !cloud.IsNotFound(err) {
			t.Fatalf("instance that its group no longer has: %v", err)
		}
		if _, err := p.Instance(t.Context(), "rack://c/1"); err == nil || cloud.IsNotFound(err) {
			t.Fatalf("I7: unknown instance may be in the empty group: %v", err)
		}
		s.machines["b"] = nil
		if _, err := p.Instance(t.Context(), "rack://b/1"); err == nil || cloud.IsNotFound(err) {
			t.Fatalf("I7: instance of a group with size 2 and an empty list: %v", err)
		}
		delete(s.sizes, "b")
		s.machines["a"] = []string{"rack://a/1"}
		if _, err := p.Instance(t.Context(), "rack://b/1"); err == nil || cloud.IsNotFound(err) {
			t.Fatalf("I7: instance of an unlisted group: %v", err)
		}
		_ = p.Close()
	}
}

func TestLaunchFailsOnlyForItsOwnInstances(t *testing.T) {
	for name, c := range map[string]struct {
		made         []string
		failed       string
		done, hasErr bool
	}{
		"not made yet": {nil, "", false, false},
		"running":      {[]string{"rack://a/3"}, "", true, false},
		"failed":       {[]string{"rack://a/3"}, "rack://a/3", true, true},
	} {
		t.Run(name, func(t *testing.T) {
			s := &staticProvider{
				machines: map[string][]string{"a": {"rack://a/1", "rack://a/2"}}, sizes: map[string]int32{"a": 2},
				failed: map[string]bool{"rack://a/2": true},
			}
			p := s.newProvider(t)
			defer p.Close() //nolint:errcheck // it never connected
			op, err := p.Grow(t.Context(), "a", cloud.LaunchRequest{Count: 1})
			must.NoError(t, err)
			s.machines["a"] = append(s.machines["a"], c.made...)
			s.failed[c.failed] = true
			st, err := p.Status(t.Context(), op)
			check.Not(t, err != nil || st.Done != c.done || (st.Err != nil) != c.hasErr, "%+v, %v", st, err)
			check.Not(t, st.Err != nil && !strings.Contains(st.Err.Error(), "rack://a/3"), "%v", st.Err)
		})
	}
}
