package retirement

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/slipway-dev/slipway/api/v1alpha1"
	"github.com/slipway-dev/slipway/internal/cloud"
)

func (p *retirementScope) readInstance(ctx context.Context, from cloud.Provider, providerID string) (cloud.Instance, error) {
	ctx, cancel := context.WithTimeout(ctx, cloud.ReadTimeout)
	defer cancel()
	instance, err := from.Instance(ctx, providerID)
	p.controller.options.Metrics.RecordCloudRequest(from.Name(), "Instance", err)
	if err != nil {
		return cloud.Instance{}, fmt.Errorf("instance %s: %w", providerID, err)
	}
	return instance, nil
}

// findMatchingProviders returns the clouds that recognize the provider ID, sorted by name, and the errors of the other
// clouds. More than one cloud may recognize it, because the machines of a cloudpool have the IDs of the cloud behind the
// pool. unanswered joins the errors of the clouds that did not answer and may recognize it.
func (p *retirementScope) findMatchingProviders(providerID string) (clouds []cloud.Provider, refusals []string, unanswered error) {
	for _, name := range slices.Sorted(maps.Keys(p.controller.options.Clouds)) {
		_, err := p.controller.options.Clouds[name].Normalize(providerID)
		if err == nil {
			clouds = append(clouds, p.controller.options.Clouds[name])
			continue
		}
		if cloud.IsProviderUnavailable(err) {
			unanswered = errors.Join(unanswered, err)
		}
		refusals = append(refusals, name+": "+err.Error())
	}
	return clouds, refusals, unanswered
}

// resolveProvider determines the cloud of a node without a group. If only one cloud recognizes the provider ID, it is
// this one. If several do, it asks each whether it has the instance. If one of them does not answer, the cloud is
// unknown (I7).
func (p *retirementScope) resolveProvider(ctx context.Context, providerID string) error {
	clouds, refusals, unanswered := p.findMatchingProviders(providerID)
	switch {
	case len(clouds) == 1 && unanswered == nil:
		p.provider = clouds[0]
		return nil
	case len(clouds) == 0 && unanswered == nil:
		return newEnd(UnknownCloud, "no cloud recognizes the instance %s: %s", providerID, strings.Join(append(refusals, p.controller.describeProviders()), "; "))
	case unanswered != nil:
		unanswered = fmt.Errorf("instance %s: %w", providerID, unanswered)
	}
	return p.pickProviderWithInstance(ctx, clouds, providerID, unanswered)
}

// pickProviderWithInstance picks the first cloud that has the instance. A cloud that protects the instance from deletion
// is picked only if no other has it. A non-nil unknown means that a further cloud may have the instance.
func (p *retirementScope) pickProviderWithInstance(ctx context.Context, clouds []cloud.Provider, providerID string, unknown error) error {
	var keepingProvider cloud.Provider
	for _, c := range clouds {
		instance, err := p.readInstance(ctx, c, providerID)
		switch {
		case err == nil && !instance.DeletionProtected:
			p.provider = c
			return nil
		case err == nil && keepingProvider == nil:
			keepingProvider = c
		case err != nil && !cloud.IsNotFound(err):
			unknown = errors.Join(unknown, fmt.Errorf("cloud %s: %w", c.Name(), err))
		}
	}
	switch {
	case unknown != nil:
		return unknown
	case keepingProvider != nil:
		p.provider = keepingProvider
	default: // gone or detached, as all of them report
		p.provider = clouds[0]
	}
	return nil
}

// checkNoOtherCloudHasInstance checks with the other clouds that an instance is gone, after one cloud has reported it. A
// cloudpool reports a detached machine as gone while it still runs, and its pods and Node would be deleted (I7). After
// the deletion of the Node it checks nothing.
func (p *retirementScope) checkNoOtherCloudHasInstance(ctx context.Context, providerID string) error {
	if p.hasReached(v1alpha1.NodeDeleted) {
		return nil
	}
	clouds, _, _ := p.findMatchingProviders(providerID) // a cloud that does not answer was not the instance's cloud so far
	for _, c := range clouds {
		if c.Name() == p.provider.Name() {
			continue
		}
		_, err := p.readInstance(ctx, c, providerID)
		switch {
		case err == nil:
			return newBlocked(p.controller.options.Intervals.Poll, newReason(Disagreement, "instance "+providerID, "the cloud %s does not find it, but the cloud %s "+
				"has it: it does not count as gone", p.provider.Name(), c.Name()))
		case !cloud.IsNotFound(err):
			return fmt.Errorf("the cloud %s does not find the instance, and whether %s has it is unknown: %w", p.provider.Name(), c.Name(), err)
		}
	}
	return nil
}
