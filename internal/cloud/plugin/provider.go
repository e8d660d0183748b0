package plugin

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"

	pluginv1 "github.com/slipway-dev/slipway/api/plugin/v1"
	"github.com/slipway-dev/slipway/internal/cloud"
	"github.com/slipway-dev/slipway/internal/cloud/advice"
	"github.com/slipway-dev/slipway/internal/cloud/plugin/wire"
)

// Provider is the [cloud.Provider] and the analyzer of a plugin. It is safe for concurrent use.
type Provider struct {
	host    *host
	timeout time.Duration

	mu          sync.Mutex
	normalized  map[string]normalizeResult
	pausedUntil time.Time // no Normalize request before this time, after a timeout
	timedOutID  string    // the ID of the request that timed out
}

var (
	_ cloud.Provider                   = (*Provider)(nil)
	_ cloud.DeletionProtectionReporter = (*Provider)(nil)
	_ advice.Analyzer                  = (*Provider)(nil)
)

// ReportsDeletionProtection marks a provider with deletion protection.
func (p *Provider) ReportsDeletionProtection() {}

// normalizeResult is a cached result of Normalize.
type normalizeResult struct {
	id  string
	err error
}

// The limits of cached results and of an ID, in bytes.
const (
	maxNormalized = 20_000
	maxIDLength   = 4096
)

// Callers of Normalize block others while they wait, one ID after the other. normalizing is the timeout of a request.
// silence is the time without requests after a timeout.
const (
	normalizeTimeout = 2 * time.Second
	normalizePause   = 15 * time.Second
)

// Open starts a plugin. It fails if the file cannot be run or is not a plugin. It also fails if the plugin speaks
// another protocol version or refuses its configuration. The plugin then runs until Close.
func Open(ctx context.Context, directory string, e Entry, o Options) (*Provider, error) {
	if err := (Config{Directory: directory, Use: []Entry{e}}).Validate(); err != nil {
		return nil, err
	}
	p := &Provider{host: newHost(directory, e, o), timeout: timeoutOrDefault(e.CallTimeout), normalized: map[string]normalizeResult{}}
	if _, err := p.host.getOrStartProcess(ctx); err != nil {
		last := p.host.lastFailure()
		p.host.close()
		if last != nil {
			err = last
		}
		return nil, err
	}
	return p, nil
}

// OpenAll starts the plugins of a configuration concurrently. If one fails, all are stopped.
func OpenAll(ctx context.Context, c Config, o Options) ([]*Provider, error) {
	if err := c.Validate(); err != nil {
		return nil, err
	}
	opened := make([]*Provider, len(c.Use))
	errs := make([]error, len(c.Use))
	var all sync.WaitGroup
	for i, e := range c.Use {
		all.Go(func() { opened[i], errs[i] = Open(ctx, c.Directory, e, o) })
	}
	all.Wait()
	if err := errors.Join(errs...); err != nil {
		CloseAll(opened)
		return nil, err
	}
	return opened, nil
}

// CloseAll closes providers concurrently and ignores nil.
func CloseAll(providers []*Provider) {
	var all sync.WaitGroup
	for _, p := range providers {
		if p != nil {
			all.Go(p.host.close)
		}
	}
	all.Wait()
}

// Close stops the plugin within a few seconds, with a kill if necessary. It always returns nil.
func (p *Provider) Close() error {
	p.host.close()
	return nil
}

// PID returns the process ID of the plugin, 0 while it does not run.
func (p *Provider) PID() int { return p.host.pid() }

// call makes one call with the timeout and converts its error.
func (p *Provider) call(ctx context.Context, what string, do func(context.Context, *process) error) error {
	return p.callWithin(ctx, p.timeout, what, do)
}

