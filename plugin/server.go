package plugin

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"runtime/debug"
	"sync"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"
	corev1 "k8s.io/api/core/v1"

	pluginv1 "github.com/slipway-dev/slipway/api/plugin/v1"
	"github.com/slipway-dev/slipway/internal/cloud/advice"
	"github.com/slipway-dev/slipway/internal/cloud/plugin/wire"
)

// server answers Slipway's calls with a Provider.
type server struct {
	pluginv1.UnsafeCloudProviderServer
	pluginv1.UnsafePodEventAnalyzerServer
	open OpenFunc

	mu       sync.Mutex
	provider Provider // nil until configured
}

func stack() string { return string(debug.Stack()) }

// get gives the provider, once there is one.
func (s *server) get() (Provider, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.provider == nil {
		return nil, status.Error(codes.FailedPrecondition, "Configure has to be called first")
	}
	return s.provider, nil
}

func (s *server) close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if c, ok := s.provider.(io.Closer); ok {
		if err := c.Close(); err != nil {
			slog.Error("closing the provider", "err", err)
		}
	}
}

// Configure implements pluginv1.CloudProviderServer.
func (s *server) Configure(_ context.Context, r *pluginv1.ConfigureRequest) (*pluginv1.ConfigureResponse, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.provider != nil {
		return nil, status.Error(codes.FailedPrecondition, "Configure was called before")
	}
	p, err := s.open(Config{Name: r.GetName(), JSON: json.RawMessage(r.GetConfigJson())})
	if err == nil && p == nil {
		err = errors.New("the plugin has made no provider")
	}
	if err != nil {
		return nil, refuse(err)
	}
	s.provider = p
	_, modify := p.(ModifyEventAnalyzer)
	_, del := p.(DeleteEventAnalyzer)
	return &pluginv1.ConfigureResponse{ModifyEventAnalyzer: modify, DeleteEventAnalyzer: del}, nil
}

// refuse says that what was given is wrong, in words that fit into a status.
func refuse(err error) error {
	return status.Error(codes.InvalidArgument, wire.FromError(err).GetMessage())
}

// Normalize implements pluginv1.CloudProviderServer.
func (s *server) Normalize(_ context.Context, r *pluginv1.NormalizeRequest) (*pluginv1.NormalizeResponse, error) {
	p, err := s.get()
	if err != nil {
		return nil, err
	}
	id, err := p.Normalize(r.GetProviderId())
	if err != nil {
		return nil, refuse(err)
	}
	return &pluginv1.NormalizeResponse{ProviderId: id}, nil
}

// GetGroup implements pluginv1.CloudProviderServer.
func (s *server) GetGroup(ctx context.Context, r *pluginv1.GetGroupRequest) (*pluginv1.GetGroupResponse, error) {
	p, err := s.get()
	if err != nil {
		return nil, err
	}
	g, err := p.Group(ctx, r.GetName())
	if err != nil {
		return nil, err
	}
	return &pluginv1.GetGroupResponse{Group: wire.FromGroup(g)}, nil
}

// ListInstances implements pluginv1.CloudProviderServer.
func (s *server) ListInstances(ctx context.Context, r *pluginv1.ListInstancesRequest) (*pluginv1.ListInstancesResponse, error) {
	p, err := s.get()
	if err != nil {
		return nil, err
	}
	list, err := p.Instances(ctx, r.GetGroup())
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
	p, err := s.get()
	if err != nil {
		return nil, err
	}
	i, err := p.Instance(ctx, r.GetProviderId())
	if err != nil {
		return nil, err
	}
	return &pluginv1.GetInstanceResponse{Instance: wire.FromInstance(i)}, nil
}

// DeleteInstance implements pluginv1.CloudProviderServer.
func (s *server) DeleteInstance(ctx context.Context, r *pluginv1.DeleteInstanceRequest) (*pluginv1.DeleteInstanceResponse, error) {
	p, err := s.get()
	if err != nil {
		return nil, err
	}
	op, err := p.Delete(ctx, r.GetProviderId())
	if err != nil {
		return nil, err
	}
	return &pluginv1.DeleteInstanceResponse{Operation: wire.FromOperation(op)}, nil
}

// ListTemplates implements pluginv1.CloudProviderServer.
func (s *server) ListTemplates(ctx context.Context, r *pluginv1.ListTemplatesRequest) (*pluginv1.ListTemplatesResponse, error) {
	p, err := s.get()
	if err != nil {
		return nil, err
	}
	list, err := p.Templates(ctx, r.GetGroup())
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
	p, err := s.get()
	if err != nil {
		return nil, err
	}
	op, err := p.Grow(ctx, r.GetGroup(), Order{Count: int(r.GetCount()), Template: r.GetTemplate()})
	if err != nil {
		return nil, err
	}
	return &pluginv1.GrowGroupResponse{Operation: wire.FromOperation(op)}, nil
}

// GetStatus implements pluginv1.CloudProviderServer.
func (s *server) GetStatus(ctx context.Context, r *pluginv1.GetStatusRequest) (*pluginv1.GetStatusResponse, error) {
	p, err := s.get()
	if err != nil {
		return nil, err
	}
	st, err := p.Status(ctx, wire.ToOperation(r.GetOperation()))
	if err != nil {
		return nil, err
	}
	answer := &pluginv1.GetStatusResponse{Done: st.Done, Error: wire.FromError(st.Err)}
	if st.After > 0 {
		answer.After = durationpb.New(st.After)
	}
	return answer, nil
}

// ModifyEventAnalyzer implements pluginv1.PodEventAnalyzerServer.
func (s *server) ModifyEventAnalyzer(ctx context.Context, event *pluginv1.PodEvent) (*pluginv1.Advice, error) {
	p, err := s.get()
	if err != nil {
		return nil, err
	}
	a, ok := p.(ModifyEventAnalyzer)
	if !ok {
		return nil, status.Error(codes.Unimplemented, "the plugin has no ModifyEventAnalyzer")
	}
	return analyze(ctx, event, a.ModifyEventAnalyzer)
}

// DeleteEventAnalyzer implements pluginv1.PodEventAnalyzerServer.
func (s *server) DeleteEventAnalyzer(ctx context.Context, event *pluginv1.PodEvent) (*pluginv1.Advice, error) {
	p, err := s.get()
	if err != nil {
		return nil, err
	}
	a, ok := p.(DeleteEventAnalyzer)
	if !ok {
		return nil, status.Error(codes.Unimplemented, "the plugin has no DeleteEventAnalyzer")
	}
	return analyze(ctx, event, a.DeleteEventAnalyzer)
}

func analyze(ctx context.Context, event *pluginv1.PodEvent,
	ask func(context.Context, *corev1.Pod) ([]advice.Wish, error),
) (*pluginv1.Advice, error) {
	var pod corev1.Pod
	if err := json.Unmarshal(event.GetPodJson(), &pod); err != nil {
		return nil, refuse(fmt.Errorf("the pod of the event: %w", err))
	}
	wishes, err := ask(ctx, &pod)
	if err == nil {
		err = advice.Validate(wishes)
	}
	if err != nil {
		return nil, err
	}
	return wire.FromWishes(wishes), nil
}
