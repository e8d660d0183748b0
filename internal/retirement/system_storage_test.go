package retirement

import (
	"context"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/slipway-dev/slipway/api/v1alpha1"
	"github.com/slipway-dev/slipway/internal/kubeapi"
)

// withEmptyDir is a pod of a namespace that keeps data on its node.
func withEmptyDir(namespace string) func(*simPod) {
	return func(p *simPod) {
		p.Namespace = namespace
		p.Spec.Volumes = []kubeapi.Volume{{Name: "scratch", EmptyDir: &kubeapi.EmptyDirVolume{}}}
	}
}

func TestSystemLocalStorageKeepsNoNodeWhereItMayBeLost(t *testing.T) {
	for name, tt := range map[string]struct {
		namespace string
		option    bool
		want      v1alpha1.Phase
	}{
		"kube-system":                    {metav1.NamespaceSystem, true, v1alpha1.Succeeded},
		"kube-system without the option": {metav1.NamespaceSystem, false, v1alpha1.Refused},
		"another namespace":              {"shop", true, v1alpha1.Refused},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, ctx context.Context) {
				s := ci(t)
				s.addPod("a", "web", withEmptyDir(tt.namespace))
				s.retire(t, "r", v1alpha1.NodeRetirementSpec{NodeName: "a"})
				c := s.controller(t)
				c.o.SystemLocalStorage = tt.option
				if rt := s.settled(ctx, c, "r", time.Hour); rt.Status.Phase != tt.want {
					t.Errorf("%s: %s, want %s", rt.Status.Phase, rt.Status.Message, tt.want)
				}
			})
		})
	}
}