func (p *Provider) callWithin(ctx context.Context, bound time.Duration, what string, do func(context.Context, *process) error) error {
	bounded, cancel := context.WithTimeout(ctx, bound)
	defer cancel()
	proc, err := p.host.getOrStartProcess(bounded)
	if err != nil {
		return fmt.Errorf("plugin %s: %s: %w", p.Name(), what, err)
	}
	if err = do(bounded, proc); err == nil {
		return nil
	}
	answer, answered := wire.FromStatus(err)
	switch {
	case answered:
		return answer
	case ctx.Err() != nil: // the caller cancelled
		return fmt.Errorf("plugin %s: %s: %w", p.Name(), what, context.Cause(ctx))
	}
	if proc.hasExited() {
		err = fmt.Errorf("the plugin exited during the call: %w", err)
	}
	p.host.killIfUnresponsive(proc) //nolint:contextcheck // the health check continues after the caller cancelled
	return fmt.Errorf("plugin %s: %s: %w", p.Name(), what, err)
}

// hideNotFoundOfOtherKind drops a NotFoundError of another kind. If a group was requested, a missing instance proves nothing (I7).
func hideNotFoundOfOtherKind(kind string, err error) error {
	var notFound *cloud.NotFoundError
	if !errors.As(err, &notFound) || notFound.Kind == kind {
		return err
	}
	// wrapping would keep the NotFoundError
	//nolint:errorlint // what is wrapped would be believed
	return fmt.Errorf("the plugin returned NotFound for another kind of object: %s", err)
}

// Name implements cloud.Provider and advice.Analyzer.
func (p *Provider) Name() string { return p.host.entry.ProviderName() }

// Normalize implements cloud.Provider. It caches results, which remain available while the plugin does not run. After a
// timeout it requests no ID for the duration silence. It waits twice as long before it retries the ID that timed out,
// so that other IDs come first.
func (p *Provider) Normalize(providerID string) (string, error) {
	if known, ok := p.cachedNormalization(providerID); ok {
		return known.id, known.err
	}
	p.mu.Lock()
	again := p.pausedUntil
	if providerID == p.timedOutID {
		again = again.Add(normalizePause)
	}
	p.mu.Unlock()
	if time.Now().Before(again) && len(providerID) <= maxIDLength {
		// The text is constant, because it is written to conditions.
		return "", &cloud.ProviderUnavailableError{Err: fmt.Errorf("provider ID %q: plugin %s: Normalize: timed out, next attempt within %s",
			providerID, p.Name(), 2*normalizePause)}
	}
	began, bound := time.Now(), min(normalizeTimeout, p.timeout)
	id, err := p.normalizeWithin(context.Background(), bound, providerID)
	if cloud.IsProviderUnavailable(err) && time.Since(began) > bound/2 {
		p.mu.Lock()
		p.pausedUntil, p.timedOutID = time.Now().Add(normalizePause), providerID
		p.mu.Unlock()
	}
	return id, err
}

func (p *Provider) cachedNormalization(providerID string) (result normalizeResult, found bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	known, ok := p.normalized[providerID]
	return known, ok
}

// normalizeWithin returns the canonical form of an ID, from the cache or the plugin.
func (p *Provider) normalizeWithin(ctx context.Context, bound time.Duration, providerID string) (string, error) {
	if len(providerID) > maxIDLength {
		return "", fmt.Errorf("provider ID %.40s…: %d bytes: want at most %d", providerID, len(providerID), maxIDLength)
	}
	known, ok := p.cachedNormalization(providerID)
	if ok {
		return known.id, known.err
	}
	var answer *pluginv1.NormalizeResponse
	err := p.callWithin(ctx, bound, "Normalize", func(ctx context.Context, proc *process) (err error) {
		answer, err = proc.provider.Normalize(ctx, &pluginv1.NormalizeRequest{ProviderId: providerID})
		if status.Code(err) == codes.InvalidArgument {
			known.err = statusError(err)
			return nil
		}
		return err
	})
	known.id = answer.GetProviderId()
	switch {
	case err != nil:
		return "", &cloud.ProviderUnavailableError{Err: fmt.Errorf("provider ID %q: %w", providerID, err)}
	case known.err == nil && known.id == "":
		return "", &cloud.ProviderUnavailableError{Err: fmt.Errorf("provider ID %q: plugin %s: Normalize: the response is empty", providerID, p.Name())}
	case known.err != nil:
		known.id = ""
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.normalized) >= maxNormalized {
		clear(p.normalized)
	}
	p.normalized[providerID] = known
	return known.id, known.err
}

