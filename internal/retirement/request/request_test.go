package request

import (
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/api/validation"

	"github.com/slipway-dev/slipway/api/v1alpha1"
	"github.com/slipway-dev/slipway/internal/testing/check"
)

func TestNameDependsOnRetiredNode(t *testing.T) {
	for _, node := range []string{"aks-ci-1", strings.Repeat("n", 253), strings.Repeat("n", 238) + "." + strings.Repeat("n", 14)} {
		name := NewName(node, "idle", "uid", 17, "")
		faults := validation.NameIsDNSSubdomain(name, false)
		check.Not(t, len(faults) > 0 || name != NewName(node, "idle", "uid", 17, ""), "%s: %v", name, faults)
		for what, other := range map[string]string{
			"a later time": NewName(node, "idle", "uid", 18, ""), "a second try": NewName(node, "idle", "uid", 17, "first"),
			"another node of the name": NewName(node, "idle", "diu", 17, ""), "another rule": NewName(node, "ghost", "uid", 17, ""),
		} {
			check.Not(t, other == name, "%s has the same name: %s", what, name)
		}
	}
}

func TestRequestWithoutNameGetsOneOfItsOwn(t *testing.T) {
	set := map[string]string{"group": "ci"}
	request := Request{Labels: set, Spec: v1alpha1.NodeRetirementSpec{NodeName: "a", NodeUID: "uid"}}
	rt := New(request)
	check.Not(t, !strings.HasPrefix(rt.Name, "a-") || len(rt.Finalizers) != 0 || rt.Spec.NodeUID != "uid", "%+v", rt)
	check.Not(t, rt.Name == New(request).Name, "two requests have the name %s", rt.Name)
	long := New(Request{Spec: v1alpha1.NodeRetirementSpec{NodeName: strings.Repeat("n", 253)}})
	check.Not(t, len(validation.NameIsDNSSubdomain(long.Name, false)) > 0, "%s: %v", long.Name, validation.NameIsDNSSubdomain(long.Name, false))
	if rt.Labels["group"] = "other"; set["group"] != "ci" {
		t.Error("the labels are shared with the group's")
	}
	if rt := New(Request{Name: "r", Spec: v1alpha1.NodeRetirementSpec{NodeName: "a"}}); rt.Name != "r" {
		t.Errorf("%+v", rt.ObjectMeta)
	}
}
