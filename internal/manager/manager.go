package manager

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"runtime/debug"
	"time"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	resourcev1 "k8s.io/api/resource/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/klog/v2"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/config"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/metrics"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"github.com/slipway-dev/slipway/api/v1alpha1"
	"github.com/slipway-dev/slipway/internal/kubeapi"
	"github.com/slipway-dev/slipway/internal/nodegroup"
	"github.com/slipway-dev/slipway/internal/observe"
	"github.com/slipway-dev/slipway/internal/orphans"
	"github.com/slipway-dev/slipway/internal/provisioning"
	"github.com/slipway-dev/slipway/internal/provisioning/advised"
	"github.com/slipway-dev/slipway/internal/provisioning/replacement"
	"github.com/slipway-dev/slipway/internal/retirement"
)

// leaseName is the Lease that managers compete for.
const leaseName = "slipway-manager"

// spareHeap is how much a heap may grow between two collections, in percent of what is in use. Nearly all of a manager's
// memory is its caches, which live as long as it does: Go's 100 would take as much again for next to no garbage.
const spareHeap = 50

// Run manages the cluster until ctx ends. The version is told to the API server as part of the user agent. It sets the
// process's garbage collection, unless GOGC does.
func Run(ctx context.Context, c Config, version string, stderr io.Writer) error {
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(spareHeap)
	}
	if err := c.Validate(); err != nil {
		return err
	}
	log, err := observe.Logger(stderr, c.LogFormat, c.LogLevel)
	if err != nil {
		return err
	}
	bridged := logr.FromSlogHandler(log.Handler())
	ctrl.SetLogger(bridged)
	klog.SetLogger(bridged)
	userAgent := "slipway-manager/" + version
	kube, err := restConfig(c.Kubeconfig, userAgent)
	if err != nil {
		return err
	}
	api, err := liveAPI(c.Kubeconfig, userAgent)
	if err != nil {
		return err
	}
	return RunIn(ctx, c, Process{Kube: kube, API: api, Metrics: metrics.Registry, Log: log})
}

// Process is what a manager shares with the process that it runs in. All fields are required.
type Process struct {
	// Kube and API reach the API server: for the caches and records, and for what reads past the caches and evicts.
	Kube *rest.Config
	API  *kubeapi.Client
	// Metrics takes the manager's own metrics. Those of controller-runtime are in its global registry, which is what
	// Config.Listen serves.
	Metrics prometheus.Registerer
	Log     *slog.Logger
}

// RunIn is Run for a process that has set up everything that a process has but once. Any number of managers may run in
// one process, each with Metrics of its own; at most one of them may have a Config.Listen.
func RunIn(ctx context.Context, c Config, in Process) error {
	if err := c.Validate(); err != nil {
		return err
	}
	log, ready := in.Log, newReadiness()
	if err := (&Groups{File: c.NodeGroups, Log: log}).Refresh(); err != nil {
		return err
	}
	all, err := newCounters(in.Metrics)
	if err != nil {
		return err
	}
	if err := serve(ctx, c, ready, log); err != nil {
		return err
	}
	if err := c.findClouds(ctx, ready); err != nil {
		if ctx.Err() != nil {
			return nil // it was told to end, and does in good order
		}
		return err
	}
	openStack := &openStack{kube: in.Kube, log: log}
	clouds, err := loadClouds(c.CloudConfig, c.Clouds, openStack.open, log) //nolint:contextcheck // they are open until closeClouds
	if err != nil {
		return err
	}
	defer closeClouds(clouds)
	if casSyncOf(clouds) != nil {
		if all.casSync, err = newCASSyncMetrics(in.Metrics); err != nil {
			return err
		}
	}
	var m manager.Manager
	if err := begin(ctx, log, ready, func(ctx context.Context) (err error) {
		m, err = assemble(ctx, c, in, clouds, all, ready)
		return err
	}); err != nil {
		if ctx.Err() != nil {
			return nil // it was told to end, and does in good order
		}
		return err
	}
	if err := present(in.Metrics, m.GetClient()); err != nil {
		return err
	}
	if err := m.Add(openStack); err != nil {
		return err
	}
	log.Info("managing the cluster", "as", in.Kube.UserAgent, "clouds", len(clouds), "selector", c.Selector)
	return start(ctx, m, ready.read)
}

// start is m.Start, which when ctx ends before the caches are there does not return, and is busy with waiting for them
// (sigs.k8s.io/controller-runtime v0.24.1, pkg/manager/runnable_group.go). It is left waiting then, and ends should the
// API server ever answer.
func start(ctx context.Context, m manager.Manager, ready <-chan struct{}) error {
	work, stop := context.WithCancel(context.WithoutCancel(ctx))
	ended := make(chan error, 1)
	go func() {
		defer stop()
		ended <- m.Start(work)
	}()
	go func() {
		<-ctx.Done()
		select {
		case <-ready:
			stop()
		case <-work.Done():
		}
	}()
	select {
	case err := <-ended:
		return err
	case <-ctx.Done():
	}
	select {
	case <-ready:
		return <-ended
	default:
		return nil
	}
}

