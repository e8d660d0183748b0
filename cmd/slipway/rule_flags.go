package main

import (
	"context"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/slipway-dev/slipway/api/v1alpha1"

	"github.com/spf13/pflag"

	"github.com/slipway-dev/slipway/internal/drain"
	"github.com/slipway-dev/slipway/internal/drainability/grouppolicy"
	"github.com/slipway-dev/slipway/internal/placement/planner"
	"github.com/slipway-dev/slipway/internal/placement/saved"
)

// ruleFlags holds the flags that select which nodes may be removed. `slipway plan` and `slipway why` share these flags,
// so that their answers agree.
type ruleFlags struct {
	policy         string
	force          bool
	deleteEmptyDir bool
	surge          surgeFlags
}

func (r *ruleFlags) addFlags(fs *pflag.FlagSet) {
	known := make([]string, len(planner.Policies()))
	for i, p := range planner.Policies() {
		known[i] = string(p)
	}
	fs.StringVar(&r.policy, "policy", known[0], "which nodes are removed first: "+strings.Join(known, ", "))
	fs.BoolVar(&r.force, "force", false, "also evict pods without a controller")
	fs.BoolVar(&r.deleteEmptyDir, "delete-emptydir-data", false,
		"also evict pods that store data on the node (emptyDir, hostPath); the data is lost")
}

// addSurgeFlags adds the flags of `slipway drain --surge`, with which a command shows who would get a successor first.
func (r *ruleFlags) addSurgeFlags(fs *pflag.FlagSet) {
	r.surge.addFlags(fs, "also show which pods slipway drain --surge would start a successor for first, and which cannot have one: never, annotated or always")
}

// predictSurges returns which pods of the nodes would get a successor first, and which cannot have one. o is the cluster with these
// nodes, and stop is when their instances stop. It returns nil without --surge.
func (r *ruleFlags) predictSurges(
	ctx context.Context, kube kubeFlags, o *saved.Objects, nodes []string, stop stopTime, stderr io.Writer,
) ([]podSurge, error) {
	if !r.surge.enabled() {
		return nil, nil
	}
	api, err := kube.newAPIClient()
	if err != nil {
		return nil, err
	}
	policy := r.plannerOptions(&saved.Objects{}).PodRules
	if stop.limits.HasDeadline() {
		policy = newDrainPolicy(true, r.force, r.deleteEmptyDir)
	}
	rooms := &successorRooms{drained: nodes, read: func(ctx context.Context) (*saved.Objects, []v1alpha1.NodeGroup, error) {
		groups, err := kube.listNodeGroups(ctx)
		return o, groups, err
	}}
	return r.surge.predictSurges(ctx, api, rooms, drain.Options{Policy: &policy, TimeLimits: stop.limits}, stderr)
}

func (r *ruleFlags) parsePolicy() (planner.Policy, error) {
	policy, err := planner.ParsePolicy(r.policy)
	if err != nil {
		return "", fmt.Errorf("--policy: %w", err)
	}
	return policy, nil
}

// plannerOptions returns the planner's options for these flags. Rules that depend on time use the time at which the
// cluster was read.
func (r *ruleFlags) plannerOptions(o *saved.Objects) planner.Options {
	now := o.Time
	if now.IsZero() {
		now = time.Now()
	}
	g := &v1alpha1.NodeGroup{}
	g.Spec.Drain = v1alpha1.DrainPolicy{DeleteLocalStorage: r.deleteEmptyDir, EvictUnmanaged: r.force}
	return planner.Options{Now: now, PodRules: grouppolicy.NewPodPolicy(g, false)}
}
