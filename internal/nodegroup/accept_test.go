package nodegroup

import (
	"errors"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"pgregory.net/rapid"

	"github.com/slipway-dev/slipway/api/v1alpha1"
	"github.com/slipway-dev/slipway/internal/cloud"
	"github.com/slipway-dev/slipway/internal/testing/check"
)

func TestI10RefusedGroupNamesTheReason(t *testing.T) {
	most := int32(1)
	for name, tt := range map[string]struct {
		change       func(*v1alpha1.NodeGroup, *[]corev1.Node, *cloudReading)
		reason, said string
	}{
		"nothing is wrong": {func(*v1alpha1.NodeGroup, *[]corev1.Node, *cloudReading) {}, v1alpha1.AcceptedReason, ""},
		"minimum above maximum": {func(g *v1alpha1.NodeGroup, _ *[]corev1.Node, _ *cloudReading) {
			g.Spec.MinSize, g.Spec.MaxSize = 3, &most
		}, v1alpha1.InvalidSpec, "spec.minSize: 3: want 0 to spec.maxSize, which is 1"},
		"an invalid time zone": {func(g *v1alpha1.NodeGroup, _ *[]corev1.Node, _ *cloudReading) {
			g.Spec.DisruptionBudgets = []v1alpha1.DisruptionBudget{{Schedule: "@daily", Duration: &metav1.Duration{Duration: time.Hour}, TimeZone: "Moon"}}
		}, v1alpha1.InvalidSpec, "spec.disruptionBudgets[0].timeZone"},
		"an invalid operator": {func(g *v1alpha1.NodeGroup, _ *[]corev1.Node, _ *cloudReading) {
			g.Spec.NodeSelector.MatchExpressions = []metav1.LabelSelectorRequirement{{Key: "a", Operator: "Like", Values: []string{"b"}}}
		}, v1alpha1.InvalidSpec, "spec.nodeSelector"},
		"a control-plane node by its label": {func(_ *v1alpha1.NodeGroup, nodes *[]corev1.Node, _ *cloudReading) {
			n := newNode("master-0", "ci")
			n.Labels["node-role.kubernetes.io/control-plane"] = ""
			*nodes = append(*nodes, n)
		}, v1alpha1.SelectsControlPlane, "master-0"},
		"a control-plane node by its taint": {func(_ *v1alpha1.NodeGroup, nodes *[]corev1.Node, _ *cloudReading) {
			n := newNode("master-1", "ci")
			n.Spec.Taints = []corev1.Taint{{Key: "node-role.kubernetes.io/master", Effect: corev1.TaintEffectNoSchedule}}
			*nodes = append(*nodes, n)
		}, v1alpha1.SelectsControlPlane, "master-1"},
		"a cloud that is not configured": {func(g *v1alpha1.NodeGroup, _ *[]corev1.Node, _ *cloudReading) {
			g.Spec.Cloud.Provider = "azur"
		}, v1alpha1.UnknownCloud, `"azur" is not configured: want one of sim`},
		"a group unknown to the cloud": {func(_ *v1alpha1.NodeGroup, _ *[]corev1.Node, reading *cloudReading) {
			reading.err = &cloud.NotFoundError{Kind: "group", Name: "ci"}
		}, v1alpha1.CloudGroupNotFound, "group ci: the cloud says it does not exist"},
		"a refused credential": {func(_ *v1alpha1.NodeGroup, _ *[]corev1.Node, reading *cloudReading) {
			reading.err = &cloud.RefusedError{Reason: cloud.NoRight, Err: errors.New("the credential lacks sets/read on /x")}
		}, v1alpha1.CloudRefused, "NoRight): the credential lacks sets/read on /x"},
		"a missing right to delete": {func(_ *v1alpha1.NodeGroup, _ *[]corev1.Node, reading *cloudReading) {
			reading.missing.ToDelete = cloud.Permissions{{Name: "sets/delete/action", Scope: "/x"}, {Name: "sets/read", Scope: "/x"}}
		}, v1alpha1.CloudRightsMissing, `spec.cloud.group: "ci": the credential lacks sets/delete/action on /x, sets/read on /x`},
		"a missing right to grow": {func(_ *v1alpha1.NodeGroup, _ *[]corev1.Node, reading *cloudReading) {
			reading.missing.ToGrow = cloud.Permissions{{Name: "sets/write", Scope: "/x"}}
		}, v1alpha1.AcceptedReason, "no instances can be launched: the credential lacks sets/write on /x"},
		"a cloud that does not answer": {func(_ *v1alpha1.NodeGroup, _ *[]corev1.Node, reading *cloudReading) {
			reading.err = errors.New("timeout")
		}, CloudUnreadable, `spec.cloud.group: "ci": the cloud has not answered without an error yet: timeout`},
		"a cloud that was not read": {func(_ *v1alpha1.NodeGroup, _ *[]corev1.Node, reading *cloudReading) {
			reading.known = false
		}, CloudUnreadable, "waiting for the cloud's first answer"},
	} {
		t.Run(name, func(t *testing.T) {
			g, nodes, reading := newGroup("ci"), []corev1.Node{newNode("a", "ci")}, cloudReading{known: true}
			tt.change(g, &nodes, &reading)
			is := newAcceptedCondition(g, AssignNodes([]v1alpha1.NodeGroup{*g}, nodes), []string{"sim"}, reading)
			if is.Reason != tt.reason || !strings.Contains(is.Message, tt.said) {
				t.Errorf("%s: %s, want %s: %s", is.Reason, is.Message, tt.reason, tt.said)
			}
			want := metav1.ConditionFalse
			switch tt.reason {
			case v1alpha1.AcceptedReason:
				want = metav1.ConditionTrue
			case CloudUnreadable:
				want = metav1.ConditionUnknown
			}
			check.Is(t, want, is.Status)
		})
	}
}

