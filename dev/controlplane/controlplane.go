// Package controlplane builds and runs a real Kubernetes control plane without containers or downloads. It compiles
// etcd, kube-apiserver, kube-controller-manager and kube-scheduler from their Go modules into a cache. It starts them as
// child processes on the loopback interface, with kwok, which emulates the kubelets.
//
// These parts are real: the API with validation, admission, RBAC, Node authorization, priority and fairness, audit log,
// eviction and disruption budgets; every controller; the scheduler. Machines and containers are emulated. A pod becomes
// Ready after some time and takes time to stop. It is killed at the end of its grace period, and stays unchanged if its
// machine loses power. Annotations on the pod set these times, see StopSecondsAnnotation.
//
// Several control planes can run at the same time. Unless Options.Detached is set, the processes end with the process
// that started them, even if that is killed.
package controlplane

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"sync"
	"time"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
)

// Options configures Start. The zero value means the default version, in a temporary directory, without nodes.
type Options struct {
	// Version is the Kubernetes minor version, one of Versions(). Empty means the value of SLIPWAY_KUBE_VERSION, or else
	// the newest.
	Version string
	// Dir is the directory of data, certificates, logs and kubeconfigs. It must be empty or not exist. Empty means a new
	// temporary directory, which Stop removes.
	Dir string
	// Detached lets the processes outlive the process that started them. Open finds them by Dir.
	Detached bool
	// Nodes are added before Start returns, see AddNodes.
	Nodes []NodeSpec
	// NodeMonitorGracePeriod is the time without heartbeat after which the node lifecycle controller sets Ready to
	// Unknown. Zero means 10 minutes, because heartbeats are late on a busy machine.
	NodeMonitorGracePeriod time.Duration
	// Flags are appended to the command lines by process name ("kube-apiserver"), so they override this package's flags.
	Flags map[string][]string
	// Progress receives a line when binaries must be compiled. Nil means standard error.
	Progress io.Writer
}

// See Options.NodeMonitorGracePeriod.
const defaultNodeMonitorGracePeriod = 10 * time.Minute

// bootAttempts limits the attempts of Start after another process took a port that was found free.
const bootAttempts = 5

// Cluster is a running control plane. Its methods may be called concurrently.
type Cluster struct {
	dir       string
	temporary bool
	etcdURL   string // URL of etcd; empty if another process has started it
	state     clusterState
	processes map[string]*Process
	config    *rest.Config
	client    *kubernetes.Clientset

	mu sync.Mutex // guards state and processes
}

// Start compiles missing binaries, starts a control plane and waits until it is ready. Then the API server and the
// scheduler are ready, the default ServiceAccount exists, and all nodes are Ready. The context limits the start, not the
// life of the control plane.
func Start(ctx context.Context, o Options) (*Cluster, error) {
	if err := o.applyDefaultsAndValidate(); err != nil {
		return nil, err
	}
	binaries, err := BuildBinaries(ctx, o.Version, o.Progress)
	if err != nil {
		return nil, err
	}
	for attempt := 1; ; attempt++ {
		c, err := bootCluster(ctx, o, binaries)
		if err == nil {
			return c, nil
		}
		if !errors.Is(err, ErrPortTaken) || attempt == bootAttempts {
			return nil, fmt.Errorf("starting a Kubernetes %s control plane: %w", o.Version, err)
		}
	}
}

// NewExternalCluster returns a Cluster for a control plane that this package does not run. It has no processes. Dir is for the files
// of callers.
func NewExternalCluster(config *rest.Config, dir string) (*Cluster, error) {
	version, err := ResolveVersion("")
	if err != nil {
		return nil, err
	}
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("making the administrator's client: %w", err)
	}
	return &Cluster{
		dir: dir, state: clusterState{Version: version, Host: config.Host}, processes: map[string]*Process{}, config: config, client: client,
	}, nil
}

