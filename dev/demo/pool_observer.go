package demo

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/dynamic"

	"github.com/slipway-dev/slipway/api/v1alpha1"
	"github.com/slipway-dev/slipway/dev/testbed"
)

// poolObserver records the states of the pool's nodes and retirements, and when each state was first seen.
type poolObserver struct {
	startedAt     time.Time
	killedAt      time.Time
	takeoverAt    time.Time // when the other manager took over
	rescuedAt     time.Time // when the build was created that rescues a node
	rescued       int       // the instance of the rescued node
	killedManager *manager  // the killed manager
	err           error     // error of the step that runs everything

	mu               sync.Mutex
	phases           map[string]map[v1alpha1.Phase]time.Time // by node
	records          map[string]*v1alpha1.NodeRetirement     // by node
	unschedulable    map[string]bool                         // nodes that are unschedulable now
	maxUnschedulable int                                     // maximum number of nodes unschedulable at once
}

// observePool starts a poolObserver that watches nodes and retirements until ctx ends.
func (s *stage) observePool(ctx context.Context) (*poolObserver, error) {
	o := &poolObserver{
		phases: map[string]map[v1alpha1.Phase]time.Time{}, records: map[string]*v1alpha1.NodeRetirement{}, unschedulable: map[string]bool{},
	}
	client, err := dynamic.NewForConfig(s.RESTConfig())
	if err != nil {
		return nil, err
	}
	retirements, err := client.Resource(v1alpha1.GroupVersion.WithResource("noderetirements")).Watch(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, fmt.Errorf("watching NodeRetirements: %w", err)
	}
	nodes, err := s.Client().CoreV1().Nodes().Watch(ctx, metav1.ListOptions{LabelSelector: "kubernetes.azure.com/agentpool=" + ciPool.Name})
	if err != nil {
		retirements.Stop()
		return nil, fmt.Errorf("watching nodes: %w", err)
	}
	for w, take := range map[watch.Interface]func(watch.Event){retirements: o.recordRetirement, nodes: o.recordNode} {
		go func() {
			for e := range w.ResultChan() {
				take(e)
			}
		}()
	}
	return o, nil
}

func (o *poolObserver) recordRetirement(e watch.Event) {
	object, ok := e.Object.(*unstructured.Unstructured)
	rt := &v1alpha1.NodeRetirement{}
	if !ok || runtime.DefaultUnstructuredConverter.FromUnstructured(object.Object, rt) != nil {
		return
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	node := rt.Spec.NodeName
	if o.phases[node] == nil {
		o.phases[node] = map[v1alpha1.Phase]time.Time{}
	}
	if _, known := o.phases[node][rt.Status.Phase]; !known {
		o.phases[node][rt.Status.Phase] = time.Now()
	}
	if o.records[node] = rt; e.Type == watch.Deleted {
		delete(o.records, node)
	}
}

func (o *poolObserver) recordNode(e watch.Event) {
	n, ok := e.Object.(*corev1.Node)
	if !ok {
		return
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	delete(o.unschedulable, n.Name)
	if e.Type != watch.Deleted && n.Spec.Unschedulable {
		o.unschedulable[n.Name] = true
	}
	o.maxUnschedulable = max(o.maxUnschedulable, len(o.unschedulable))
}

// phaseTime returns when the retirement of an instance's node was first seen in a phase. If it was never seen in
// this phase, phaseTime returns zero.
func (o *poolObserver) phaseTime(instance int, phase v1alpha1.Phase) time.Time {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.phases[ciPool.NodeName(instance)][phase]
}

// retirementOf returns the current NodeRetirement of an instance's node, or nil.
func (o *poolObserver) retirementOf(instance int) *v1alpha1.NodeRetirement {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.records[ciPool.NodeName(instance)]
}

// lastUndrainedInstance returns the highest instance with a node that is not being drained yet. It leaves out
// interruptedInstance and undeletableInstance.
func (o *poolObserver) lastUndrainedInstance() (int, error) {
	for i := ciMachineCount - 1; i >= 0; i-- {
		if i != interruptedInstance && i != undeletableInstance && o.phaseTime(i, v1alpha1.Draining).IsZero() {
			return i, nil
		}
	}
	return 0, errors.New("every node is being drained already")
}

// maxConcurrentUnschedulable returns the maximum number of nodes that were unschedulable at the same time.
func (o *poolObserver) maxConcurrentUnschedulable() int {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.maxUnschedulable
}

// awaitPhase waits until the retirement of an instance's node has reached a phase.
func (o *poolObserver) awaitPhase(ctx context.Context, instance int, phase v1alpha1.Phase) error {
	err := testbed.PollUntil(ctx, fmt.Sprintf("the retirement of %s is %s", ciPool.NodeName(instance), phase), func() bool {
		return !o.phaseTime(instance, phase).IsZero()
	})
	if rt := o.retirementOf(instance); err != nil && rt != nil {
		err = fmt.Errorf("%w; it is %s: %s", err, rt.Status.Phase, rt.Status.Message)
	}
	return err
}
