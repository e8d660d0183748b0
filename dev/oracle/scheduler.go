// Package oracle lets the real kube-scheduler judge random clusters, so that internal/placement can be held against it:
// pod by pod and node by node, the Filter plugins of k8s.io/kubernetes, run in process over the scheduler's own snapshot,
// must say what placement says.
package oracle

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/apis/config/latest"
	schedulercache "k8s.io/kubernetes/pkg/scheduler/backend/cache"
	"k8s.io/kubernetes/pkg/scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/dynamicresources"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/nodevolumelimits"
	frameworkruntime "k8s.io/kubernetes/pkg/scheduler/framework/runtime"
	"k8s.io/kubernetes/pkg/scheduler/metrics"
	"k8s.io/kubernetes/pkg/scheduler/util/assumecache"

	"github.com/slipway-dev/slipway/internal/placement/placementtest"
)

// Scheduler is kube-scheduler's framework with its default plugins and feature gates. Its listers are filled by hand,
// one cluster after the other. It is not safe for concurrent use.
type Scheduler struct {
	framework framework.Framework
	factory   informers.SharedInformerFactory
	lister    *lister
	devices   *devices
	nominator nominator
}

// devices makes the plugins see device classes, and no device at all.
type devices struct {
	*dynamicresources.DefaultDRAManager
}

func (d *devices) ResourceSlices() fwk.ResourceSliceLister { return d }
func (d *devices) ListWithDeviceTaintRules() ([]*resourcev1.ResourceSlice, error) {
	return nil, nil
}

// replace lets the manager know other device classes in the place of those before, as its informer would.
func (d *devices) replace(before []any, classes []*resourcev1.DeviceClass) error {
	known, ok := d.DeviceClassResolver().(cache.ResourceEventHandler)
	if !ok {
		return fmt.Errorf("%T takes no device classes", d.DeviceClassResolver())
	}
	for _, class := range before {
		known.OnDelete(class)
	}
	for _, class := range classes {
		known.OnAdd(class, true)
	}
	return nil
}

// nominator holds the pods that are nominated to nodes, by the nodes' names.
type nominator map[string][]fwk.PodInfo

func (n nominator) AddNominatedPod(klog.Logger, fwk.PodInfo, *fwk.NominatingInfo) {}
func (n nominator) DeleteNominatedPodIfExists(*corev1.Pod)                        {}
func (n nominator) UpdateNominatedPod(klog.Logger, *corev1.Pod, fwk.PodInfo)      {}
func (n nominator) NominatedPodsForNode(name string) []fwk.PodInfo                { return n[name] }

// fill takes over the pods that the scheduler's queue would know as nominated.
func (n nominator) fill(c *placementtest.Cluster) {
	clear(n)
	for _, p := range c.Waiting() {
		if name := p.Status.NominatedNodeName; name != "" && cmp.Or(p.Spec.SchedulerName, corev1.DefaultSchedulerName) == corev1.DefaultSchedulerName {
			info, _ := framework.NewPodInfo(p) // which the queue holds also when a selector cannot be parsed
			n[name] = append(n[name], info)
		}
	}
}

// lister hands the plugins the snapshot of the cluster at hand.
type lister struct{ *schedulercache.Snapshot }

func (l *lister) NodeInfos() fwk.NodeInfoLister           { return l.Snapshot.NodeInfos() }
func (l *lister) StorageInfos() fwk.StorageInfoLister     { return l.Snapshot.StorageInfos() }
func (l *lister) PodGroupStates() fwk.PodGroupStateLister { return l.Snapshot.PodGroupStates() }

// NewScheduler builds the framework. The context ends what runs behind it.
func NewScheduler(ctx context.Context) (*Scheduler, error) {
	metrics.Register()
	configuration, err := latest.Default()
	if err != nil {
		return nil, fmt.Errorf("read the scheduler's default configuration: %w", err)
	}
	client := fake.NewClientset()
	factory := informers.NewSharedInformerFactory(client, 0)
	claims := assumecache.NewAssumeCache(klog.FromContext(ctx), factory.Resource().V1().ResourceClaims().Informer(),
		"claims", "", nil)
	s := &Scheduler{
		factory: factory, lister: &lister{schedulercache.NewEmptySnapshot()}, nominator: nominator{},
		devices: &devices{dynamicresources.NewDRAManager(ctx, claims, nil, factory)},
	}
	s.framework, err = frameworkruntime.NewFramework(ctx, plugins.NewInTreeRegistry(), &configuration.Profiles[0],
		frameworkruntime.WithClientSet(client),
		frameworkruntime.WithInformerFactory(factory),
		frameworkruntime.WithSnapshotSharedLister(s.lister),
		frameworkruntime.WithSharedDRAManager(s.devices),
		frameworkruntime.WithPodNominator(s.nominator),
		frameworkruntime.WithSharedCSIManager(nodevolumelimits.NewCSIManager(factory.Storage().V1().CSINodes().Lister())),
		frameworkruntime.WithParallelism(1),
	)
	if err != nil {
		return nil, fmt.Errorf("build the scheduler's framework: %w", err)
	}
	return s, nil
}

