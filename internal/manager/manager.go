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
	"github.com/slipway-dev/slipway/internal/provisioning/analyzers"
	"github.com/slipway-dev/slipway/internal/provisioning/replacement"
	"github.com/slipway-dev/slipway/internal/retirement"
)

// leaseName is the name of the leader election's Lease, unless the configuration sets another.
const leaseName = "slipway-manager"

// gcPercent is by how many percent the heap may grow between two garbage collections. Nearly all memory of a manager is
// its caches, which live as long as the process. Go's default of 100 would double the memory, although there is very
// little garbage.
const gcPercent = 50

// Run runs a manager until ctx ends. The user agent of its requests contains the version. Run also sets the garbage
// collection of the process, unless GOGC is set.
func Run(ctx context.Context, c Config, version string, stderr io.Writer) error {
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(gcPercent)
	}
	if err := c.Validate(); err != nil {
		return err
	}
	log, err := observe.NewLogger(stderr, c.LogFormat, c.LogLevel)
	if err != nil {
		return err
	}
	bridged := logr.FromSlogHandler(log.Handler())
	ctrl.SetLogger(bridged)
	klog.SetLogger(bridged)
	userAgent := "slipway-manager/" + version
	kube, err := newRESTConfig(c.Kubeconfig, userAgent)
	if err != nil {
		return err
	}
	api, err := newLiveAPI(c.Kubeconfig, userAgent)
	if err != nil {
		return err
	}
	return RunInProcess(ctx, c, Process{Kube: kube, API: api, Metrics: metrics.Registry, Log: log})
}

// Process has the connections, the metrics registry and the logger of the process that runs a manager. All fields are
// required.
type Process struct {
	// Kube connects caches and records. API connects live reads and evictions.
	Kube *rest.Config
	API  *kubeapi.Client
	// Metrics gets the manager's own metrics. Config.Listen serves the global registry of controller-runtime.
	Metrics prometheus.Registerer
	Log     *slog.Logger
}

// RunInProcess runs a manager until ctx ends, as Run does, but sets nothing that is global to the process. A process
// may run several managers, each with its own Metrics. At most one of them may set Config.Listen.
func RunInProcess(ctx context.Context, c Config, in Process) error {
	if err := c.Validate(); err != nil {
		return err
	}
	log, ready := in.Log, newReadiness()
	if err := (&GroupSource{File: c.NodeGroups, Log: log}).ReloadFileIfChanged(); err != nil {
		return err
	}
	all, err := newComponentMetrics(in.Metrics)
	if err != nil {
		return err
	}
	if err := startMetricsAndHealthServer(ctx, c, ready, log); err != nil {
		return err
	}
	if err := c.resolveClouds(ctx, ready); err != nil {
		if ctx.Err() != nil {
			return nil // a normal shutdown
		}
		return err
	}
	openStack := &openStackSetup{kube: in.Kube, log: log}
	clouds, err := newProviders(c.CloudConfig, c.Clouds, openStack.newProvider, log) //nolint:contextcheck // they are open until closeClouds
	if err != nil {
		return err
	}
	defer closeClouds(clouds)
	if findCASSync(clouds) != nil {
		if all.casSync, err = newCASSyncMetrics(in.Metrics); err != nil {
			return err
		}
	}
	var m manager.Manager
	if err := retryUntilDone(ctx, log, ready, func(ctx context.Context) (err error) {
		m, err = assembleManager(ctx, c, in, clouds, all, ready)
		return err
	}); err != nil {
		if ctx.Err() != nil {
			return nil // a normal shutdown
		}
		return err
	}
	if err := registerStateMetrics(in.Metrics, m.GetClient(), m.Elected()); err != nil {
		return err
	}
	if err := m.Add(openStack); err != nil {
		return err
	}
	if c.Leading != nil {
		// A RunnableFunc runs only while the manager leads.
		if err := m.Add(manager.RunnableFunc(c.Leading)); err != nil {
			return err
		}
	}
	log.Info("managing the cluster", "as", in.Kube.UserAgent, "clouds", len(clouds), "selector", c.Selector)
	return runManager(ctx, m, ready.ready)
}

