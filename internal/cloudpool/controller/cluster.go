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
	noderules "github.com/slipway-dev/slipway/internal/drainability/node"
	"github.com/slipway-dev/slipway/internal/placement/live"
	"github.com/slipway-dev/slipway/internal/placement/planner"
	"github.com/slipway-dev/slipway/internal/placement/saved"
	"github.com/slipway-dev/slipway/internal/placement/snapshot"
	"github.com/slipway-dev/slipway/internal/provisioning/launch"
	"github.com/slipway-dev/slipway/internal/retirement"
)

// UpdateLabel is a label of NodeRetirements that this package creates. Its value is the name of the PoolUpdate.
const UpdateLabel = "slipway.dev/cloudpool-update"

// Cluster reads objects of the Kubernetes cluster from caches, and writes to the API server. Its methods may be called
// concurrently. A method that reads from a cache returns a *NotSyncedError until the caches have synced.
type Cluster struct {
	Client kubernetes.Interface // no watches: each request has a timeout

	namespace string        // of the PoolUpdates
	objects   client.Client // writes, and reads that bypass the cache
	launches  *launch.Record
	log       *slog.Logger

	// The fields below are filled by watches and valid once synced is closed.
	synced chan struct{}
	cache  cache.Cache
	live   *live.Cluster
	nodes  listers.NodeLister
	pods   listers.PodLister
}

// NotSyncedError is the error of a read while the caches have not synced, for example because the API server is
// unavailable.
type NotSyncedError struct{}

func (NotSyncedError) Error() string {
	return "the cluster caches have not synced yet: the API server does not answer, or the process has just started"
}

// apiRequestTimeout is the timeout of every API request that is not a watch. Without it, an API server that accepts a
// connection and never answers would block the caller.
const apiRequestTimeout = 10 * time.Second

// NewCluster creates the clients without contacting the API server. Run contacts it.
func NewCluster(config *rest.Config, namespace string, log *slog.Logger) (*Cluster, error) {
	scheme := runtime.NewScheme()
	if err := errors.Join(clientscheme.AddToScheme(scheme), v1alpha1.AddToScheme(scheme)); err != nil {
		return nil, err
	}
	bounded := rest.CopyConfig(config)
	bounded.Timeout = apiRequestTimeout
	clientset, err := kubernetes.NewForConfig(bounded)
	if err != nil {
		return nil, err
	}
	objects, err := client.New(bounded, client.Options{Scheme: scheme, Mapper: newRESTMapper(scheme)})
	if err != nil {
		return nil, err
	}
	c := newCluster(clientset, objects, log)
	c.namespace = namespace
	c.cache, err = cache.New(config, cache.Options{
		// RBAC allows to watch PoolUpdates in their namespace only.
		ByObject: map[client.Object]cache.ByObject{&v1alpha1.PoolUpdate{}: {Namespaces: map[string]cache.Config{namespace: {}}}},
		Scheme:   scheme, Mapper: objects.RESTMapper(), DefaultTransform: dropUnusedFields,
	})
	return c, err
}

func newCluster(clientset kubernetes.Interface, objects client.Client, log *slog.Logger) *Cluster {
	return &Cluster{Client: clientset, objects: objects, launches: launch.NewRecord(objects, objects), synced: make(chan struct{}), log: log}
}

// namespacedKinds are the namespaced kinds that this package uses. A cache that is limited to namespaces looks up list
// kinds too.
var namespacedKinds = sets.New("Pod", "PersistentVolumeClaim", "PodDisruptionBudget", "PoolUpdate", "PoolUpdateList")

// newRESTMapper returns a mapper for all types in the scheme. It sends no request, because the API server may be
// unavailable.
func newRESTMapper(scheme *runtime.Scheme) meta.RESTMapper {
	m := meta.NewDefaultRESTMapper(nil)
	for kind := range scheme.AllKnownTypes() {
		if namespacedKinds.Has(kind.Kind) {
			m.Add(kind, meta.RESTScopeNamespace)
		} else {
			m.Add(kind, meta.RESTScopeRoot)
		}
	}
	return m
}

// checkSynced returns a *NotSyncedError until the caches have synced, and nil afterwards.
func (c *Cluster) checkSynced() error {
	select {
	case <-c.synced:
		return nil
	default:
		return &NotSyncedError{}
	}
}

