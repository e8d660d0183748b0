package cloudpool

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	listers "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/rest"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/slipway-dev/slipway/api/v1alpha1"
	"github.com/slipway-dev/slipway/internal/placement"
	"github.com/slipway-dev/slipway/internal/placement/live"
	"github.com/slipway-dev/slipway/internal/placement/plan"
	"github.com/slipway-dev/slipway/internal/placement/saved"
	"github.com/slipway-dev/slipway/internal/retirement"
)

// UpdateLabel is the label of a NodeRetirement that says which update it is part of.
const UpdateLabel = "slipway.dev/cloudpool-update"

// Cluster is what is known of the Kubernetes cluster, kept current by watches. Its methods may be called concurrently
// once it was started.
type Cluster struct {
	Client kubernetes.Interface

	live    *live.Cluster
	factory informers.SharedInformerFactory
	nodes   listers.NodeLister
	pods    listers.PodLister
	cache   cache.Cache
	objects client.Client // writes, and reads past the cache
	changed chan struct{} // a NodeRetirement has changed
	log     *slog.Logger
}

// NewCluster prepares the watches. Start begins them.
func NewCluster(ctx context.Context, config *rest.Config, log *slog.Logger) (*Cluster, error) {
	scheme := runtime.NewScheme()
	if err := errors.Join(corev1.AddToScheme(scheme), v1alpha1.AddToScheme(scheme)); err != nil {
		return nil, err
	}
	clientset, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, err
	}
	objects, err := client.New(config, client.Options{Scheme: scheme})
	if err != nil {
		return nil, err
	}
	watched, err := cache.New(config, cache.Options{Scheme: scheme, DefaultTransform: cache.TransformStripManagedFields()})
	if err != nil {
		return nil, err
	}
	factory := informers.NewSharedInformerFactoryWithOptions(clientset, 0, informers.WithTransform(trim))
	known, err := live.Watch(clientset.Discovery(), live.OfFactory(factory), log)
	if err != nil {
		return nil, err
	}
	c := &Cluster{
		Client: clientset, live: known, factory: factory, nodes: factory.Core().V1().Nodes().Lister(),
		pods: factory.Core().V1().Pods().Lister(), cache: watched, objects: objects, changed: make(chan struct{}, 1), log: log,
	}
	return c, c.hear(ctx)
}

// trim drops what nobody reads.
func trim(o any) (any, error) {
	switch o := o.(type) {
	case *corev1.Node:
		o.ManagedFields, o.Status.Images = nil, nil
	case metav1.Object:
		o.SetManagedFields(nil)
	}
	return o, nil
}

// hear has changed say when a NodeRetirement has changed.
func (c *Cluster) hear(ctx context.Context) error {
	informer, err := c.cache.GetInformer(ctx, &v1alpha1.NodeRetirement{}, cache.BlockUntilSynced(false))
	if err != nil {
		return fmt.Errorf("watching NodeRetirements: %w", err)
	}
	tell := func() {
		select {
		case c.changed <- struct{}{}:
		default:
		}
	}
	_, err = informer.AddEventHandler(toolscache.ResourceEventHandlerFuncs{
		AddFunc: func(any) { tell() }, UpdateFunc: func(any, any) { tell() }, DeleteFunc: func(any) { tell() },
	})
	if err != nil {
		return err
	}
	_, err = c.cache.GetInformer(ctx, &v1alpha1.NodeGroup{}, cache.BlockUntilSynced(false))
	return err
}

// Start watches until ctx ends. It returns when everything that was there at the start is known.
func (c *Cluster) Start(ctx context.Context) error {
	failed := make(chan error, 1)
	go func() { failed <- c.cache.Start(ctx) }()
	c.factory.StartWithContext(ctx)
	if err := c.live.WaitForSync(ctx); err != nil {
		return err
	}
	if !c.cache.WaitForCacheSync(ctx) {
		select {
		case err := <-failed:
			return fmt.Errorf("watching NodeRetirements and NodeGroups: %w", err)
		default:
			return fmt.Errorf("watching NodeRetirements and NodeGroups: %w", context.Cause(ctx))
		}
	}
	return nil
}

// Nodes are those of the cluster.
func (c *Cluster) Nodes() ([]*corev1.Node, error) { return c.nodes.List(labels.Everything()) }

// NodesNow reads the nodes past all caches.
func (c *Cluster) NodesNow(ctx context.Context) ([]*corev1.Node, error) {
	list, err := c.Client.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, fmt.Errorf("nodes: %w", err)
	}
	nodes := make([]*corev1.Node, len(list.Items))
	for i := range list.Items {
		nodes[i] = &list.Items[i]
	}
	return nodes, nil
}

