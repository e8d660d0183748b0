package main

import (
	"fmt"
	"strings"
	"time"

	"github.com/slipway-dev/slipway/api/v1alpha1"

	"github.com/spf13/pflag"

	"github.com/slipway-dev/slipway/internal/drainability/grouppolicy"
	"github.com/slipway-dev/slipway/internal/placement/planner"
	"github.com/slipway-dev/slipway/internal/placement/saved"
)

// ruleFlags say which nodes may go; plan and why have the same, so that they give the same answer.
type ruleFlags struct {
	policy         string
	force          bool
	deleteEmptyDir bool
}

func (r *ruleFlags) add(fs *pflag.FlagSet) {
	known := make([]string, len(planner.Policies()))
	for i, p := range planner.Policies() {
		known[i] = string(p)
	}
	fs.StringVar(&r.policy, "policy", known[0], "which nodes go first: "+strings.Join(known, ", "))
	fs.BoolVar(&r.force, "force", false, "also let pods go that no controller would replace")
	fs.BoolVar(&r.deleteEmptyDir, "delete-emptydir-data", false,
		"also let pods go that keep data on the node (emptyDir, hostPath), which is lost")
}

func (r *ruleFlags) parse() (planner.Policy, error) {
	policy, err := planner.ParsePolicy(r.policy)
	if err != nil {
		return "", fmt.Errorf("--policy: %w", err)
	}
	return policy, nil
}

// options are the rules at the time at which the cluster was read.
func (r *ruleFlags) options(o *saved.Objects) planner.Options {
	now := o.Time
	if now.IsZero() {
		now = time.Now()
	}
	g := &v1alpha1.NodeGroup{}
	g.Spec.Drain = v1alpha1.DrainPolicy{DeleteLocalStorage: r.deleteEmptyDir, EvictUnmanaged: r.force}
	return planner.Options{Now: now, Pods: grouppolicy.For(g, false)}
}