// counters are the metrics of the parts.
type counters struct {
	retirement  *retirement.Metrics
	replacement *replacement.Metrics
	groups      *groupMetrics
	nodegroup   *nodegroup.Metrics
	autoscaler  *provisioning.Metrics
	orphans     *orphans.Metrics
	advised     *advised.Metrics
	casSync     *casSyncMetrics // nil where no cloud is configured for it
}

// RegisterMetrics registers all metrics of a manager, of which those of the present are read from reader. A manager does that
// by itself; this is for who wants to know which there are.
func RegisterMetrics(r prometheus.Registerer, reader client.Reader) error {
	if _, err := newCounters(r); err != nil {
		return err
	}
	if _, err := newCASSyncMetrics(r); err != nil {
		return err
	}
	return present(r, reader)
}

func newCounters(r prometheus.Registerer) (c counters, err error) {
	if c.retirement, err = retirement.NewMetrics(r); err != nil {
		return c, err
	}
	if c.replacement, err = replacement.NewMetrics(r); err != nil {
		return c, err
	}
	if c.groups, err = newGroupMetrics(r); err != nil {
		return c, err
	}
	if c.nodegroup, err = nodegroup.NewMetrics(r); err != nil {
		return c, err
	}
	if c.autoscaler, err = provisioning.NewMetrics(r); err != nil {
		return c, err
	}
	if c.orphans, err = orphans.NewMetrics(r); err != nil {
		return c, err
	}
	c.advised, err = advised.NewMetrics(r)
	return c, err
}

func restConfig(path, userAgent string) (*rest.Config, error) {
	kube, err := clientcmd.BuildConfigFromFlags("", path)
	if path == "" {
		kube, err = rest.InClusterConfig()
	}
	if err != nil {
		return nil, fmt.Errorf("--kubeconfig: %w", err)
	}
	kube.UserAgent = userAgent
	kube.QPS = -1 // priority and fairness on the other side is there for that
	return kube, nil
}

// liveAPI is the client of what reads past the caches, and evicts.
func liveAPI(path, userAgent string) (*kubeapi.Client, error) {
	kube, err := kubeapi.LoadConfig(path)
	if err != nil {
		return nil, err
	}
	return kube.Connect(userAgent)
}

// newManager makes the caches, the leader election and the server, and installs the types first where asked, since the
// caches cannot begin without them.
func newManager(ctx context.Context, c Config, in Process, ready *readiness) (manager.Manager, error) {
	scheme := runtime.NewScheme()
	if err := errors.Join(corev1.AddToScheme(scheme), appsv1.AddToScheme(scheme), policyv1.AddToScheme(scheme),
		resourcev1.AddToScheme(scheme), storagev1.AddToScheme(scheme), v1alpha1.AddToScheme(scheme)); err != nil {
		return nil, refusal{err}
	}
	if c.InstallCRDs {
		installer, err := client.New(bounded(in.Kube), client.Options{Scheme: scheme})
		if err != nil {
			return nil, err
		}
		if c.InstallUnasked {
			err = installUnasked(ctx, installer, in.Log)
		} else if err = installCRDs(ctx, installer, in.Log); err != nil {
			err = fmt.Errorf("--install-crds: %w", err)
		}
		if err != nil {
			return nil, err
		}
	}
	if err := reach(in.Kube); err != nil {
		return nil, err
	}
	renew := c.LeaseDuration * 2 / 3
	retry := c.LeaseDuration / 6
	lock, err := newLeaderLock(c, in.Kube, renew, in.Log)
	if err != nil {
		return nil, fmt.Errorf("manager: %w", err)
	}
	options := ctrl.Options{
		Scheme:                        scheme,
		Logger:                        logr.FromSlogHandler(in.Log.Handler()),
		Cache:                         cacheOptions(c),
		Metrics:                       metricsserver.Options{BindAddress: "0"}, // serve does that
		LeaderElection:                c.LeaderElect,
		LeaderElectionID:              cmp.Or(c.LeaseName, leaseName),
		LeaderElectionReleaseOnCancel: true,
		LeaseDuration:                 &c.LeaseDuration, RenewDeadline: &renew, RetryPeriod: &retry,
		// An API server that is away for long is no reason to end.
		Controller: config.Controller{SkipNameValidation: new(true), CacheSyncTimeout: syncTime},
	}
	if lock != nil {
		options.LeaderElectionResourceLockInterface = lock
	}
	m, err := ctrl.NewManager(in.Kube, options)
	if err != nil {
		return nil, fmt.Errorf("manager: %w", err)
	}
	if lock != nil {
		lock.LockConfig.EventRecorder = m.GetEventRecorderFor(lock.Identity()) //nolint:staticcheck // what a Lease takes
	}
	return m, m.Add(synced{ready})
}

// syncTime is more than any cache takes to be filled.
const syncTime = 1000 * time.Hour

// synced notes that the caches are there: a manager begins its Runnables after that.
type synced struct{ ready *readiness }

// NeedLeaderElection implements manager.LeaderElectionRunnable: one that waits to lead is ready too.
func (synced) NeedLeaderElection() bool { return false }

// Start implements manager.Runnable.
func (s synced) Start(ctx context.Context) error {
	s.ready.done()
	<-ctx.Done()
	return nil
}
