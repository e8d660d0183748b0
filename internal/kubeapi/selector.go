package kubeapi

import (
	"fmt"

	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/selection"
)

// operators maps metav1.LabelSelectorOperator to the operators of package labels.
var operators = map[string]selection.Operator{
	"In":           selection.In,
	"NotIn":        selection.NotIn,
	"Exists":       selection.Exists,
	"DoesNotExist": selection.DoesNotExist,
}

// ToSelector converts s to a labels.Selector, as metav1.LabelSelectorAsSelector does. A nil selector matches nothing,
// and an empty selector matches everything.
func (s *LabelSelector) ToSelector() (labels.Selector, error) {
	if s == nil {
		return labels.Nothing(), nil
	}
	sel := labels.Everything()
	for k, v := range s.MatchLabels {
		r, err := labels.NewRequirement(k, selection.In, []string{v})
		if err != nil {
			return nil, fmt.Errorf("matchLabels[%q]: %w", k, err)
		}
		sel = sel.Add(*r)
	}
	for i, e := range s.MatchExpressions {
		op, ok := operators[e.Operator]
		if !ok {
			return nil, fmt.Errorf("matchExpressions[%d].operator: %q: want In, NotIn, Exists or DoesNotExist", i, e.Operator)
		}
		r, err := labels.NewRequirement(e.Key, op, e.Values)
		if err != nil {
			return nil, fmt.Errorf("matchExpressions[%d]: %w", i, err)
		}
		sel = sel.Add(*r)
	}
	return sel, nil
}
