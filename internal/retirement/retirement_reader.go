package retirement

import (
	"context"
	"fmt"
	"slices"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/slipway-dev/slipway/api/v1alpha1"
	"github.com/slipway-dev/slipway/internal/kubeapi"
	"github.com/slipway-dev/slipway/internal/sharedread"
)

// retirementReader lists all NodeRetirements from the API server. Concurrent callers share an answer and must not
// change it.
type retirementReader struct {
	reader client.Reader

	shared sharedread.Reader[*v1alpha1.NodeRetirementList]
}

// listShared returns the NodeRetirements as they were at the call, or later.
func (r *retirementReader) listShared(ctx context.Context) (*v1alpha1.NodeRetirementList, error) {
	return r.shared.Read(ctx, func(ctx context.Context) (*v1alpha1.NodeRetirementList, error) {
		list := &v1alpha1.NodeRetirementList{}
		if err := r.reader.List(ctx, list); err != nil {
			return nil, fmt.Errorf("listing NodeRetirements: %w", err)
		}
		return list, nil
	})
}

// listMaxAge is how long one reconcile uses the same list of NodeRetirements. Later admissions by this process are not
// in the list, but they count because they are reserved.
const listMaxAge = 2 * time.Second

// listRetirementsLive returns live NodeRetirements, at least as new as the last write of this process.
func (p *retirementScope) listRetirementsLive(ctx context.Context) ([]v1alpha1.NodeRetirement, error) {
	if p.retirements != nil && time.Since(p.retirementsAt) < listMaxAge {
		return p.retirements.Items, nil
	}
	floor := p.controller.expectations.minVersion(p.rt) // before the request: later writes may be missing in the answer
	at := time.Now()
	list, err := p.controller.retirementReader.listShared(ctx)
	if err != nil {
		return nil, err
	}
	if v := kubeapi.ParseResourceVersion(list.ResourceVersion); v != 0 && v < floor {
		return nil, newWait(requeueSoon, "the API server lags behind: its list of NodeRetirements has version %d, "+
			"want at least %d", v, floor)
	}
	p.retirements, p.retirementsAt = list, at
	return list.Items, nil
}

// findOtherRetirement returns another retirement of the node that matches, or nil. It confirms a match by a live read.
// If the cache has no match, it returns nil without a live read, because callers retry.
func (p *retirementScope) findOtherRetirement(ctx context.Context, matches func(*v1alpha1.NodeRetirement) bool) (*v1alpha1.NodeRetirement, error) {
	is := func(o v1alpha1.NodeRetirement) bool {
		return p.isSameNode(&o) && matches(&o)
	}
	var cached v1alpha1.NodeRetirementList
	if err := p.controller.options.Client.List(ctx, &cached, client.MatchingFields{NodeNameField: p.rt.Spec.NodeName}); err != nil {
		return nil, fmt.Errorf("listing NodeRetirements: %w", err)
	}
	if !slices.ContainsFunc(cached.Items, is) {
		return nil, nil //nolint:nilnil // that there is none is an answer
	}
	all, err := p.listRetirementsLive(ctx)
	if err != nil {
		return nil, err
	}
	if i := slices.IndexFunc(all, is); i >= 0 {
		return &all[i], nil
	}
	return nil, nil //nolint:nilnil // that there is none is an answer
}
