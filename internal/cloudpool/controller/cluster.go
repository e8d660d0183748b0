package controller

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"
	clientscheme "k8s.io/client-go/kubernetes/scheme"
	listers "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/slipway-dev/slipway/api/v1alpha1"
	"github.com/slipway-dev/slipway/internal/drainability/grouppolicy"
	"github.com/slipway-dev/slipway/internal/placement/live"
	"github.com/slipway-dev/slipway/internal/placement/planner"
	"github.com/slipway-dev/slipway/internal/placement/saved"
	"github.com/slipway-dev/slipway/internal/placement/snapshot"
	"github.com/slipway-dev/slipway/internal/provisioning/launch"
	"github.com/slipway-dev/slipway/internal/retirement"
)

// UpdateLabel is the label of a NodeRetirement that says which update it is part of.
const UpdateLabel = "slipway.dev/cloudpool-update"

// Cluster is what is known of the Kubernetes cluster, kept current by watches. Its methods may be called concurrently, also
// before the cluster was read: what needs it is then an *UnreadError.
type Cluster struct {
	Client kubernetes.Interface // no watches: each of its requests ends

	namespace string        // of the PoolUpdates
	objects   client.Client // writes, and reads past the cache
	launches  *launch.Record
	log       *slog.Logger

	// What the watches have told. It may be used once read is closed.
	read  chan struct{}
	cache cache.Cache
	live  *live.Cluster
	nodes listers.NodeLister
	pods  listers.PodLister
}

// UnreadError says that the cluster was not read yet, as while the API server is away.
type UnreadError struct{}

func (UnreadError) Error() string {
	return "the Kubernetes cluster has not been read yet: its API server does not answer, or not for long enough"
}

// answerTime bounds every request to the API server that is no watch: one may take a connection and never answer.
const answerTime = 10 * time.Second

// NewCluster makes the clients. It asks nothing of the API server; Run does.
func NewCluster(config *rest.Config, namespace string, log *slog.Logger) (*Cluster, error) {
	scheme := runtime.NewScheme()
	if err := errors.Join(clientscheme.AddToScheme(scheme), v1alpha1.AddToScheme(scheme)); err != nil {
		return nil, err
	}
	bounded := rest.CopyConfig(config)
	bounded.Timeout = answerTime
	clientset, err := kubernetes.NewForConfig(bounded)
	if err != nil {
		return nil, err
	}
	objects, err := client.New(bounded, client.Options{Scheme: scheme, Mapper: newMapper(scheme)})
	if err != nil {
		return nil, err
	}
	c := newCluster(clientset, objects, log)
	c.namespace = namespace
	c.cache, err = cache.New(config, cache.Options{
		// PoolUpdates may be watched in their namespace alone.
		ByObject: map[client.Object]cache.ByObject{&v1alpha1.PoolUpdate{}: {Namespaces: map[string]cache.Config{namespace: {}}}},
		Scheme:   scheme, Mapper: objects.RESTMapper(), DefaultTransform: trim,
	})
	return c, err
}

func newCluster(clientset kubernetes.Interface, objects client.Client, log *slog.Logger) *Cluster {
	return &Cluster{Client: clientset, objects: objects, launches: launch.New(objects, objects), read: make(chan struct{}), log: log}
}

// namespaced are the kinds that are used and belong to a namespace. A cache of some namespaces looks lists up.
var namespaced = sets.New("Pod", "PersistentVolumeClaim", "PodDisruptionBudget", "PoolUpdate", "PoolUpdateList")

// newMapper knows the types without asking the API server, which may be away.
func newMapper(scheme *runtime.Scheme) meta.RESTMapper {
	m := meta.NewDefaultRESTMapper(nil)
	for kind := range scheme.AllKnownTypes() {
		if namespaced.Has(kind.Kind) {
			m.Add(kind, meta.RESTScopeNamespace)
		} else {
			m.Add(kind, meta.RESTScopeRoot)
		}
	}
	return m
}

// unread returns an *UnreadError until the cluster was read.
func (c *Cluster) unread() error {
	select {
	case <-c.read:
		return nil
	default:
		return &UnreadError{}
	}
}

// Read is closed when the cluster was read.
func (c *Cluster) Read() <-chan struct{} { return c.read }

// pauses are those between two attempts to reach an API server that is away.
var pauses = wait.Backoff{Duration: time.Second, Factor: 2, Cap: 15 * time.Second, Steps: 10}

// Run reads the cluster and watches it until ctx ends. While the API server is away it tries again.
func (c *Cluster) Run(ctx context.Context) error {
	_ = pauses.DelayFunc().Until(ctx, true, true, func(context.Context) (bool, error) {
		err := c.watch(ctx)
		if err != nil && ctx.Err() == nil {
			c.log.Warn("cannot read the Kubernetes cluster yet, and tries again: requests that need it are answered 503", "err", err)
		}
		return err == nil, nil
	})
	go func() {
		if c.live != nil && c.live.WaitForSync(ctx) == nil && c.cache.WaitForCacheSync(ctx) {
			close(c.read)
		}
	}()
	if err := c.cache.Start(ctx); err != nil && ctx.Err() == nil {
		return fmt.Errorf("watching the Kubernetes cluster: %w", err)
	}
	return nil
}