// runManager runs m.Start and returns when ctx ends. If ctx ends before the caches have synced, m.Start does not return
// (sigs.k8s.io/controller-runtime v0.25.2, pkg/manager/runnable_group.go). runManager then returns without it. m.Start
// ends in the background once the API server answers.
func runManager(ctx context.Context, m manager.Manager, ready <-chan struct{}) error {
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

// partMetrics holds the metrics of all components.
type partMetrics struct {
	retirement  *retirement.Metrics
	replacement *replacement.Metrics
	groups      *groupMetrics
	nodegroup   *nodegroup.Metrics
	autoscaler  *provisioning.Metrics
	orphans     *orphans.Metrics
	analyzers   *analyzers.Metrics
	casSync     *casSyncMetrics // nil if no cloud is configured for it
}

// RegisterMetrics registers all metrics of a manager, so that a tool can list them. A manager registers its metrics
// itself. Metrics of the current state are read from reader.
func RegisterMetrics(r prometheus.Registerer, reader client.Reader) error {
	if _, err := newComponentMetrics(r); err != nil {
		return err
	}
	if _, err := newCASSyncMetrics(r); err != nil {
		return err
	}
	elected := make(chan struct{})
	close(elected)
	return registerStateMetrics(r, reader, elected)
}

func newComponentMetrics(r prometheus.Registerer) (c partMetrics, err error) {
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
	c.analyzers, err = analyzers.NewMetrics(r)
	return c, err
}

func newRESTConfig(path, userAgent string) (*rest.Config, error) {
	kube, err := clientcmd.BuildConfigFromFlags("", path)
	if path == "" {
		kube, err = rest.InClusterConfig()
	}
	if err != nil {
		return nil, fmt.Errorf("--kubeconfig: %w", err)
	}
	kube.UserAgent = userAgent
	kube.QPS = -1 // the API server's priority and fairness limits requests
	return kube, nil
}

// newLiveAPI returns the client for reads without a cache and for evictions.
func newLiveAPI(path, userAgent string) (*kubeapi.Client, error) {
	kube, err := kubeapi.LoadConfig(path)
	if err != nil {
		return nil, err
	}
	return kube.NewClient(userAgent)
}

// newManager creates the manager with its caches, its leader election and its metrics server. If configured, it first
// installs Slipway's types, because the caches need them.
func newManager(ctx context.Context, c Config, in Process, ready *readiness) (manager.Manager, error) {
	scheme := runtime.NewScheme()
	if err := errors.Join(corev1.AddToScheme(scheme), appsv1.AddToScheme(scheme), policyv1.AddToScheme(scheme),
		resourcev1.AddToScheme(scheme), storagev1.AddToScheme(scheme), v1alpha1.AddToScheme(scheme)); err != nil {
		return nil, permanentError{err}
	}
	if c.InstallCRDs {
		installer, err := client.New(withRequestTimeout(in.Kube), client.Options{Scheme: scheme})
		if err != nil {
			return nil, err
		}
		if c.InstallCRDsByDefault {
			err = installCRDsIfAllowed(ctx, installer, in.Log)
		} else if err = installCRDs(ctx, installer, in.Log); err != nil {
			err = fmt.Errorf("--install-crds: %w", err)
		}
		if err != nil {
			return nil, err
		}
	}
	if err := checkTypesServed(in.Kube); err != nil {
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
		Cache:                         newCacheOptions(c),
		Metrics:                       metricsserver.Options{BindAddress: "0"}, // startMetricsAndHealthServer does that
		LeaderElection:                c.LeaderElect,
		LeaderElectionID:              cmp.Or(c.LeaseName, leaseName),
		LeaderElectionReleaseOnCancel: true,
		LeaseDuration:                 &c.LeaseDuration, RenewDeadline: &renew, RetryPeriod: &retry,
		// Do not exit after a long outage of the API server.
		Controller: config.Controller{SkipNameValidation: new(true), CacheSyncTimeout: cacheSyncTimeout},
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
	return m, m.Add(readyMarker{ready})
}

// cacheSyncTimeout is the timeout of the caches' first sync. It is so long that it never ends a start: the manager
// waits until the API server answers.
const cacheSyncTimeout = 1000 * time.Hour

// readyMarker marks the manager as ready. The manager calls its Start after the caches have synced.
type readyMarker struct{ ready *readiness }

// NeedLeaderElection implements manager.LeaderElectionRunnable. It returns false, because a manager that waits to lead
// counts as ready too.
func (readyMarker) NeedLeaderElection() bool { return false }

func (s readyMarker) Start(ctx context.Context) error {
	s.ready.markReady()
	<-ctx.Done()
	return nil
}
