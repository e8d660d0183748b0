package main

import (
	"testing"

	"k8s.io/apimachinery/pkg/labels"

	"github.com/slipway-dev/slipway/internal/compat/kubeaware"
	"github.com/slipway-dev/slipway/internal/compat/vmsspodwatcher"
	"github.com/slipway-dev/slipway/internal/testing/must"
)

func TestI6ManagerIgnoresRetirementsOfCompatibilityModes(t *testing.T) {
	selector, err := labels.Parse(newManagerCommand().Flags().Lookup("selector").Value.String())
	must.NoError(t, err)
	for _, theirs := range []labels.Set{{kubeaware.BackendLabel: "bba455bd"}, {vmsspodwatcher.GroupLabel: "ci"}} {
		if selector.Matches(theirs) {
			t.Errorf("%s selects %v of a compatibility mode", selector, theirs)
		}
	}
	if !selector.Matches(labels.Set{}) || !selector.Matches(labels.Set{"team": "a"}) {
		t.Errorf("%s does not select other objects", selector)
	}
}
