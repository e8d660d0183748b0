package manager

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/kubernetes"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/manager"

	"github.com/slipway-dev/slipway/internal/cloud"
	"github.com/slipway-dev/slipway/internal/cloud/advice"
	"github.com/slipway-dev/slipway/internal/nodegroup"
	"github.com/slipway-dev/slipway/internal/orphans"
	"github.com/slipway-dev/slipway/internal/provisioning"
	"github.com/slipway-dev/slipway/internal/provisioning/analyzers"
	"github.com/slipway-dev/slipway/internal/provisioning/launch"
	"github.com/slipway-dev/slipway/internal/provisioning/plan"
	"github.com/slipway-dev/slipway/internal/provisioning/replacement"
	"github.com/slipway-dev/slipway/internal/retirement"
)

// claimCleanupInterval is the pause between two cleanups of stale cordon claims. A node with a stale claim counts
// against the disruption budgets of its group, so other retirements would wait.
const claimCleanupInterval = time.Minute

// components holds a manager and everything that its components share.
type components struct {
	manager.Manager
	Process
	sharedWatches
	config         Config
	groups         *GroupSource
	clouds         map[string]cloud.Provider
	launches       *launch.Record
	launchRequests *provisioning.LaunchRequests
	counters       partMetrics
	// provisioning is set when its controller is added.
	provisioning *provisioning.Controller
}

// assembleManager creates a manager with all components. After an error the caller may call it again.
func assembleManager(ctx context.Context, c Config, in Process, clouds map[string]cloud.Provider, counters partMetrics, ready *readiness) (manager.Manager, error) {
	m, err := newManager(ctx, c, in, ready)
	if err != nil {
		return nil, err
	}
	watches, err := startWatches(ctx, m, in.Log)
	if err != nil {
		return nil, err
	}
	a := &components{
		Manager: m, Process: in, sharedWatches: watches, config: c, clouds: clouds, counters: counters,
		groups: &GroupSource{
			Reader: m.GetClient(), File: c.NodeGroups, ExtraGroups: c.ExtraGroups, Log: in.Log, Selector: c.parsedSelector, metrics: counters.groups,
		},
		launches: launch.NewRecord(m.GetAPIReader(), m.GetClient()).UseConfigMaps(m.GetClient(), c.ownNamespace()), launchRequests: provisioning.NewLaunchRequests(),
	}
	for _, add := range []func(context.Context) error{
		a.addRetirementController, a.addReplacementController, a.addNodeGroupController, a.addCASSyncIfConfigured, a.addProvisioningController, a.addPodEventAnalyzers, a.addOrphanControllers,
		a.addUnselectedRetirementReport,
	} {
		if err := add(ctx); err != nil {
			return nil, err
		}
	}
	return m, nil
}

func (a *components) addRetirementController(ctx context.Context) error {
	c := &a.config
	surges, err := a.newSurges()
	if err != nil {
		return err
	}
	r := retirement.New(retirement.Options{
		Client: a.GetClient(), LiveReader: a.GetAPIReader(), API: a.API, EvictionRequests: a.API, Groups: a.groups, Selector: c.parsedSelector, Clouds: a.clouds,
		Events: a.GetEventRecorder("slipway"), Metrics: a.counters.retirement, Log: a.Log, TTL: c.RetirementTTL,
		Intervals: retirement.Intervals{Poll: c.PollInterval, CloudPoll: c.CloudPollInterval, DeletionRetry: c.RetryInterval}, SystemLocalStorage: c.SystemLocalStorage,
		NewSurger: surges.newSurger,
	})
	if err := r.Register(ctx, a); err != nil {
		return err
	}
	if err := a.Add(surges); err != nil {
		return err
	}
	return a.Add(&retirement.StaleCordonCleaner{Nodes: a.GetClient(), Retirements: a.GetAPIReader(), API: a.API, Interval: claimCleanupInterval, Log: a.Log})
}

// maxNoticePoll is the longest pause between two polls of a cloud about a node with a notice. A notice may leave only
// 30 s.
const maxNoticePoll = 2 * time.Second

// addReplacementController adds the controller that launches a replacement for each instance that its cloud takes away.
// The controller watches the cluster from the start, because a notice may leave only 30 s.
func (a *components) addReplacementController(ctx context.Context) error {
	if _, err := a.GetCache().GetInformer(ctx, &corev1.Namespace{}); err != nil {
		return fmt.Errorf("watching Namespaces: %w", err)
	}
	c := &a.config
	return replacement.New(replacement.Options{
		Client: a.GetClient(), APIReader: a.GetAPIReader(), Groups: a.groups, Selector: c.parsedSelector, Clouds: a.clouds, Launches: a.launches,
		Placement: replacement.ClusterPlacement{Cached: a.GetClient(), Live: a.GetAPIReader(), Pods: a.pods},
		Events:    a.GetEventRecorder("slipway"), Metrics: a.counters.replacement, ReportCall: a.counters.retirement.RecordCloudRequest, Log: a.Log,
		Intervals: replacement.Intervals{Retry: min(c.PollInterval, maxNoticePoll), CloudRead: c.CloudPollInterval, SettleTime: c.LaunchSettleTime},
	}).Register(a)
}

