package surge_test

import (
	"context"
	"encoding/json"
	"fmt"
	"sync"
	"time"

	autoscalingv2 "k8s.io/api/autoscaling/v2"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// The field managers of the other writers of sizes.
const (
	userManager   = "user"
	gitOpsManager = "gitops"
)

// sizePatch returns a merge patch of a field of the spec. It fails if the object has changed since resourceVersion.
func sizePatch(resourceVersion, field string, size int32) []byte {
	raw, err := json.Marshal(map[string]any{
		"metadata": map[string]any{"resourceVersion": resourceVersion}, "spec": map[string]any{field: size},
	})
	if err != nil {
		panic(err)
	}
	return raw
}

// scaleAsUser sets the size of a Deployment as `kubectl scale` does. choose gets the present size. It has to return another
// one, because the API server does not record a write that changes nothing.
func (f *fixture) scaleAsUser(name string, choose func(now int32) int32) error {
	deployments := f.Client().AppsV1().Deployments(f.ns)
	for {
		d, err := deployments.Get(f.ctx, name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		size := choose(*d.Spec.Replicas)
		if size == *d.Spec.Replicas {
			return fmt.Errorf("size of Deployment %s: is %d already", name, size)
		}
		_, err = deployments.Patch(f.ctx, name, types.MergePatchType, sizePatch(d.ResourceVersion, "replicas", size),
			metav1.PatchOptions{FieldManager: userManager}, "scale")
		if !apierrors.IsConflict(err) {
			return err
		}
	}
}

// setMinimumAsUser sets minReplicas of an autoscaler. choose is as in scaleAsUser.
func (f *fixture) setMinimumAsUser(name string, choose func(now int32) int32) error {
	autoscalers := f.Client().AutoscalingV2().HorizontalPodAutoscalers(f.ns)
	for {
		hpa, err := autoscalers.Get(f.ctx, name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		size := choose(*hpa.Spec.MinReplicas)
		_, err = autoscalers.Patch(f.ctx, name, types.MergePatchType, sizePatch(hpa.ResourceVersion, "minReplicas", size),
			metav1.PatchOptions{FieldManager: userManager})
		if !apierrors.IsConflict(err) {
			return err
		}
	}
}

// gitOps writes the size of a Deployment back, as Argo CD with self-heal does.
type gitOps struct {
	f    *fixture
	name string
	stop context.CancelFunc
	done sync.WaitGroup

	mu      sync.Mutex
	size    int32 // in Git
	reverts int
}

// startGitOps writes the size of a Deployment back each interval until stopAndWait.
func (f *fixture) startGitOps(name string, size int32, interval time.Duration) *gitOps {
	ctx, stop := context.WithCancel(f.ctx)
	g := &gitOps{f: f, name: name, size: size, stop: stop}
	g.done.Go(func() {
		for {
			select {
			case <-ctx.Done():
				return
			case <-time.After(interval):
			}
			if err := g.sync(ctx); err != nil && ctx.Err() == nil {
				f.t.Errorf("GitOps: %v", err)
				return
			}
		}
	})
	f.t.Cleanup(g.stopAndWait)
	return g
}

func (g *gitOps) sync(ctx context.Context) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	deployments := g.f.Client().AppsV1().Deployments(g.f.ns)
	d, err := deployments.Get(ctx, g.name, metav1.GetOptions{})
	if err != nil || *d.Spec.Replicas == g.size {
		return err
	}
	_, err = deployments.Patch(ctx, g.name, types.MergePatchType, sizePatch(d.ResourceVersion, "replicas", g.size),
		metav1.PatchOptions{FieldManager: gitOpsManager})
	if apierrors.IsConflict(err) { // the next turn tries again
		return nil
	}
	if err == nil {
		g.reverts++
	}
	return err
}

// commit changes the size in Git.
func (g *gitOps) commit(size int32) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.size = size
}

func (g *gitOps) countReverts() int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.reverts
}

func (g *gitOps) stopAndWait() {
	g.stop()
	g.done.Wait()
}

// autoscaler returns a HorizontalPodAutoscaler of a Deployment, for half of the CPU that its pods request. Without
// stabilization it lowers a size at once.
func (f *fixture) autoscaler(name string, lowest *int32, highest int32) *autoscalingv2.HorizontalPodAutoscaler {
	return &autoscalingv2.HorizontalPodAutoscaler{
		ObjectMeta: metav1.ObjectMeta{Namespace: f.ns, Name: name},
		Spec: autoscalingv2.HorizontalPodAutoscalerSpec{
			ScaleTargetRef: autoscalingv2.CrossVersionObjectReference{APIVersion: "apps/v1", Kind: "Deployment", Name: name},
			MinReplicas:    lowest, MaxReplicas: highest,
			Metrics: []autoscalingv2.MetricSpec{{
				Type: autoscalingv2.ResourceMetricSourceType,
				Resource: &autoscalingv2.ResourceMetricSource{
					Name:   "cpu",
					Target: autoscalingv2.MetricTarget{Type: autoscalingv2.UtilizationMetricType, AverageUtilization: new(int32(50))},
				},
			}},
			Behavior: &autoscalingv2.HorizontalPodAutoscalerBehavior{
				ScaleDown: &autoscalingv2.HPAScalingRules{StabilizationWindowSeconds: new(int32(0))},
			},
		},
	}
}
