package plugin

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"sync"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"
	corev1 "k8s.io/api/core/v1"

	pluginv1 "github.com/slipway-dev/slipway/api/plugin/v1"
	"github.com/slipway-dev/slipway/internal/cloud/advice"
	"github.com/slipway-dev/slipway/internal/cloud/plugin/wire"
)

// server answers Slipway's calls with the plugin's Provider.
type server struct {
	pluginv1.UnsafeCloudProviderServer
	pluginv1.UnsafePodEventAnalyzerServer
	open OpenFunc

	mu       sync.Mutex
	provider Provider // nil until configured, then constant
}

// checkConfigured returns an error if Configure has not succeeded yet.
func (s *server) checkConfigured() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.provider == nil {
		return status.Error(codes.FailedPrecondition, "call Configure first")
	}
	return nil
}

func (s *server) closeProvider() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if c, ok := s.provider.(io.Closer); ok {
		if err := c.Close(); err != nil {
			slog.Error("closing the provider failed", "err", err)
		}
	}
}

// Configure implements pluginv1.CloudProviderServer.
func (s *server) Configure(_ context.Context, r *pluginv1.ConfigureRequest) (*pluginv1.ConfigureResponse, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.provider != nil {
		return nil, status.Error(codes.FailedPrecondition, "Configure was already called")
	}
	p, err := s.open(Config{Name: r.GetName(), JSON: json.RawMessage(r.GetConfigJson())})
	if err == nil && p == nil {
		err = errors.New("the plugin returned no provider")
	}
	if err != nil {
		return nil, invalidArgument(err)
	}
	s.provider = p
	_, modify := p.(ModifyEventAnalyzer)
	_, del := p.(DeleteEventAnalyzer)
	return &pluginv1.ConfigureResponse{ModifyEventAnalyzer: modify, DeleteEventAnalyzer: del}, nil
}

// invalidArgument returns a gRPC status InvalidArgument. It shortens the error's text to the length that a status can
// hold.
func invalidArgument(err error) error {
	return status.Error(codes.InvalidArgument, wire.FromError(err).GetMessage())
}

// Normalize implements pluginv1.CloudProviderServer.
func (s *server) Normalize(_ context.Context, r *pluginv1.NormalizeRequest) (*pluginv1.NormalizeResponse, error) {
	id, err := s.provider.Normalize(r.GetProviderId())
	if err != nil {
		return nil, invalidArgument(err)
	}
	return &pluginv1.NormalizeResponse{ProviderId: id}, nil
}

// GetGroup implements pluginv1.CloudProviderServer.
func (s *server) GetGroup(ctx context.Context, r *pluginv1.GetGroupRequest) (*pluginv1.GetGroupResponse, error) {
	g, err := s.provider.Group(ctx, r.GetName())
	if err != nil {
		return nil, err
	}
	return &pluginv1.GetGroupResponse{Group: wire.FromGroup(g)}, nil
}

// ListInstances implements pluginv1.CloudProviderServer.
func (s *server) ListInstances(ctx context.Context, r *pluginv1.ListInstancesRequest) (*pluginv1.ListInstancesResponse, error) {
	list, err := s.provider.Instances(ctx, r.GetGroup())
	if err != nil {
		return nil, err
	}
	answer := &pluginv1.ListInstancesResponse{}
	for _, i := range list {
		answer.Instances = append(answer.Instances, wire.FromInstance(i))
	}
	return answer, nil
}

// GetInstance implements pluginv1.CloudProviderServer.
func (s *server) GetInstance(ctx context.Context, r *pluginv1.GetInstanceRequest) (*pluginv1.GetInstanceResponse, error) {
	i, err := s.provider.Instance(ctx, r.GetProviderId())
	if err != nil {
		return nil, err
	}
	return &pluginv1.GetInstanceResponse{Instance: wire.FromInstance(i)}, nil
}

// DeleteInstance implements pluginv1.CloudProviderServer.
func (s *server) DeleteInstance(ctx context.Context, r *pluginv1.DeleteInstanceRequest) (*pluginv1.DeleteInstanceResponse, error) {
	op, err := s.provider.Delete(ctx, r.GetProviderId())
	if err != nil {
		return nil, err
	}
	return &pluginv1.DeleteInstanceResponse{Operation: wire.FromOperation(op)}, nil
}

// ListTemplates implements pluginv1.CloudProviderServer.
func (s *server) ListTemplates(ctx context.Context, r *pluginv1.ListTemplatesRequest) (*pluginv1.ListTemplatesResponse, error) {
	list, err := s.provider.Templates(ctx, r.GetGroup())
	if err != nil {
		return nil, err
	}
	answer := &pluginv1.ListTemplatesResponse{}
	for _, t := range list {
		answer.Templates = append(answer.Templates, wire.FromTemplate(t))
	}
	return answer, nil
}

// GrowGroup implements pluginv1.CloudProviderServer.
func (s *server) GrowGroup(ctx context.Context, r *pluginv1.GrowGroupRequest) (*pluginv1.GrowGroupResponse, error) {
	op, err := s.provider.Grow(ctx, r.GetGroup(), LaunchRequest{Count: int(r.GetCount()), Template: r.GetTemplate()})
	if err != nil {
		return nil, err
	}
	return &pluginv1.GrowGroupResponse{Operation: wire.FromOperation(op)}, nil
}

// GetStatus implements pluginv1.CloudProviderServer.
func (s *server) GetStatus(ctx context.Context, r *pluginv1.GetStatusRequest) (*pluginv1.GetStatusResponse, error) {
	st, err := s.provider.Status(ctx, wire.ToOperation(r.GetOperation()))
	if err != nil {
		return nil, err
	}
	answer := &pluginv1.GetStatusResponse{Done: st.Done, Error: wire.FromError(st.Err)}
	if st.RetryAfter > 0 {
		answer.After = durationpb.New(st.RetryAfter)
	}
	return answer, nil
}

// ModifyEventAnalyzer implements pluginv1.PodEventAnalyzerServer.
func (s *server) ModifyEventAnalyzer(ctx context.Context, event *pluginv1.PodEvent) (*pluginv1.Advice, error) {
	a, ok := s.provider.(ModifyEventAnalyzer)
	if !ok {
		return nil, status.Error(codes.Unimplemented, "the plugin has no ModifyEventAnalyzer")
	}
	return decodeAndAnalyzePod(ctx, event, a.ModifyEventAnalyzer)
}

// DeleteEventAnalyzer implements pluginv1.PodEventAnalyzerServer.
func (s *server) DeleteEventAnalyzer(ctx context.Context, event *pluginv1.PodEvent) (*pluginv1.Advice, error) {
	a, ok := s.provider.(DeleteEventAnalyzer)
	if !ok {
		return nil, status.Error(codes.Unimplemented, "the plugin has no DeleteEventAnalyzer")
	}
	return decodeAndAnalyzePod(ctx, event, a.DeleteEventAnalyzer)
}

func decodeAndAnalyzePod(ctx context.Context, event *pluginv1.PodEvent,
	analyze func(context.Context, *corev1.Pod) ([]advice.Recommendation, error),
) (*pluginv1.Advice, error) {
	var pod corev1.Pod
	if err := json.Unmarshal(event.GetPodJson(), &pod); err != nil {
		return nil, invalidArgument(fmt.Errorf("pod of the event: %w", err))
	}
	recommendations, err := analyze(ctx, &pod)
	if err == nil {
		err = advice.Validate(recommendations)
	}
	if err != nil {
		return nil, err
	}
	return wire.FromRecommendations(recommendations), nil
}