// Group implements cloud.Provider.
func (p *Provider) Group(ctx context.Context, name string) (g cloud.Group, err error) {
	err = p.call(ctx, "GetGroup", func(ctx context.Context, proc *process) error {
		answer, err := proc.provider.GetGroup(ctx, &pluginv1.GetGroupRequest{Name: name})
		if err != nil {
			return err
		}
		if g, err = wire.ToGroup(answer.GetGroup()); err == nil && g.Name != name {
			err = fmt.Errorf("group %q: the plugin returned group %q", name, g.Name)
		}
		return err
	})
	if err != nil {
		return cloud.Group{}, hideNotFoundOfOtherKind("group", err)
	}
	return g, nil
}

// Instances implements cloud.Provider.
func (p *Provider) Instances(ctx context.Context, group string) (list []cloud.Instance, err error) {
	err = p.call(ctx, "ListInstances", func(ctx context.Context, proc *process) error {
		answer, err := proc.provider.ListInstances(ctx, &pluginv1.ListInstancesRequest{Group: group})
		if err != nil {
			return err
		}
		seen := map[string]bool{}
		list = make([]cloud.Instance, 0, len(answer.GetInstances()))
		for _, m := range answer.GetInstances() {
			i, err := wire.ToInstance(m)
			if err != nil {
				return err
			}
			if seen[i.ProviderID] {
				return fmt.Errorf("instance %s: the plugin lists it twice", i.ProviderID)
			}
			seen[i.ProviderID] = true
			list = append(list, i)
		}
		return nil
	})
	if err != nil {
		return nil, hideNotFoundOfOtherKind("group", err)
	}
	return list, nil
}

// Instance implements cloud.Provider.
func (p *Provider) Instance(ctx context.Context, providerID string) (i cloud.Instance, err error) {
	want, err := p.normalizeWithin(ctx, p.timeout, providerID)
	if err != nil {
		return cloud.Instance{}, err
	}
	err = p.call(ctx, "GetInstance", func(ctx context.Context, proc *process) error {
		answer, err := proc.provider.GetInstance(ctx, &pluginv1.GetInstanceRequest{ProviderId: want})
		if err != nil {
			return err
		}
		if i, err = wire.ToInstance(answer.GetInstance()); err == nil && i.ProviderID != want {
			err = fmt.Errorf("instance %s: the plugin returned instance %s", want, i.ProviderID)
		}
		return err
	})
	if err != nil {
		return cloud.Instance{}, hideNotFoundOfOtherKind("instance", err)
	}
	return i, nil
}

// Delete implements cloud.Provider.
func (p *Provider) Delete(ctx context.Context, providerID string) (op cloud.Operation, err error) {
	want, err := p.normalizeWithin(ctx, p.timeout, providerID)
	if err != nil {
		return cloud.Operation{}, err
	}
	err = p.call(ctx, "DeleteInstance", func(ctx context.Context, proc *process) error {
		answer, err := proc.provider.DeleteInstance(ctx, &pluginv1.DeleteInstanceRequest{ProviderId: want})
		op = wire.ToOperation(answer.GetOperation())
		return err
	})
	if err != nil {
		return cloud.Operation{}, hideNotFoundOfOtherKind("instance", err)
	}
	return op, nil
}

// Templates implements cloud.Provider.
func (p *Provider) Templates(ctx context.Context, group string) (list []cloud.Template, err error) {
	err = p.call(ctx, "ListTemplates", func(ctx context.Context, proc *process) error {
		answer, err := proc.provider.ListTemplates(ctx, &pluginv1.ListTemplatesRequest{Group: group})
		if err != nil {
			return err
		}
		if len(answer.GetTemplates()) == 0 {
			return fmt.Errorf("group %q: the plugin returned no template: want at least one", group)
		}
		list = nil
		for _, m := range answer.GetTemplates() {
			t, err := wire.ToTemplate(m)
			if err != nil {
				return fmt.Errorf("group %q: %w", group, err)
			}
			list = append(list, t)
		}
		return nil
	})
	if err != nil {
		return nil, hideNotFoundOfOtherKind("group", err)
	}
	return list, nil
}

