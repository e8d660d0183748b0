// Package advice defines the recommendations that plugins can make after pod events. The caller decides whether to
// follow a recommendation. The group's limits, the disruption budgets and placement always apply.
package advice

import (
	"context"
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation"
)

// The limits of one response from a plugin. A response that exceeds any of these limits is refused completely.
const (
	MaxRecommendations = 100  // recommendations in a response
	MaxInstances       = 1000 // instances in a recommendation
	MaxReason          = 1024 // bytes of a reason
)

// ErrNotRunning means that the analyzer's process does not run, so it has not received the call.
var ErrNotRunning = errors.New("not running")

// Recommendation holds one recommendation of a plugin. Exactly one of Grow and Retire is set.
type Recommendation struct {
	Grow   *Grow
	Retire *Retire
	// Reason is shown in Events and logs.
	Reason string
}

// Grow recommends new instances.
type Grow struct {
	// Group is the group's name in its cloud, as in NodeGroup spec.cloud.group.
	Group string
	// Count is the number of instances, 1 to MaxInstances.
	Count int
	// Template is the name of the template; empty is the group's first.
	Template string
}

// Retire recommends the retirement of one node.
type Retire struct {
	// Node is the name of the Node.
	Node string
}

// Events selects the kinds of pod events that an [Analyzer] receives.
type Events struct{ Modify, Delete bool }

// Analyzer evaluates pod events. It is safe for concurrent use. A call ends when ctx ends or after the analyzer's own
// timeout. Slipway repeats a call that failed, see package analyzers.
type Analyzer interface {
	// Name returns the name of the cloud of the analyzer's groups.
	Name() string
	// Events returns which events it needs.
	Events() Events
	// AnalyzeModifyEvent evaluates a pod that was created or changed.
	AnalyzeModifyEvent(ctx context.Context, pod *corev1.Pod) ([]Recommendation, error)
	// AnalyzeDeleteEvent evaluates a deleted pod, in its last state.
	AnalyzeDeleteEvent(ctx context.Context, pod *corev1.Pod) ([]Recommendation, error)
}

// Validate checks the number of recommendations and each recommendation. It returns all errors joined.
func Validate(recommendations []Recommendation) error {
	if len(recommendations) > MaxRecommendations {
		return fmt.Errorf("%d recommendations: want at most %d", len(recommendations), MaxRecommendations)
	}
	var errs []error
	for i, w := range recommendations {
		if err := w.validate(); err != nil {
			errs = append(errs, fmt.Errorf("recommendation %d: %w", i, err))
		}
	}
	return errors.Join(errs...)
}

func (w Recommendation) validate() error {
	switch {
	case len(w.Reason) > MaxReason:
		return fmt.Errorf("reason: %d bytes: want at most %d", len(w.Reason), MaxReason)
	case (w.Grow == nil) == (w.Retire == nil):
		return errors.New("want exactly one of grow and retire")
	case w.Grow != nil && w.Grow.Group == "":
		return errors.New("grow.group: is empty")
	case w.Grow != nil && (w.Grow.Count < 1 || w.Grow.Count > MaxInstances):
		return fmt.Errorf("grow.count: %d: want 1 to %d", w.Grow.Count, MaxInstances)
	case w.Retire != nil:
		if wrong := validation.IsDNS1123Subdomain(w.Retire.Node); len(wrong) > 0 {
			return fmt.Errorf("retire.node: %q: %s", w.Retire.Node, wrong[0])
		}
	}
	return nil
}
