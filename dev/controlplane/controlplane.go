// Package controlplane builds and runs a real Kubernetes control plane without containers or downloads: etcd,
// kube-apiserver, kube-controller-manager and kube-scheduler, compiled from their Go modules into a cache and started
// as child processes on the loopback interface, and kwok, which plays the part of the kubelets.
//
// What is real: the API with its validation, admission, RBAC and Node authorization, priority and fairness, audit log,
// eviction and disruption budgets; every controller; the scheduler. What is played: machines and containers. A pod
// becomes Ready after a while, takes time to stop, is killed at the end of its grace period, and is left as it was when
// its machine loses power; annotations on the pod say how long things take (see StopSeconds and its neighbours).
//
// Any number of control planes run side by side. Unless Options.Detached is set, the processes die with the one that
// started them, however it ends.
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

// Options says what Start starts. The zero value is the default version, in a temporary directory, without nodes.
type Options struct {
	// Version is the Kubernetes minor version, one of Versions(). Empty is the value of SLIPWAY_KUBE_VERSION, or else
	// the newest.
	Version string
	// Dir is where data, certificates, logs and kubeconfigs go. It must be empty or not exist. Empty is a new
	// temporary directory, which Stop removes.
	Dir string
	// Detached lets the processes outlive the one that started them. Open finds them again by Dir.
	Detached bool
	// Nodes are added before Start returns, as by AddNodes.
	Nodes []NodeSpec
	// NodeMonitorGracePeriod is how long a node may be silent before the node lifecycle controller calls it Unknown.
	// Zero is 10 minutes: on a busy machine heartbeats come late, and a node must not seem dead because of that.
	NodeMonitorGracePeriod time.Duration
	// Flags are added to the command lines, by the name of the process ("kube-apiserver"), after those of this
	// package, so that they win.
	Flags map[string][]string
	// Progress is where a line is written when binaries have to be compiled. Nil is standard error.
	Progress io.Writer
}

// defaultNodeMonitorGracePeriod is explained at Options.NodeMonitorGracePeriod.
const defaultNodeMonitorGracePeriod = 10 * time.Minute

// bootAttempts is how often Start tries again when another process took one of the ports that were just found free.
const bootAttempts = 5

// Cluster is a running control plane. Its methods may be called concurrently.
type Cluster struct {
	dir       string
	temporary bool
	etcd      string // its URL; empty in a process that has not started it
	state     state
	processes map[string]*Process
	config    *rest.Config
	client    *kubernetes.Clientset

	mu sync.Mutex // guards state and processes
}

// Start compiles what is missing, boots a control plane and waits until it is ready to be used: the API server is
// ready, the controller manager has made the default ServiceAccount, the scheduler is ready, and the nodes asked for
// are Ready. The context bounds the start only, not the life of what was started.
func Start(ctx context.Context, o Options) (*Cluster, error) {
	if err := o.complete(); err != nil {
		return nil, err
	}
	binaries, err := Build(ctx, o.Version, o.Progress)
	if err != nil {
		return nil, err
	}
	for attempt := 1; ; attempt++ {
		c, err := boot(ctx, o, binaries)
		if err == nil {
			return c, nil
		}
		if !errors.Is(err, ErrPortTaken) || attempt == bootAttempts {
			return nil, fmt.Errorf("starting a Kubernetes %s control plane: %w", o.Version, err)
		}
	}
}

// Reach is a control plane that somebody else runs, of which no process and no file is known. Dir is for the files of others.
func Reach(config *rest.Config, dir string) (*Cluster, error) {
	version, err := ResolveVersion("")
	if err != nil {
		return nil, err
	}
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("making the administrator's client: %w", err)
	}
	return &Cluster{
		dir: dir, state: state{Version: version, Host: config.Host}, processes: map[string]*Process{}, config: config, client: client,
	}, nil
}

// complete fills in the defaults and refuses what cannot work.
func (o *Options) complete() error {
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

// boot makes one attempt to start everything, and leaves nothing behind when it fails.
func boot(ctx context.Context, o Options, binaries Binaries) (_ *Cluster, err error) {
	c := &Cluster{processes: map[string]*Process{}}
	if err := c.makeDir(o.Dir); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, c.Stop())
			if !c.temporary {
				err = errors.Join(err, emptyDir(c.dir))
			}
		}
	}()
	ports, err := freePorts(ctx, portCount)
	if err != nil {
		return nil, err
	}
	layout, err := c.writeFiles(ports)
	if err != nil {
		return nil, err
	}
	c.state = state{Version: o.Version, Detached: o.Detached, Host: layout.apiServer()}
	c.etcd = "https://" + loopback(layout.etcdClient)
	if err := c.connect(); err != nil {
		return nil, err
	}
	if err := c.startAll(ctx, layout.commands(o, binaries)); err != nil {
		return nil, err
	}
	if err := c.AddNodes(ctx, o.Nodes...); err != nil {
		return nil, err
	}
	return c, nil
}

func (c *Cluster) makeDir(dir string) error {
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

// ErrNotEmpty is returned by Start when Options.Dir holds something already: another control plane, or its remains.
var ErrNotEmpty = errors.New("the control plane's directory must be empty or not exist")

// emptyDir removes what a failed start left in a directory that the caller named.
func emptyDir(dir string) error {
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

// Stop ends every process of the control plane, and removes its directory when Start made it. It is safe to call
// twice. There is no orderly shutdown: the data is there to be thrown away.
func (c *Cluster) Stop() error {
	var errs []error
	for _, p := range c.started() {
		errs = append(errs, p.end())
	}
	if c.temporary {
		errs = append(errs, os.RemoveAll(c.dir))
	}
	return errors.Join(errs...)
}

// Dir is the directory of the control plane.
func (c *Cluster) Dir() string { return c.dir }

// Version is the Kubernetes minor version, such as "1.37".
func (c *Cluster) Version() string { return c.state.Version }

// Kubeconfig is the path of the administrator's kubeconfig.
func (c *Cluster) Kubeconfig() string { return filepath.Join(c.dir, adminKubeconfig) }

// RESTConfig is the administrator's, without a limit on the client's side. Each call returns its own copy.
func (c *Cluster) RESTConfig() *rest.Config { return rest.CopyConfig(c.config) }

// Client is the administrator's.
func (c *Cluster) Client() kubernetes.Interface { return c.client }

// AuditLog is the path of the API server's audit log, one JSON object on each line. Audit reads it.
func (c *Cluster) AuditLog() string { return filepath.Join(c.dir, auditLog) }
