package nodegroup

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/types"

	"github.com/slipway-dev/slipway/api/v1alpha1"
	"github.com/slipway-dev/slipway/internal/testing/must"
)

func TestRetirementHasTheLabelsOfItsNodesOwner(t *testing.T) {
	labelled := newGroup("ci")
	labelled.Labels = map[string]string{"team": "a"}
	for name, tt := range map[string]struct {
		groups []v1alpha1.NodeGroup
		scope  string
		want   map[string]string
	}{
		"no group":               {nil, "", nil},
		"a group":                {[]v1alpha1.NodeGroup{*labelled}, "team=b", map[string]string{"team": "a"}},
		"another node's group":   {[]v1alpha1.NodeGroup{*newGroup("gpu")}, "team=b", map[string]string{"team": "b"}},
		"a compatibility mode's": {nil, "slipway.dev/agentpool=ci", map[string]string{"slipway.dev/agentpool": "ci"}},
		"one of several values":  {nil, "team in (b,a),!proxy,size!=big,fast", map[string]string{"team": "a", "fast": ""}},
		"a manager's":            {nil, "!proxy", nil},
		"nonsense":               {nil, "=(", nil},
	} {
		n := newNode("a", "ci")
		if tt.scope != "" {
			n.Annotations = map[string]string{annotationScope: tt.scope}
		}
		if diff := cmp.Diff(tt.want, RetirementLabels(tt.groups, &n)); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
	}
}

func TestNodeOfAFileGroupNamesItsOwner(t *testing.T) {
	g := newGroup("ci")
	g.UID = ""
	n := newNode("a", "ci")
	w := GroupSnapshot{Group: g, Nodes: []Node{{Object: &n, KeepingPods: KeepingPods{types.NamespacedName{Namespace: "ns", Name: "pod"}, 1}}}, Now: noon}
	by := markOwner{"ci", "mine=yes"}
	for range 2 {
		decisions, err := DecideIdle(w)
		must.NoError(t, err)
		patch, err := decisions[0].marks.makePatch(&n, by)
		must.NoError(t, err)
		applyPatch(t, &n, patch)
		if readMarkOwner(&n) != by {
			t.Errorf("the node says %v", readMarkOwner(&n))
		}
	}
	patch, err := Marks{}.makePatch(&n, by)
	must.NoError(t, err)
	if applyPatch(t, &n, patch); len(n.Annotations) > 0 {
		t.Errorf("left behind: %v", n.Annotations)
	}
}