func (a *components) addNodeGroupController(context.Context) error {
	owner := nodegroup.New(nodegroup.Options{
		Client: a.GetClient(), Pods: a.pods, API: a.API, Groups: a.groups, Clouds: a.clouds, Events: a.GetEventRecorder("slipway"),
		Metrics: a.counters.nodegroup, Log: a.Log, Selector: a.config.parsedSelector, Interval: a.config.GroupPollInterval,
	})
	a.groups.Status = owner.FileGroupStatus
	return owner.Register(a)
}

// addCASSyncIfConfigured adds the synchronization with AKS's cluster autoscaler, if the configuration has one.
func (a *components) addCASSyncIfConfigured(context.Context) error {
	sync := findCASSync(a.clouds)
	if sync == nil {
		return nil
	}
	return a.Add(casSyncRunner{sync, a.GetCache(), a.counters.casSync})
}

// addProvisioningController adds the controller that launches instances for unschedulable pods, and retires underutilized nodes.
func (a *components) addProvisioningController(context.Context) error {
	kube, err := kubernetes.NewForConfig(a.Kube)
	if err != nil {
		return fmt.Errorf("client of the autoscaler: %w", err)
	}
	c := &a.config
	var maxNodes *int
	if c.MaxNodes > 0 {
		maxNodes = &c.MaxNodes
	}
	a.provisioning = provisioning.New(provisioning.Options{
		Client: a.GetClient(), Launches: a.launches, Informers: a.informers, Pods: a.pods, WatchCluster: a.cluster.watch, Kube: kube, Groups: a.groups, Clouds: a.clouds,
		Events: a.GetEventRecorder("slipway"), LaunchRequests: a.launchRequests, Metrics: a.counters.autoscaler, Log: a.Log, Selector: c.parsedSelector, MaxNodes: maxNodes,
		UnreadyLimit: plan.UnreadyLimit{Percent: c.MaxUnreadyPercentage, AtLeast: c.OKUnreadyCount}, Debounce: c.ScaleUpDebounce, Interval: c.ScalePollInterval, SettleTime: c.LaunchSettleTime,
	})
	return a.Add(a.provisioning)
}

// templates returns the instance templates of a group, see [provisioning.Controller.Templates].
func (a *components) templates(group string) ([]plan.Template, bool) {
	return a.provisioning.Templates(group)
}

// addPodEventAnalyzers adds a controller that passes Events about pods to each cloud that analyzes them.
func (a *components) addPodEventAnalyzers(context.Context) error {
	var found []advice.Analyzer
	for _, name := range slices.Sorted(maps.Keys(a.clouds)) {
		if analyzer, ok := a.clouds[name].(advice.Analyzer); ok {
			found = append(found, analyzer)
		}
	}
	if len(found) == 0 {
		return nil
	}
	kube, err := kubernetes.NewForConfig(a.Kube)
	if err != nil {
		return fmt.Errorf("client of the pod event analyzers: %w", err)
	}
	return a.Add(analyzers.New(analyzers.Options{
		Kube: kube, Client: a.GetClient(), Groups: a.groups, Analyzers: found, LaunchRequests: a.launchRequests, Metrics: a.counters.analyzers, Log: a.Log,
		Selector: a.config.parsedSelector,
	}))
}

// groupPollsPerOrphanScan is the number of polls of the groups for each scan for orphans. A scan reads every Node, so
// it is done less often.
const groupPollsPerOrphanScan = 5

// addOrphanControllers adds a controller for each cloud that can identify orphaned instances or orphaned Nodes.
func (a *components) addOrphanControllers(context.Context) error {
	for _, p := range a.clouds {
		controller := orphans.NewIfSupported(p, orphans.Options{
			Client: a.GetClient(), LiveReader: a.GetAPIReader(), Groups: a.groups, Selector: a.config.parsedSelector, DeleteOrphans: a.config.Orphans == DeleteOrphans,
			GracePeriod: orphans.DefaultGracePeriod(), ScanInterval: groupPollsPerOrphanScan * a.config.GroupPollInterval, Events: a.GetEventRecorder("slipway"),
			Metrics: a.counters.orphans, Log: a.Log.With("cloud", p.Name()),
		})
		if controller == nil {
			continue
		}
		if err := a.Add(controller); err != nil {
			return err
		}
	}
	return nil
}

// registerStateMetrics registers the metrics with values that each scrape reads from the caches. They have no values until
// elected is closed.
func registerStateMetrics(r prometheus.Registerer, reader client.Reader, elected <-chan struct{}) error {
	return errors.Join(r.Register(leaderCollector{retirement.StateCollector{Reader: reader}, elected}),
		r.Register(leaderCollector{replacement.StateCollector{Reader: reader}, elected}))
}

// leaderCollector collects nothing until elected is closed. Every replica has the caches. If each of them exported the same
// objects, sums would count each object several times, and alerts would fire several times.
type leaderCollector struct {
	prometheus.Collector

	elected <-chan struct{}
}

// Collect implements prometheus.Collector.
func (c leaderCollector) Collect(to chan<- prometheus.Metric) {
	select {
	case <-c.elected:
		c.Collector.Collect(to)
	default:
	}
}