// applyDefaultsAndValidate sets the defaults and validates the options.
func (o *Options) applyDefaultsAndValidate() error {
	version, err := ResolveVersion(o.Version)
	if err != nil {
		return err
	}
	o.Version = version
	if o.NodeMonitorGracePeriod == 0 {
		o.NodeMonitorGracePeriod = defaultNodeMonitorGracePeriod
	}
	if o.NodeMonitorGracePeriod < 0 {
		return fmt.Errorf("node monitor grace period %s, it must be positive", o.NodeMonitorGracePeriod)
	}
	for name := range o.Flags {
		if !isComponent(name) {
			return fmt.Errorf("flags for the process %q, known are %v", name, componentNames)
		}
	}
	if o.Progress == nil {
		o.Progress = os.Stderr
	}
	return nil
}

// bootCluster makes one attempt to start everything, and removes everything if it fails.
func bootCluster(ctx context.Context, o Options, binaries Binaries) (_ *Cluster, err error) {
	c := &Cluster{processes: map[string]*Process{}}
	if err := c.createDir(o.Dir); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, c.Stop())
			if !c.temporary {
				err = errors.Join(err, removeDirContents(c.dir))
			}
		}
	}()
	ports, err := reserveFreePorts(ctx, portCount)
	if err != nil {
		return nil, err
	}
	layout, err := c.writeConfigFiles(ports)
	if err != nil {
		return nil, err
	}
	c.state = clusterState{Version: o.Version, Detached: o.Detached, Host: layout.apiServerURL()}
	c.etcdURL = "https://" + loopbackAddress(layout.etcdClient)
	if err := c.createClients(); err != nil {
		return nil, err
	}
	if err := c.startComponents(ctx, layout.listCommands(o, binaries)); err != nil {
		return nil, err
	}
	if err := c.AddNodes(ctx, o.Nodes...); err != nil {
		return nil, err
	}
	return c, nil
}

func (c *Cluster) createDir(dir string) error {
	if dir == "" {
		made, err := os.MkdirTemp("", "slipway-dev-")
		if err != nil {
			return fmt.Errorf("making a directory for the control plane: %w", err)
		}
		c.dir, c.temporary = made, true
		return nil
	}
	dir, err := filepath.Abs(dir)
	if err != nil {
		return fmt.Errorf("directory of the control plane: %w", err)
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("making the directory of the control plane: %w", err)
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return fmt.Errorf("reading the directory of the control plane: %w", err)
	}
	if len(entries) != 0 {
		return fmt.Errorf("directory %s: %w", dir, ErrNotEmpty)
	}
	c.dir = dir
	return nil
}

// ErrNotEmpty is the error of Start if Options.Dir is not empty.
var ErrNotEmpty = errors.New("the control plane's directory must be empty or not exist")

// removeDirContents removes the files of a failed start from the caller's directory.
func removeDirContents(dir string) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return fmt.Errorf("emptying %s: %w", dir, err)
	}
	var errs []error
	for _, entry := range entries {
		errs = append(errs, os.RemoveAll(filepath.Join(dir, entry.Name())))
	}
	return errors.Join(errs...)
}

// Stop kills every process of the control plane, and removes its directory if Start created it. It may be called twice.
// It kills them at once, because the data is not needed.
func (c *Cluster) Stop() error {
	var errs []error
	for _, p := range c.startedProcesses() {
		errs = append(errs, p.killIfAlive())
	}
	if c.temporary {
		errs = append(errs, os.RemoveAll(c.dir))
	}
	return errors.Join(errs...)
}

// Dir returns the directory of the control plane.
func (c *Cluster) Dir() string { return c.dir }

// Version returns the Kubernetes minor version, such as "1.37".
func (c *Cluster) Version() string { return c.state.Version }

// Kubeconfig returns the path of the administrator's kubeconfig.
func (c *Cluster) Kubeconfig() string { return filepath.Join(c.dir, adminKubeconfig) }

// RESTConfig returns a copy of the administrator's configuration, without client-side rate limit.
func (c *Cluster) RESTConfig() *rest.Config { return rest.CopyConfig(c.config) }

// Client returns the administrator's client.
func (c *Cluster) Client() kubernetes.Interface { return c.client }

// AuditLogFile returns the path of the API server's audit log, with one JSON object per line. Audit reads it.
func (c *Cluster) AuditLogFile() string { return filepath.Join(c.dir, auditLog) }