// ask has placement answer for the cluster as it is now, with the pending pods served first.
func (c *Cluster) ask(question func(*plan.Cluster) error) error {
	nodes, err := c.Nodes()
	if err != nil {
		return err
	}
	pods, err := c.pods.List(labels.Everything())
	if err != nil {
		return err
	}
	return c.live.With(func(s *placement.Snapshot) error {
		return question(plan.Over(s, &saved.Objects{Nodes: nodes, Pods: pods}))
	})
}

// choose chooses nodes that can go together.
func (c *Cluster) choose(k int, policy placement.Policy, rules placement.Options) (out *placement.Selection, err error) {
	err = c.ask(func(p *plan.Cluster) error {
		answer, err := p.Plan(plan.Options{Max: k, Policy: policy, Rules: rules})
		if err == nil {
			out = answer.Remove
		}
		return err
	})
	return out, err
}

// evacuate judges one node.
func (c *Cluster) evacuate(node string, policy placement.Policy, rules placement.Options) (out *placement.Evacuation, err error) {
	err = c.ask(func(p *plan.Cluster) (err error) {
		out, err = p.Node(node, plan.Options{Policy: policy, Rules: rules})
		return err
	})
	return out, err
}

// rules are those of the NodeGroup with some labels that a pool's machines are of, and its name; the plain rules when there
// is none. A manager that looks at objects with these labels alone sees no other.
func (c *Cluster) rules(ctx context.Context, provider, group string, labels map[string]string) (placement.Options, string, error) {
	rules := placement.Options{Now: time.Now()}
	var list v1alpha1.NodeGroupList
	if err := c.cache.List(ctx, &list, client.MatchingLabels(labels)); err != nil {
		return rules, "", fmt.Errorf("NodeGroups: %w", err)
	}
	name := ""
	for i := range list.Items {
		g := &list.Items[i]
		if g.Spec.Cloud.Provider != provider || g.Spec.Cloud.Group != group {
			continue
		}
		if name != "" {
			return rules, "", fmt.Errorf("the NodeGroups %s and %s are both the group %s of %s: want one", name, g.Name, group, provider)
		}
		name = g.Name
		rules.LocalStorage, rules.Unmanaged = g.Spec.Drain.DeleteLocalStorage, g.Spec.Drain.EvictUnmanaged
		limited := placement.Group{Name: g.Name, MinSize: int(g.Spec.Minimum)}
		nodes, err := c.Nodes()
		if err != nil {
			return rules, "", err
		}
		for _, n := range nodes {
			if retirement.Selects(g, n.Labels) {
				limited.Nodes = append(limited.Nodes, n.Name)
			}
		}
		rules.Groups = []placement.Group{limited}
	}
	return rules, name, nil
}

// unfinished are the NodeRetirements that are under way, whoever has made them.
func (c *Cluster) unfinished(ctx context.Context) ([]v1alpha1.NodeRetirement, error) {
	var list v1alpha1.NodeRetirementList
	if err := c.cache.List(ctx, &list); err != nil {
		return nil, fmt.Errorf("NodeRetirements: %w", err)
	}
	return slices.DeleteFunc(list.Items, func(rt v1alpha1.NodeRetirement) bool { return rt.Status.Phase.Finished() }), nil
}

// retirement reads a NodeRetirement, past the cache when that does not have it; nil when there is none.
func (c *Cluster) retirement(ctx context.Context, name string) (*v1alpha1.NodeRetirement, error) {
	rt := &v1alpha1.NodeRetirement{}
	key := client.ObjectKey{Name: name}
	err := c.cache.Get(ctx, key, rt)
	if apierrors.IsNotFound(err) {
		err = c.objects.Get(ctx, key, rt)
	}
	switch {
	case apierrors.IsNotFound(err):
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("NodeRetirement %s: %w", name, err)
	}
	return rt, nil
}

// retire creates a NodeRetirement, unless it is there.
func (c *Cluster) retire(ctx context.Context, rt *v1alpha1.NodeRetirement) error {
	if err := c.objects.Create(ctx, rt); err != nil && !apierrors.IsAlreadyExists(err) {
		return fmt.Errorf("NodeRetirement %s: %w", rt.Name, err)
	}
	return nil
}

// callOff deletes a NodeRetirement, which gives its node back where there is a way back.
func (c *Cluster) callOff(ctx context.Context, name string) error {
	rt := &v1alpha1.NodeRetirement{ObjectMeta: metav1.ObjectMeta{Name: name}}
	if err := c.objects.Delete(ctx, rt); err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("NodeRetirement %s: %w", name, err)
	}
	return nil
}