func TestI10OlderOfTwoOverlappingGroupsKeepsItsNodes(t *testing.T) {
	older, younger := newGroup("ci"), newGroup("all")
	younger.CreationTimestamp = metav1.NewTime(noon.Add(time.Second))
	younger.Spec.NodeSelector = metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: pool, Operator: metav1.LabelSelectorOpExists}}}
	c := AssignNodes([]v1alpha1.NodeGroup{*younger, *older}, []corev1.Node{newNode("a", "ci"), newNode("b", "ci"), newNode("c", "gpu")})
	if f := c.FaultByGroup["all"]; f.Reason != v1alpha1.OverlapsGroup || !strings.Contains(f.Message, "NodeGroup ci, which is older: a, b") {
		t.Errorf("the younger: %+v", f)
	}
	if len(c.FaultByGroup) != 1 || c.OwnerByNode["a"] != "ci" || c.OwnerByNode["b"] != "ci" || c.OwnerByNode["c"] != "" {
		t.Errorf("%+v", c)
	}
}

// TestI5OnlyOneNodeGroupScalesUpACloudGroup has two NodeGroups that select the zones of one cloud group.
func TestI5OnlyOneNodeGroupScalesUpACloudGroup(t *testing.T) {
	older, younger, other := newGroup("east"), newGroup("west"), newGroup("gpu")
	younger.CreationTimestamp = metav1.NewTime(noon.Add(time.Second))
	younger.Spec.Cloud = v1alpha1.CloudGroup{Provider: older.Spec.Cloud.Provider, Group: "East"} // names at Azure have no case
	for _, g := range []*v1alpha1.NodeGroup{older, younger} {
		g.Spec.ScaleUp, g.Spec.MaxSize = &v1alpha1.ScaleUp{}, new(int32(9))
	}
	nodes := []corev1.Node{newNode("a", "east"), newNode("b", "west"), newNode("c", "gpu")}
	c := AssignNodes([]v1alpha1.NodeGroup{*younger, *other, *older}, nodes)
	want := `spec.cloud: provider "sim", group "East": NodeGroup east is older and has scaleUp there`
	if f := c.FaultByGroup["west"]; f.Reason != v1alpha1.OverlapsGroup || !strings.Contains(f.Message, want) {
		t.Errorf("the younger: %+v", f)
	}
	if len(c.FaultByGroup) != 1 || c.OwnerByNode["a"] != "east" || c.OwnerByNode["b"] != "" || c.OwnerByNode["c"] != "gpu" {
		t.Errorf("%+v", c)
	}
	for i, owner := range []string{"east", "", "gpu"} { // the same result as with all nodes
		check.Is(t, owner, AssignNodes([]v1alpha1.NodeGroup{*younger, *other, *older}, nodes[i:i+1]).OwnerByNode[nodes[i].Name])
	}
	older.Spec.ScaleUp = nil // only its nodes are retired
	check.Is(t, "west", AssignNodes([]v1alpha1.NodeGroup{*younger, *older}, nodes).OwnerByNode["b"])
	older.Spec.ScaleUp = &v1alpha1.ScaleUp{}
	older.Spec.MinSize = 10 // a group that is refused launches nothing
	check.Is(t, "west", AssignNodes([]v1alpha1.NodeGroup{*younger, *older}, nodes).OwnerByNode["b"])
}

