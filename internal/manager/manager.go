package manager

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/pprof"
	"sync/atomic"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/klog/v2"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/config"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/metrics"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"github.com/slipway-dev/slipway/api/v1alpha1"
	"github.com/slipway-dev/slipway/internal/kubeapi"
	"github.com/slipway-dev/slipway/internal/observe"
	"github.com/slipway-dev/slipway/internal/retirement"
)

// leaseName is the Lease that managers compete for.
const leaseName = "slipway-manager"

// sweepEvery is the time between two looks for nodes that a forgotten retirement holds.
const sweepEvery = 10 * time.Minute

// Run manages the cluster until ctx ends. The version is told to the API server as part of the user agent.
func Run(ctx context.Context, c Config, version string, stderr io.Writer) error {
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
	providers, err := loadClouds(c.CloudConfig, c.Clouds, log)
	if err != nil {
		return err
	}
	kube, err := restConfig(c.Kubeconfig, "slipway-manager/"+version)
	if err != nil {
		return err
	}
	m, err := newManager(ctx, c, kube)
	if err != nil {
		return err
	}
	api, err := liveAPI(c.Kubeconfig, "slipway-manager/"+version)
	if err != nil {
		return err
	}
	groups := &Groups{Reader: m.GetClient(), File: c.NodeGroups, Given: c.Given, Log: log}
	if err := groups.Refresh(); err != nil {
		return err
	}
	counters, err := retirement.NewMetrics(metrics.Registry)
	if err != nil {
		return err
	}
	if err := metrics.Registry.Register(retirement.Present{Reader: m.GetClient()}); err != nil {
		return err
	}
	r := retirement.New(retirement.Options{
		Client: m.GetClient(), Live: m.GetAPIReader(), API: api, Groups: groups, Clouds: providers,
		Events: m.GetEventRecorder("slipway"), Metrics: counters, Log: log, TTL: c.RetirementTTL,
		Pace: retirement.Pace{Poll: c.PollInterval, Cloud: c.CloudPoll, Retry: c.RetryInterval},
	})
	if err := r.Register(ctx, m); err != nil {
		return err
	}
	if err := m.Add(&retirement.Sweeper{
		Nodes: m.GetClient(), Records: m.GetAPIReader(), API: api, Every: sweepEvery, Log: log,
	}); err != nil {
		return err
	}
	if err := addNodeGroups(m, c, groups, providers, api, metrics.Registry, log); err != nil {
		return err
	}
	if err := addAutoscaler(m, c, kube, groups, providers, metrics.Registry, log); err != nil {
		return err
	}
	log.Info("managing the cluster", "version", version, "clouds", len(providers), "selector", c.Selector)
	return m.Start(ctx)
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
func newManager(ctx context.Context, c Config, kube *rest.Config) (manager.Manager, error) {
	scheme := runtime.NewScheme()
	if err := errors.Join(corev1.AddToScheme(scheme), v1alpha1.AddToScheme(scheme)); err != nil {
		return nil, err
	}
	if c.InstallCRDs {
		installer, err := client.New(kube, client.Options{Scheme: scheme})
		if err != nil {
			return nil, err
		}
		if err := installCRDs(ctx, installer); err != nil {
			return nil, err
		}
	}
	ready := &atomic.Bool{}
	listen := c.Listen
	if listen == "" {
		listen = "0"
	}
	renew := c.LeaseDuration * 2 / 3
	retry := c.LeaseDuration / 6
	m, err := ctrl.NewManager(kube, ctrl.Options{
		Scheme:                        scheme,
		Cache:                         cacheOptions(c),
		Metrics:                       metricsserver.Options{BindAddress: listen, ExtraHandlers: handlers(c.Profiling, ready)},
		LeaderElection:                c.LeaderElect,
		LeaderElectionID:              leaseName,
		LeaderElectionNamespace:       c.LeaderElectionNamespace,
		LeaderElectionReleaseOnCancel: true,
		LeaseDuration:                 &c.LeaseDuration, RenewDeadline: &renew, RetryPeriod: &retry,
		Controller: config.Controller{SkipNameValidation: new(true)},
	})
	if err != nil {
		return nil, fmt.Errorf("manager: %w", err)
	}
	return m, m.Add(synced{ready})
}

// synced notes that the caches are there: a manager begins its Runnables after that.
type synced struct{ ready *atomic.Bool }

// NeedLeaderElection implements manager.LeaderElectionRunnable: one that waits to lead is ready too.
func (synced) NeedLeaderElection() bool { return false }

// Start implements manager.Runnable.
func (s synced) Start(ctx context.Context) error {
	s.ready.Store(true)
	<-ctx.Done()
	return nil
}

// cacheOptions keep of each object what is read from the cache.
func cacheOptions(c Config) cache.Options {
	return cache.Options{
		DefaultTransform: cache.TransformStripManagedFields(),
		ByObject: map[client.Object]cache.ByObject{
			&v1alpha1.NodeRetirement{}: {Label: c.parsedSelector},
			&corev1.Node{}:             {Transform: trimNode},
			&corev1.Pod{}:              unfinishedPods(),
		},
	}
}

// trimNode drops what nobody reads: images and volumes alone are most of a Node.
func trimNode(o any) (any, error) {
	n, ok := o.(*corev1.Node)
	if !ok {
		return o, nil
	}
	n.ManagedFields = nil
	n.Status.Images, n.Status.VolumesInUse, n.Status.VolumesAttached = nil, nil, nil
	n.Status.NodeInfo, n.Status.Addresses, n.Status.Config = corev1.NodeSystemInfo{}, nil, nil
	return n, nil
}

func handlers(profiling bool, ready *atomic.Bool) map[string]http.Handler {
	say := func(w http.ResponseWriter, code int, text string) {
		w.WriteHeader(code)
		_, _ = io.WriteString(w, text+"\n")
	}
	all := map[string]http.Handler{
		"/healthz": http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { say(w, http.StatusOK, "ok") }),
		"/readyz": http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			if !ready.Load() {
				say(w, http.StatusServiceUnavailable, "the cluster has not been read yet")
				return
			}
			say(w, http.StatusOK, "ok")
		}),
	}
	if profiling {
		all["/debug/pprof/"] = http.HandlerFunc(pprof.Index)
		all["/debug/pprof/profile"] = http.HandlerFunc(pprof.Profile)
	}
	return all
}
