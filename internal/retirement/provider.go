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

// read reads a machine from one of the clouds.
func (p *passage) read(ctx context.Context, from cloud.Provider, providerID string) (cloud.Instance, error) {
	ctx, cancel := context.WithTimeout(ctx, cloud.ReadTimeout)
	defer cancel()
	instance, err := from.Instance(ctx, providerID)
	p.c.o.Metrics.Cloud(from.Name(), "Instance", err)
	if err != nil {
		return cloud.Instance{}, fmt.Errorf("machine %s: %w", providerID, err)
	}
	return instance, nil
}

// recognising gives the clouds that take a provider ID for one of theirs, in the order of their names, and what the others
// say. Several may: a pool's machines have the IDs of the cloud that they are in. Unanswered is of those that may yet.
func (p *passage) recognising(providerID string) (clouds []cloud.Provider, said []string, unanswered error) {
	for _, name := range slices.Sorted(maps.Keys(p.c.o.Clouds)) {
		_, err := p.c.o.Clouds[name].Normalize(providerID)
		if err == nil {
			clouds = append(clouds, p.c.o.Clouds[name])
			continue
		}
		if cloud.IsUnanswered(err) {
			unanswered = errors.Join(unanswered, err)
		}
		said = append(said, name+": "+err.Error())
	}
	return clouds, said, unanswered
}

// whose takes the cloud that has the machine of a node in no group. Where one alone knows IDs of the kind, it is that one;
// else they are asked, and one that does not answer may be the one (I7).
func (p *passage) whose(ctx context.Context, providerID string) error {
	clouds, said, unanswered := p.recognising(providerID)
	switch {
	case len(clouds) == 1 && unanswered == nil:
		p.cloud = clouds[0]
		return nil
	case len(clouds) == 0 && unanswered == nil:
		return end(UnknownCloud, "the machine %s is in none of the clouds: %s", providerID, strings.Join(append(said, p.c.clouds()), "; "))
	case unanswered != nil:
		unanswered = fmt.Errorf("machine %s: %w", providerID, unanswered)
	}
	return p.owner(ctx, clouds, providerID, unanswered)
}

// owner takes the first of some clouds that has a machine. One that has it and keeps it gives way to another, as the cloud
// does to the pool: it may be the keeper only because the machine is the other's. Unknown is what keeps it open whether
// there is another.
func (p *passage) owner(ctx context.Context, clouds []cloud.Provider, providerID string, unknown error) error {
	var keeper cloud.Provider
	for _, c := range clouds {
		instance, err := p.read(ctx, c, providerID)
		switch {
		case err == nil && !instance.Kept:
			p.cloud = c
			return nil
		case err == nil && keeper == nil:
			keeper = c
		case err != nil && !cloud.IsNotFound(err):
			unknown = errors.Join(unknown, fmt.Errorf("cloud %s: %w", c.Name(), err))
		}
	}
	switch {
	case unknown != nil:
		return unknown
	case keeper != nil:
		p.cloud = keeper
	default: // gone, or detached: by the word of them all
		p.cloud = clouds[0]
	}
	return nil
}

// nowhereElse makes sure of a cloud's word that a machine is gone: a pool says so of one that was detached and runs on, and
// what concludes from it deletes the pods of a node and the Node (I7). Once the Node is deleted nothing does.
func (p *passage) nowhereElse(ctx context.Context, providerID string) error {
	if p.reached(v1alpha1.NodeDeleted) {
		return nil
	}
	clouds, _, _ := p.recognising(providerID) // what does not answer has not been the machine's cloud so far
	for _, c := range clouds {
		if c.Name() == p.cloud.Name() {
			continue
		}
		_, err := p.read(ctx, c, providerID)
		switch {
		case err == nil:
			return blocked(p.c.o.Pace.Poll, reason(Disagreement, "machine "+providerID, "the cloud %s says that there is none, and the cloud %s "+
				"has it: it is not taken for gone", p.cloud.Name(), c.Name()))
		case !cloud.IsNotFound(err):
			return fmt.Errorf("the cloud %s says that there is no machine, and whether %s has it is not known: %w", p.cloud.Name(), c.Name(), err)
		}
	}
	return nil
}