// Grow implements cloud.Provider.
func (p *Provider) Grow(ctx context.Context, group string, order cloud.LaunchRequest) (op cloud.Operation, err error) {
	if err := order.Validate(group); err != nil {
		return cloud.Operation{}, err
	}
	err = p.call(ctx, "GrowGroup", func(ctx context.Context, proc *process) error {
		answer, err := proc.provider.GrowGroup(ctx, &pluginv1.GrowGroupRequest{
			Group: group, Count: int64(order.Count), Template: order.Template,
		})
		op = wire.ToOperation(answer.GetOperation())
		return err
	})
	if err != nil {
		return cloud.Operation{}, hideNotFoundOfOtherKind("group", err)
	}
	return op, nil
}

// Status implements cloud.Provider.
func (p *Provider) Status(ctx context.Context, op cloud.Operation) (s cloud.OperationStatus, err error) {
	if op.ID == "" {
		return cloud.OperationStatus{Done: true}, nil
	}
	err = p.call(ctx, "GetStatus", func(ctx context.Context, proc *process) error {
		answer, err := proc.provider.GetStatus(ctx, &pluginv1.GetStatusRequest{Operation: wire.FromOperation(op)})
		if err != nil {
			return err
		}
		s = cloud.OperationStatus{Done: answer.GetDone(), RetryAfter: max(0, answer.GetAfter().AsDuration())}
		if s.Err = hideNotFoundOfOtherKind("", wire.ToError(answer.GetError())); s.Err != nil && !s.Done {
			return fmt.Errorf("the plugin returned an error for an unfinished operation: %w", s.Err)
		}
		return nil
	})
	if err != nil {
		return cloud.OperationStatus{}, hideNotFoundOfOtherKind("", err)
	}
	return s, nil
}

// Events implements advice.Analyzer. It returns what the last started process requested.
func (p *Provider) Events() advice.Events { return p.host.requestedEvents() }

// AnalyzeModifyEvent implements advice.Analyzer.
func (p *Provider) AnalyzeModifyEvent(ctx context.Context, pod *corev1.Pod) ([]advice.Recommendation, error) {
	return p.analyzePodEvent(ctx, "ModifyEventAnalyzer", pod, func(ctx context.Context, proc *process, event *pluginv1.PodEvent) (*pluginv1.Advice, error) {
		return proc.analyzer.ModifyEventAnalyzer(ctx, event)
	})
}

// AnalyzeDeleteEvent implements advice.Analyzer.
func (p *Provider) AnalyzeDeleteEvent(ctx context.Context, pod *corev1.Pod) ([]advice.Recommendation, error) {
	return p.analyzePodEvent(ctx, "DeleteEventAnalyzer", pod, func(ctx context.Context, proc *process, event *pluginv1.PodEvent) (*pluginv1.Advice, error) {
		return proc.analyzer.DeleteEventAnalyzer(ctx, event)
	})
}

func (p *Provider) analyzePodEvent(ctx context.Context, what string, pod *corev1.Pod,
	ask func(context.Context, *process, *pluginv1.PodEvent) (*pluginv1.Advice, error),
) (recommendations []advice.Recommendation, err error) {
	raw, err := json.Marshal(pod)
	if err != nil {
		return nil, fmt.Errorf("pod %s/%s: %w", pod.Namespace, pod.Name, err)
	}
	err = p.call(ctx, what, func(ctx context.Context, proc *process) error {
		answer, err := ask(ctx, proc, &pluginv1.PodEvent{PodJson: raw})
		if err != nil {
			return err
		}
		recommendations, err = wire.ToRecommendations(answer)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("pod %s/%s: %w", pod.Namespace, pod.Name, hideNotFoundOfOtherKind("", err))
	}
	return recommendations, nil
}
