// Package oracle tests internal/placement against the real kube-scheduler on random clusters. It runs the Filter plugins
// of k8s.io/kubernetes in this process on the scheduler's own snapshot. Placement must agree with them for each pod and
// node.
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

// Scheduler is kube-scheduler's framework with its default plugins and feature gates. Its listers are filled directly,
// one cluster after the other. It is not safe for concurrent use.
type Scheduler struct {
	framework framework.Framework
	factory   informers.SharedInformerFactory
	lister    *snapshotLister
	devices   *deviceManager
	nominator nominator
}

// deviceManager gives the plugins device classes, but no devices.
type deviceManager struct {
	*dynamicresources.DefaultDRAManager
}

func (d *deviceManager) ResourceSlices() fwk.ResourceSliceLister { return d }
func (d *deviceManager) ListWithDeviceTaintRules() ([]*resourcev1.ResourceSlice, error) {
	return nil, nil
}

// replaceClasses replaces the manager's device classes, as its informer would.
func (d *deviceManager) replaceClasses(before []any, classes []*resourcev1.DeviceClass) error {
	known, ok := d.DeviceClassResolver().(cache.ResourceEventHandler)
	if !ok {
		return fmt.Errorf("%T does not accept device classes", d.DeviceClassResolver())
	}
	for _, class := range before {
		known.OnDelete(class)
	}
	for _, class := range classes {
		known.OnAdd(class, true)
	}
	return nil
}

// nominator holds the nominated pods by node name.
type nominator map[string][]fwk.PodInfo

func (n nominator) AddNominatedPod(klog.Logger, fwk.PodInfo, *fwk.NominatingInfo) {}
func (n nominator) DeleteNominatedPodIfExists(*corev1.Pod)                        {}
func (n nominator) UpdateNominatedPod(klog.Logger, *corev1.Pod, fwk.PodInfo)      {}
func (n nominator) NominatedPodsForNode(name string) []fwk.PodInfo                { return n[name] }

// replaceNominatedPods adds the pods that the scheduler's queue would hold as nominated.
func (n nominator) replaceNominatedPods(c *placementtest.Cluster) {
	clear(n)
	for _, p := range c.PendingPods() {
		if name := p.Status.NominatedNodeName; name != "" && cmp.Or(p.Spec.SchedulerName, corev1.DefaultSchedulerName) == corev1.DefaultSchedulerName {
			info, _ := framework.NewPodInfo(p) // the queue holds the pod even if a selector cannot be parsed
			n[name] = append(n[name], info)
		}
	}
}

// snapshotLister gives the plugins the snapshot of the loaded cluster.
type snapshotLister struct{ *schedulercache.Snapshot }

func (l *snapshotLister) NodeInfos() fwk.NodeInfoLister           { return l.Snapshot.NodeInfos() }
func (l *snapshotLister) StorageInfos() fwk.StorageInfoLister     { return l.Snapshot.StorageInfos() }
func (l *snapshotLister) PodGroupStates() fwk.PodGroupStateLister { return l.Snapshot.PodGroupStates() }

// NewScheduler builds the framework. Its goroutines end with the context.
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
		factory: factory, lister: &snapshotLister{schedulercache.NewEmptySnapshot()}, nominator: nominator{},
		devices: &deviceManager{dynamicresources.NewDRAManager(ctx, claims, nil, factory)},
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

// LoadCluster sets the cluster for Judge.
func (s *Scheduler) LoadCluster(c *placementtest.Cluster) error {
	core, storage, classes := s.factory.Core().V1(), s.factory.Storage().V1(), s.factory.Resource().V1().DeviceClasses().Informer().GetIndexer()
	if err := s.devices.replaceClasses(classes.List(), c.DeviceClasses); err != nil {
		return err
	}
	fill := []struct {
		indexer cache.Indexer
		objects []any
	}{
		{core.Namespaces().Informer().GetIndexer(), toAnySlice(c.Namespaces)},
		{core.Nodes().Informer().GetIndexer(), toAnySlice(c.Nodes)},
		{core.PersistentVolumeClaims().Informer().GetIndexer(), toAnySlice(c.Claims)},
		{core.PersistentVolumes().Informer().GetIndexer(), toAnySlice(c.Volumes)},
		{storage.StorageClasses().Informer().GetIndexer(), toAnySlice(c.StorageClasses)},
		{storage.CSINodes().Informer().GetIndexer(), toAnySlice(c.CSINodes)},
		{storage.CSIDrivers().Informer().GetIndexer(), toAnySlice(c.CSIDrivers)},
		{storage.VolumeAttachments().Informer().GetIndexer(), toAnySlice(c.Attachments)},
		{storage.CSIStorageCapacities().Informer().GetIndexer(), toAnySlice(c.Capacities)},
		{classes, toAnySlice(c.DeviceClasses)},
	}
	for _, f := range fill {
		if err := f.indexer.Replace(f.objects, ""); err != nil {
			return fmt.Errorf("fill a lister: %w", err)
		}
	}
	s.nominator.replaceNominatedPods(c)
	s.lister.Snapshot = schedulercache.NewSnapshot(c.PlacedPods(), c.Nodes)
	return nil
}

func toAnySlice[T any](list []T) []any {
	out := make([]any, len(list))
	for i := range list {
		out[i] = list[i]
	}
	return out
}

// Ruling is the scheduler's result for a pod and a node.
type Ruling struct {
	Fits    bool
	Plugin  string
	Reasons []string
}

// JudgePod runs PreEnqueue and PreFilter once for the pod. It runs Filter for every node, with and without the node's
// nominated pods. It returns the rulings by node name.
func (s *Scheduler) JudgePod(ctx context.Context, pod *corev1.Pod, nodes []*corev1.Node) (map[string]Ruling, error) {
	rulings := make(map[string]Ruling, len(nodes))
	state := framework.NewCycleState()
	var result *fwk.PreFilterResult
	status := s.runPreEnqueue(ctx, pod)
	if status.IsSuccess() {
		result, status, _ = s.framework.RunPreFilterPlugins(ctx, state, pod)
	}
	for _, n := range nodes {
		if !status.IsSuccess() {
			rulings[n.Name] = toRuling(status)
			continue
		}
		if !result.AllNodes() && !setHas(result.NodeNames, n.Name) {
			rulings[n.Name] = Ruling{Plugin: "PreFilter"}
			continue
		}
		info, err := s.lister.NodeInfos().Get(n.Name)
		if err != nil {
			return nil, fmt.Errorf("find node %s: %w", n.Name, err)
		}
		rulings[n.Name] = toRuling(s.framework.RunFilterPluginsWithNominatedPods(ctx, state, pod, info))
	}
	return rulings, nil
}

// runPreEnqueue returns whether the pod may enter the scheduling queue.
func (s *Scheduler) runPreEnqueue(ctx context.Context, pod *corev1.Pod) *fwk.Status {
	for _, plugin := range s.framework.PreEnqueuePlugins() {
		if status := plugin.PreEnqueue(ctx, pod); !status.IsSuccess() {
			return status.WithPlugin(plugin.Name())
		}
	}
	return nil
}

func setHas(names sets.Set[string], name string) bool { return names.Has(name) }

func toRuling(status *fwk.Status) Ruling {
	if status.IsSuccess() {
		return Ruling{Fits: true}
	}
	reasons := slices.Clone(status.Reasons())
	slices.Sort(reasons)
	return Ruling{Plugin: status.Plugin(), Reasons: reasons}
}