// Load puts a cluster before the scheduler.
func (s *Scheduler) Load(c *placementtest.Cluster) error {
	core, storage, classes := s.factory.Core().V1(), s.factory.Storage().V1(), s.factory.Resource().V1().DeviceClasses().Informer().GetIndexer()
	if err := s.devices.replace(classes.List(), c.DeviceClasses); err != nil {
		return err
	}
	fill := []struct {
		indexer cache.Indexer
		objects []any
	}{
		{core.Namespaces().Informer().GetIndexer(), anys(c.Namespaces)},
		{core.Nodes().Informer().GetIndexer(), anys(c.Nodes)},
		{core.PersistentVolumeClaims().Informer().GetIndexer(), anys(c.Claims)},
		{core.PersistentVolumes().Informer().GetIndexer(), anys(c.Volumes)},
		{storage.StorageClasses().Informer().GetIndexer(), anys(c.StorageClasses)},
		{storage.CSINodes().Informer().GetIndexer(), anys(c.CSINodes)},
		{storage.CSIDrivers().Informer().GetIndexer(), anys(c.CSIDrivers)},
		{storage.VolumeAttachments().Informer().GetIndexer(), anys(c.Attachments)},
		{storage.CSIStorageCapacities().Informer().GetIndexer(), anys(c.Capacities)},
		{classes, anys(c.DeviceClasses)},
	}
	for _, f := range fill {
		if err := f.indexer.Replace(f.objects, ""); err != nil {
			return fmt.Errorf("fill a lister: %w", err)
		}
	}
	s.nominator.fill(c)
	s.lister.Snapshot = schedulercache.NewSnapshot(c.Placed(), c.Nodes)
	return nil
}

func anys[T any](list []T) []any {
	out := make([]any, len(list))
	for i := range list {
		out[i] = list[i]
	}
	return out
}

// Ruling is what the scheduler says of a pod and a node.
type Ruling struct {
	Fits    bool
	Plugin  string
	Reasons []string
}

// Judge runs PreEnqueue and PreFilter once for the pod, and Filter for every node, with and without the pods that are
// nominated to it. The rulings are by node name.
func (s *Scheduler) Judge(ctx context.Context, pod *corev1.Pod, nodes []*corev1.Node) (map[string]Ruling, error) {
	rulings := make(map[string]Ruling, len(nodes))
	state := framework.NewCycleState()
	var result *fwk.PreFilterResult
	status := s.admit(ctx, pod)
	if status.IsSuccess() {
		result, status, _ = s.framework.RunPreFilterPlugins(ctx, state, pod)
	}
	for _, n := range nodes {
		if !status.IsSuccess() {
			rulings[n.Name] = ruling(status)
			continue
		}
		if !result.AllNodes() && !namesNode(result.NodeNames, n.Name) {
			rulings[n.Name] = Ruling{Plugin: "PreFilter"}
			continue
		}
		info, err := s.lister.NodeInfos().Get(n.Name)
		if err != nil {
			return nil, fmt.Errorf("find node %s: %w", n.Name, err)
		}
		rulings[n.Name] = ruling(s.framework.RunFilterPluginsWithNominatedPods(ctx, state, pod, info))
	}
	return rulings, nil
}

// admit says whether the pod enters the queue of pods to schedule.
func (s *Scheduler) admit(ctx context.Context, pod *corev1.Pod) *fwk.Status {
	for _, plugin := range s.framework.PreEnqueuePlugins() {
		if status := plugin.PreEnqueue(ctx, pod); !status.IsSuccess() {
			return status.WithPlugin(plugin.Name())
		}
	}
	return nil
}

func namesNode(names sets.Set[string], name string) bool { return names.Has(name) }

func ruling(status *fwk.Status) Ruling {
	if status.IsSuccess() {
		return Ruling{Fits: true}
	}
	reasons := slices.Clone(status.Reasons())
	slices.Sort(reasons)
	return Ruling{Plugin: status.Plugin(), Reasons: reasons}
}