func TestI7UnansweringCloudChangesNothing(t *testing.T) {
	g := newGroup("ci")
	g.Generation = 2
	silent := cloudReading{known: true, err: errors.New("timeout")}
	for _, was := range []metav1.Condition{
		{Type: v1alpha1.GroupAccepted, Status: metav1.ConditionTrue, Reason: v1alpha1.AcceptedReason, ObservedGeneration: 2},
		{Type: v1alpha1.GroupAccepted, Status: metav1.ConditionFalse, Reason: v1alpha1.CloudGroupNotFound, ObservedGeneration: 2},
	} {
		if is := newCloudAcceptedCondition(g, []string{"sim"}, silent, &was); is.Status != was.Status || is.Reason != was.Reason {
			t.Errorf("%+v, want %+v", is, was)
		}
		was.ObservedGeneration = 1 // it was about an earlier generation
		if is := newCloudAcceptedCondition(g, []string{"sim"}, silent, &was); is.Status != metav1.ConditionUnknown {
			t.Errorf("%+v after a change", is)
		}
	}
}

// TestI5NoNodeBelongsToTwoGroups draws random groups and nodes, and shuffles them: the order of a list must not matter.
func TestI5NoNodeBelongsToTwoGroups(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var groups []v1alpha1.NodeGroup
		for _, name := range []string{"a", "b", "c", "d"}[:rapid.IntRange(0, 4).Draw(t, "groups")] {
			g := newGroup(name)
			g.CreationTimestamp = metav1.NewTime(noon.Add(time.Duration(rapid.IntRange(0, 2).Draw(t, "age")) * time.Second))
			g.Spec.NodeSelector = metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{
				Key: pool, Operator: metav1.LabelSelectorOpIn,
				Values: rapid.SliceOfNDistinct(rapid.SampledFrom([]string{"x", "y", "z"}), 1, 2, rapid.ID[string]).Draw(t, "pools"),
			}}}
			groups = append(groups, *g)
		}
		var nodes []corev1.Node
		for i, of := range rapid.SliceOfN(rapid.SampledFrom([]string{"x", "y", "z", ""}), 0, 6).Draw(t, "nodes") {
			nodes = append(nodes, newNode(string(rune('a'+i)), of))
		}
		c := AssignNodes(groups, nodes)
		again := AssignNodes(rapid.Permutation(groups).Draw(t, "shuffled"), nodes)
		for _, n := range nodes {
			owner := c.OwnerByNode[n.Name]
			if owner != again.OwnerByNode[n.Name] {
				t.Fatalf("node %s is of %q, or of %q", n.Name, owner, again.OwnerByNode[n.Name])
			}
			if _, refused := c.FaultByGroup[owner]; refused {
				t.Fatalf("node %s is of %s, which is refused", n.Name, owner)
			}
		}
	})
}
