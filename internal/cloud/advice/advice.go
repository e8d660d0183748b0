// Package advice is what plugins may say about the events of pods: not what they do, but what they want done. Who asks
// decides, within the limits that hold for everybody: the bounds of the group, the disruption budgets, placement.
package advice

import (
	"context"
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation"
)

// The bounds of one answer. One that is beyond them is refused as a whole.
const (
	MaxWishes   = 100  // wishes in an answer
	MaxMachines = 1000 // machines in a wish
	MaxReason   = 1024 // bytes of a reason
)

// Wish is one thing that an analyzer wants done: exactly one of Grow and Retire is set.
type Wish struct {
	Grow   *Grow
	Retire *Retire
	// Reason is for people: it is told in events and logs.
	Reason string
}

// Grow wishes for machines.
type Grow struct {
	// Group is the group's name as its cloud has it, NodeGroup's spec.cloud.group.
	Group string
	// Count is how many, 1 to MaxMachines.
	Count int
	// Template is the kind that is wanted; empty is the group's first.
	Template string
}

// Retire wishes that a node leaves, as a NodeRetirement for it would.
type Retire struct {
	// Node is the Node's name.
	Node string
}

// Events are kinds of pod events.
type Events struct{ Modify, Delete bool }

// Analyzer looks at the events of pods. It may be called concurrently, and each call is bounded by ctx and by a limit of
// its own. An error means that nothing is known of what it wants: nothing is done then, and nothing is waited for.
type Analyzer interface {
	// Name is the name of the cloud that the analyzer came with, which its groups are in.
	Name() string
	// Events says which events it wants to see; the others need not be shown to it.
	Events() Events
	// AnalyzeModifyEvent looks at a pod that was created or has changed.
	AnalyzeModifyEvent(ctx context.Context, pod *corev1.Pod) ([]Wish, error)
	// AnalyzeDeleteEvent looks at a pod that was deleted, as it was last.
	AnalyzeDeleteEvent(ctx context.Context, pod *corev1.Pod) ([]Wish, error)
}

// Validate reports everything that makes an answer one that nobody could carry out.
func Validate(wishes []Wish) error {
	if len(wishes) > MaxWishes {
		return fmt.Errorf("%d wishes: want at most %d", len(wishes), MaxWishes)
	}
	var errs []error
	for i, w := range wishes {
		if err := w.validate(); err != nil {
			errs = append(errs, fmt.Errorf("wish %d: %w", i, err))
		}
	}
	return errors.Join(errs...)
}

func (w Wish) validate() error {
	switch {
	case len(w.Reason) > MaxReason:
		return fmt.Errorf("reason: %d bytes: want at most %d", len(w.Reason), MaxReason)
	case (w.Grow == nil) == (w.Retire == nil):
		return errors.New("want one of grow and retire")
	case w.Grow != nil && w.Grow.Group == "":
		return errors.New("grow.group: is empty")
	case w.Grow != nil && (w.Grow.Count < 1 || w.Grow.Count > MaxMachines):
		return fmt.Errorf("grow.count: %d: want 1 to %d", w.Grow.Count, MaxMachines)
	case w.Retire != nil:
		if wrong := validation.IsDNS1123Subdomain(w.Retire.Node); len(wrong) > 0 {
			return fmt.Errorf("retire.node: %q: %s", w.Retire.Node, wrong[0])
		}
	}
	return nil
}