// watch prepares the watches. What is watched is known at once, except for what only newer API servers have.
func (c *Cluster) watch(ctx context.Context) (err error) {
	informers := live.OfCache(ctx, c.cache)
	if c.live, err = live.Watch(c.Client.Discovery(), informers, c.log); err != nil {
		return err
	}
	nodes, err := informers(schema.GroupVersionResource{}, &corev1.Node{})
	if err != nil {
		return err
	}
	pods, err := informers(schema.GroupVersionResource{}, &corev1.Pod{})
	if err != nil {
		return err
	}
	c.nodes, c.pods = listers.NewNodeLister(nodes.GetIndexer()), listers.NewPodLister(pods.GetIndexer())
	for _, own := range []client.Object{&v1alpha1.NodeRetirement{}, &v1alpha1.NodeGroup{}, &v1alpha1.PoolUpdate{}} {
		if _, err := c.cache.GetInformer(ctx, own, cache.BlockUntilSynced(false)); err != nil {
			return fmt.Errorf("watching %T: %w", own, err)
		}
	}
	return nil
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

// Nodes returns the Nodes as the watches have told them.
func (c *Cluster) Nodes() ([]*corev1.Node, error) {
	if err := c.unread(); err != nil {
		return nil, err
	}
	return c.nodes.List(labels.Everything())
}

// list reads objects as the watches have told them.
func (c *Cluster) list(ctx context.Context, into client.ObjectList, o ...client.ListOption) error {
	if err := c.unread(); err != nil {
		return err
	}
	return c.cache.List(ctx, into, o...)
}

// get reads an object as the watches have told it.
func (c *Cluster) get(ctx context.Context, key client.ObjectKey, into client.Object) error {
	if err := c.unread(); err != nil {
		return err
	}
	return c.cache.Get(ctx, key, into)
}

// NodesNow reads the nodes past all caches.
func (c *Cluster) NodesNow(ctx context.Context) ([]*corev1.Node, error) {
	list, err := c.Client.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, ClusterFailure("reading the nodes", err)
	}
	nodes := make([]*corev1.Node, len(list.Items))
	for i := range list.Items {
		nodes[i] = &list.Items[i]
	}
	return nodes, nil
}

// ask has placement answer for the cluster as it is now, with the pending pods served first.
func (c *Cluster) ask(question func(*planner.Cluster) error) error {
	nodes, err := c.Nodes()
	if err != nil {
		return err
	}
	pods, err := c.pods.List(labels.Everything())
	if err != nil {
		return err
	}
	return c.live.With(func(s *snapshot.Snapshot) error {
		return question(planner.ClusterOf(s, &saved.Objects{Nodes: nodes, Pods: pods}))
	})
}

// choose chooses nodes that can go together.
func (c *Cluster) choose(k int, policy planner.Policy, rules planner.Options) (out *planner.Selection, err error) {
	err = c.ask(func(p *planner.Cluster) error {
		answer, err := p.Plan(planner.PlanOptions{Max: k, Policy: policy, Rules: rules})
		if err == nil {
			out = answer.Remove
		}
		return err
	})
	return out, err
}

func (c *Cluster) evacuate(node string, policy planner.Policy, rules planner.Options) (out *planner.Evacuation, err error) {
	err = c.ask(func(p *planner.Cluster) (err error) {
		out, err = p.Evacuate(node, planner.PlanOptions{Policy: policy, Rules: rules})
		return err
	})
	return out, err
}

// rules are those of the NodeGroup with some labels that a pool's machines are of, and its name; the plain rules when there
// is none. A manager that looks at objects with these labels alone sees no other.
func (c *Cluster) rules(ctx context.Context, provider, group string, labels map[string]string, systemLocalStorage bool,
) (planner.Options, string, error) {
	marks := grouppolicy.Selection{SystemLocalStorage: systemLocalStorage}
	rules := planner.Options{Now: time.Now(), Mark: marks.Mark}
	var list v1alpha1.NodeGroupList
	if err := c.list(ctx, &list, client.MatchingLabels(labels)); err != nil {
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
		of, err := grouppolicy.Placeholders(g)
		if err != nil {
			return rules, "", err
		}
		rules.Pods, marks.Placeholders = grouppolicy.For(g, false), of.Placeholders
		limited := planner.Group{Name: g.Name, MinSize: int(g.Spec.Minimum)}
		nodes, err := c.Nodes()
		if err != nil {
			return rules, "", err
		}
		for _, n := range nodes {
			if retirement.Selects(g, n.Labels) {
				limited.Nodes = append(limited.Nodes, n.Name)
			}
		}
		rules.Groups = []planner.Group{limited}
	}
	return rules, name, nil
}

// unfinished are the NodeRetirements that are under way, whoever has made them.
func (c *Cluster) unfinished(ctx context.Context) ([]v1alpha1.NodeRetirement, error) {
	var list v1alpha1.NodeRetirementList
	if err := c.list(ctx, &list); err != nil {
		return nil, ClusterFailure("reading the NodeRetirements", err)
	}
	return slices.DeleteFunc(list.Items, func(rt v1alpha1.NodeRetirement) bool { return rt.Status.Phase.Finished() }), nil
}

// retirement reads a NodeRetirement, past the cache when that does not have it; nil when there is none.
func (c *Cluster) retirement(ctx context.Context, name string) (*v1alpha1.NodeRetirement, error) {
	rt := &v1alpha1.NodeRetirement{}
	key := client.ObjectKey{Name: name}
	err := c.get(ctx, key, rt)
	if apierrors.IsNotFound(err) {
		err = c.objects.Get(ctx, key, rt)
	}
	switch {
	case apierrors.IsNotFound(err):
		return nil, nil
	case err != nil:
		return nil, ClusterFailure("reading NodeRetirement "+name, err)
	}
	return rt, nil
}

// callOff deletes a NodeRetirement, which gives its node back where there is a way back.
func (c *Cluster) callOff(ctx context.Context, name string) error {
	rt := &v1alpha1.NodeRetirement{ObjectMeta: metav1.ObjectMeta{Name: name}}
	if err := c.objects.Delete(ctx, rt); err != nil && !apierrors.IsNotFound(err) {
		return ClusterFailure("cancelling NodeRetirement "+name, err)
	}
	return nil
}
