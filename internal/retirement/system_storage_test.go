package retirement

import (
	"context"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/slipway-dev/slipway/api/v1alpha1"
	"github.com/slipway-dev/slipway/internal/kubeapi"
)

// withEmptyDir returns a change that puts the pod in a namespace and gives it an emptyDir.
func withEmptyDir(namespace string) func(*simPod) {
	return func(p *simPod) {
		p.Namespace = namespace
		p.Spec.Volumes = []kubeapi.Volume{{Name: "scratch", EmptyDir: &kubeapi.EmptyDirVolume{}}}
	}
}

func TestSystemLocalStorageDoesNotKeepNode(t *testing.T) {
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
			runInVirtualTime(t, func(t *testing.T, ctx context.Context) {
				s := newGroupOfTwo(t)
				s.addPod("a", "web", withEmptyDir(tt.namespace))
				s.createRetirement(t, "r", v1alpha1.NodeRetirementSpec{NodeName: "a"})
				c := s.newController(t)
				c.options.SystemLocalStorage = tt.option
				if rt := s.reconcileUntilDone(ctx, c, "r", time.Hour); rt.Status.Phase != tt.want {
					t.Errorf("%s: %s, want %s", rt.Status.Phase, rt.Status.Message, tt.want)
				}
			})
		})
	}
}
