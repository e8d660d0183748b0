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

// records lists all NodeRetirements past the caches. Concurrent callers share an answer, which they must not change.
type records struct {
	live client.Reader

	shared sharedread.Reader[*v1alpha1.NodeRetirementList]
}

// read returns the NodeRetirements as they were when it was called, or later.
func (r *records) read(ctx context.Context) (*v1alpha1.NodeRetirementList, error) {
	return r.shared.Read(ctx, func(ctx context.Context) (*v1alpha1.NodeRetirementList, error) {
		list := &v1alpha1.NodeRetirementList{}
		if err := r.live.List(ctx, list); err != nil {
			return nil, fmt.Errorf("other retirements: %w", err)
		}
		return list, nil
	})
}

// listedFor is for how long a reconcile uses the list that it has read. What this process admits meanwhile counts by its
// reservation.
const listedFor = 2 * time.Second

// allRecords lists NodeRetirements past all caches: as they were at our own last write before this reconcile, or later.
func (p *passage) allRecords(ctx context.Context) ([]v1alpha1.NodeRetirement, error) {
	if p.listed != nil && time.Since(p.listedAt) < listedFor {
		return p.listed.Items, nil
	}
	floor := p.c.known.floor(p.rt) // before the question: what is written meanwhile need not be in the answer
	at := time.Now()
	list, err := p.c.records.read(ctx)
	if err != nil {
		return nil, err
	}
	if v := kubeapi.Version(list.ResourceVersion); v != 0 && v < floor {
		return nil, wait(freshLook, "the API server's list of NodeRetirements is of version %d, and there is one of version %d: "+
			"it lags behind", v, floor)
	}
	p.listed, p.listedAt = list, at
	return list.Items, nil
}

// findOther returns another retirement of the node that matches, or nil. The cache is enough to say that there is none, since
// those who ask come again; that there is one is confirmed past it.
func (p *passage) findOther(ctx context.Context, matches func(*v1alpha1.NodeRetirement) bool) (*v1alpha1.NodeRetirement, error) {
	is := func(o v1alpha1.NodeRetirement) bool {
		return o.Spec.NodeName == p.rt.Spec.NodeName && o.UID != p.rt.UID && matches(&o)
	}
	var cached v1alpha1.NodeRetirementList
	if err := p.c.o.Client.List(ctx, &cached, client.MatchingFields{NodeNameField: p.rt.Spec.NodeName}); err != nil {
		return nil, fmt.Errorf("other retirements: %w", err)
	}
	if !slices.ContainsFunc(cached.Items, is) {
		return nil, nil //nolint:nilnil // that there is none is an answer
	}
	all, err := p.allRecords(ctx)
	if err != nil {
		return nil, err
	}
	if i := slices.IndexFunc(all, is); i >= 0 {
		return &all[i], nil
	}
	return nil, nil //nolint:nilnil // that there is none is an answer
}