// Synced returns a channel that is closed once the caches have synced.
func (c *Cluster) Synced() <-chan struct{} { return c.synced }

// watchBackoff is the backoff between attempts to reach an unavailable API server.
var watchBackoff = wait.Backoff{Duration: time.Second, Factor: 2, Cap: 15 * time.Second, Steps: 10}

// Run starts the watches and keeps the caches current until ctx ends. It retries while the API server is unavailable.
func (c *Cluster) Run(ctx context.Context) error {
	_ = watchBackoff.DelayFunc().Until(ctx, true, true, func(context.Context) (bool, error) {
		err := c.createInformers(ctx)
		if err != nil && ctx.Err() == nil {
			c.log.Warn("cannot watch the cluster, retrying; requests that need it get 503", "err", err)
		}
		return err == nil, nil
	})
	go func() {
		if c.live != nil && c.live.WaitForSync(ctx) == nil && c.cache.WaitForCacheSync(ctx) {
			close(c.synced)
		}
	}()
	if err := c.cache.Start(ctx); err != nil && ctx.Err() == nil {
		return fmt.Errorf("watching the Kubernetes cluster: %w", err)
	}
	return nil
}

// createInformers creates the informers. It asks the API server only about resources that older API servers do not
// have.
func (c *Cluster) createInformers(ctx context.Context) (err error) {
	informers := live.InformersOfCache(ctx, c.cache)
	if c.live, err = live.WatchCluster(c.Client.Discovery(), informers, c.log); err != nil {
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

func dropUnusedFields(o any) (any, error) {
	switch o := o.(type) {
	case *corev1.Node:
		o.ManagedFields, o.Status.Images = nil, nil
	case metav1.Object:
		o.SetManagedFields(nil)
	}
	return o, nil
}

// CachedNodes returns the Nodes from the cache.
func (c *Cluster) CachedNodes() ([]*corev1.Node, error) {
	if err := c.checkSynced(); err != nil {
		return nil, err
	}
	return c.nodes.List(labels.Everything())
}

// listAPIServerNodes returns the names of the nodes with an API server pod, from the cache.
func (c *Cluster) listAPIServerNodes() (map[string]bool, error) {
	if err := c.checkSynced(); err != nil {
		return nil, err
	}
	pods, err := c.pods.Pods(metav1.NamespaceSystem).List(labels.Everything())
	nodes := map[string]bool{}
	for _, p := range pods {
		if noderules.IsAPIServerPod(p.Namespace, p.Name, p.Spec.NodeName, p.Labels) {
			nodes[p.Spec.NodeName] = true
		}
	}
	return nodes, err
}

func (c *Cluster) listCached(ctx context.Context, into client.ObjectList, o ...client.ListOption) error {
	if err := c.checkSynced(); err != nil {
		return err
	}
	return c.cache.List(ctx, into, o...)
}

func (c *Cluster) getCached(ctx context.Context, key client.ObjectKey, into client.Object) error {
	if err := c.checkSynced(); err != nil {
		return err
	}
	return c.cache.Get(ctx, key, into)
}

// ListNodesLive lists the Nodes from the API server, without the cache.
func (c *Cluster) ListNodesLive(ctx context.Context) ([]*corev1.Node, error) {
	list, err := c.Client.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, NewClusterFailure("reading the nodes", err)
	}
	nodes := make([]*corev1.Node, len(list.Items))
	for i := range list.Items {
		nodes[i] = &list.Items[i]
	}
	return nodes, nil
}

// withPlanner calls question with a planner for the current state of the cluster. In this planner, pending pods get
// free capacity before pods from removed nodes.
func (c *Cluster) withPlanner(call func(*planner.Cluster) error) error {
	nodes, err := c.CachedNodes()
	if err != nil {
		return err
	}
	pods, err := c.pods.List(labels.Everything())
	if err != nil {
		return err
	}
	return c.live.WithSnapshot(func(s *snapshot.Snapshot) error {
		return call(planner.NewClusterFromSnapshot(s, &saved.Objects{Nodes: nodes, Pods: pods}))
	})
}

// chooseNodesToRemove chooses at most k nodes. The cluster can lose all chosen nodes together.
func (c *Cluster) chooseNodesToRemove(maxNodes int, policy planner.Policy, rules planner.Options) (out *planner.VictimSelection, err error) {
	err = c.withPlanner(func(p *planner.Cluster) error {
		answer, err := p.PlanLaunchesAndRemovals(planner.PlanOptions{MaxRemovals: maxNodes, Policy: policy, Rules: rules})
		if err == nil {
			out = answer.Remove
		}
		return err
	})
	return out, err
}

func (c *Cluster) planEvacuation(node string, policy planner.Policy, rules planner.Options) (out *planner.Evacuation, err error) {
	err = c.withPlanner(func(p *planner.Cluster) (err error) {
		out, err = p.PlanEvacuation(node, planner.PlanOptions{Policy: policy, Rules: rules})
		return err
	})
	return out, err
}

// loadGroupRules returns the rules for the nodes of the NodeGroup with this cloud and cloud group, and the NodeGroup's
// name. Without such a NodeGroup it returns default rules and "". It considers only NodeGroups with the given labels,
// because the manager with that selector ignores all others.
func (c *Cluster) loadGroupRules(ctx context.Context, provider, cloudGroup string, labels map[string]string, systemLocalStorage bool,
) (rules planner.Options, groupName string, err error) {
	marks := grouppolicy.PodSelection{SystemLocalStorage: systemLocalStorage}
	rules = planner.Options{Now: time.Now(), AddPodFacts: marks.AddFacts}
	var list v1alpha1.NodeGroupList
	if err := c.listCached(ctx, &list, client.MatchingLabels(labels)); err != nil {
		return rules, "", fmt.Errorf("NodeGroups: %w", err)
	}
	name := ""
	for i := range list.Items {
		g := &list.Items[i]
		if g.Spec.Cloud.Provider != provider || g.Spec.Cloud.Group != cloudGroup {
			continue
		}
		if name != "" {
			return rules, "", fmt.Errorf("NodeGroups %s and %s: both have the cloud group %s of provider %s: want one NodeGroup for it", name, g.Name, cloudGroup, provider)
		}
		name = g.Name
		of, err := grouppolicy.NewPlaceholderSelection(g)
		if err != nil {
			return rules, "", err
		}
		rules.PodRules, marks.Placeholders = grouppolicy.NewPodPolicy(g, false), of.Placeholders
		limited := planner.Group{Name: g.Name, MinSize: int(g.Spec.MinSize)}
		nodes, err := c.CachedNodes()
		if err != nil {
			return rules, "", err
		}
		for _, n := range nodes {
			if retirement.SelectsNode(g, n.Labels) {
				limited.Nodes = append(limited.Nodes, n.Name)
			}
		}
		rules.Groups = []planner.Group{limited}
	}
	return rules, name, nil
}

// listUnfinishedRetirements returns all unfinished NodeRetirements of the cluster, including those that other clients
// created.
func (c *Cluster) listUnfinishedRetirements(ctx context.Context) ([]v1alpha1.NodeRetirement, error) {
	var list v1alpha1.NodeRetirementList
	if err := c.listCached(ctx, &list); err != nil {
		return nil, NewClusterFailure("reading the NodeRetirements", err)
	}
	return slices.DeleteFunc(list.Items, func(rt v1alpha1.NodeRetirement) bool { return rt.Status.Phase.IsFinal() }), nil
}

// getRetirement returns the NodeRetirement with this name, or nil if there is none. If the cache does not contain it,
// the API server is asked.
func (c *Cluster) getRetirement(ctx context.Context, name string) (*v1alpha1.NodeRetirement, error) {
	rt := &v1alpha1.NodeRetirement{}
	key := client.ObjectKey{Name: name}
	err := c.getCached(ctx, key, rt)
	if apierrors.IsNotFound(err) {
		err = c.objects.Get(ctx, key, rt)
	}
	switch {
	case apierrors.IsNotFound(err):
		return nil, nil
	case err != nil:
		return nil, NewClusterFailure("reading NodeRetirement "+name, err)
	}
	return rt, nil
}

// deleteRetirement deletes a NodeRetirement, which cancels it. The manager then restores the node, if that is still
// possible.
func (c *Cluster) deleteRetirement(ctx context.Context, name string) error {
	rt := &v1alpha1.NodeRetirement{ObjectMeta: metav1.ObjectMeta{Name: name}}
	if err := c.objects.Delete(ctx, rt); err != nil && !apierrors.IsNotFound(err) {
		return NewClusterFailure("cancelling NodeRetirement "+name, err)
	}
	return nil
}
