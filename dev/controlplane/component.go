package controlplane

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
)

// The names of a control plane's processes for Cluster.Process, in the order of their start.
const (
	Etcd              = "etcd"
	APIServer         = "kube-apiserver"
	ControllerManager = "kube-controller-manager"
	Scheduler         = "kube-scheduler"
	Kwok              = "kwok"
)

var componentNames = []string{Etcd, APIServer, ControllerManager, Scheduler, Kwok}

// GCPercentVariable is the name of the environment variable that sets GOGC for the processes of a control plane. The
// default is 100. With 400, a kube-apiserver that is busy with tests uses up to 0.8 GB instead of 0.4 GB. In return,
// garbage collection takes 2 % instead of 7 % of two processors.
const GCPercentVariable = "SLIPWAY_DEV_GOGC"

func isComponent(name string) bool { return slices.Contains(componentNames, name) }

// Paths inside the directory of a control plane.
const (
	adminKubeconfig = "admin.kubeconfig"
	auditLog        = "logs/audit.jsonl"
	logDir          = "logs"
	pkiDir          = "pki"
	configDir       = "config"
	etcdDir         = "etcd"
	tokenDir        = "kubeconfigs"
)

const (
	// bootTimeout limits a start without a deadline. A start takes seconds, but the machine may be busy.
	bootTimeout = 3 * time.Minute
	// readyPollInterval is the interval between two readiness checks.
	readyPollInterval = 20 * time.Millisecond
)

var (
	//go:embed config/audit-policy.yaml
	auditPolicy []byte
	//go:embed config/kwok.yaml
	kwokConfig []byte
	//go:embed config/scheduler.yaml
	schedulerConfig string
)

// ErrPortTaken means that another process took a port that was free shortly before. A retry with another port may
// succeed.
var ErrPortTaken = errors.New("a port was taken by another process")

// layout holds the directory and the ports of a control plane.
type layout struct {
	dir                                                 string
	etcdClient, etcdPeer, secure, controller, scheduler int
}

const portCount = 5

func (l layout) path(elem ...string) string {
	return filepath.Join(append([]string{l.dir}, elem...)...)
}

func (l layout) apiServerURL() string { return "https://" + loopbackAddress(l.secure) }

func loopbackAddress(port int) string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(port)) }

// reserveFreePorts reserves n free ports as ReserveFreePort does.
func reserveFreePorts(ctx context.Context, n int) (ports []int, err error) {
	ports = make([]int, n)
	for i := range ports {
		if ports[i], err = ReserveFreePort(ctx); err != nil {
			return nil, err
		}
	}
	return ports, nil
}

// writeConfigFiles writes certificates, keys, kubeconfigs and configuration files for the processes.
func (c *Cluster) writeConfigFiles(ports []int) (layout, error) {
	l := layout{c.dir, ports[0], ports[1], ports[2], ports[3], ports[4]}
	for _, dir := range []string{logDir, pkiDir, configDir, tokenDir} {
		if err := os.MkdirAll(l.path(dir), 0o700); err != nil {
			return l, fmt.Errorf("making %s: %w", dir, err)
		}
	}
	if err := l.writeCertificates(); err != nil {
		return l, err
	}
	scheduler := strings.ReplaceAll(schedulerConfig, "${KUBECONFIG}", l.path(Scheduler+".kubeconfig"))
	for name, content := range map[string][]byte{
		"audit-policy.yaml": auditPolicy,
		"kwok.yaml":         kwokConfig,
		"scheduler.yaml":    []byte(scheduler),
	} {
		if err := os.WriteFile(l.path(configDir, name), content, 0o600); err != nil {
			return l, fmt.Errorf("writing the configuration: %w", err)
		}
	}
	return l, nil
}

// listCommands returns the commands of the processes in the order of their start.
func (l layout) listCommands(o Options, b Binaries) []Command {
	all := []Command{
		{Name: Etcd, Path: b.Etcd, Args: l.etcdArgs(), ReadyURL: "https://" + loopbackAddress(l.etcdClient) + "/health"},
		{Name: APIServer, Path: b.Kubernetes, Args: l.apiServerArgs(), ReadyURL: l.apiServerURL() + "/readyz"},
		{
			Name: ControllerManager, Path: b.Kubernetes, Args: l.controllerManagerArgs(o),
			ReadyURL: "https://" + loopbackAddress(l.controller) + "/healthz",
		},
		{
			Name: Scheduler, Path: b.Kubernetes, Args: l.schedulerArgs(),
			ReadyURL: "https://" + loopbackAddress(l.scheduler) + schedulerReadyPath(o.Version),
		},
		{Name: Kwok, Path: b.Kwok, Args: l.kwokArgs()},
	}
	if o.Version == oldestAgentVersion {
		// The tests bind tokens to a Node, because no kubelet requests the tokens of pods. Since 1.31 this is on.
		all[1].Args = append(all[1].Args, "--feature-gates=ServiceAccountTokenNodeBinding=true")
	}
	for i := range all {
		all[i].Args = append(all[i].Args, o.Flags[all[i].Name]...)
	}
	return all
}

// schedulerReadyPath returns the path of the scheduler's readiness check. Before Kubernetes 1.31 the scheduler has only a
// liveness check.
func schedulerReadyPath(version string) string {
	if version == oldestAgentVersion {
		return "/healthz"
	}
	return "/readyz"
}

func (l layout) etcdArgs() []string {
	client, peer := "https://"+loopbackAddress(l.etcdClient), "https://"+loopbackAddress(l.etcdPeer)
	cert, key, ca := l.path(pkiDir, "server.crt"), l.path(pkiDir, "server.key"), l.path(pkiDir, "ca.crt")
	return []string{
		"--name=default", "--data-dir=" + l.path(etcdDir),
		"--listen-client-urls=" + client, "--advertise-client-urls=" + client,
		"--listen-peer-urls=" + peer, "--initial-advertise-peer-urls=" + peer, "--initial-cluster=default=" + peer,
		"--cert-file=" + cert, "--key-file=" + key, "--trusted-ca-file=" + ca, "--client-cert-auth",
		"--peer-cert-file=" + cert, "--peer-key-file=" + key, "--peer-trusted-ca-file=" + ca, "--peer-client-cert-auth",
		"--unsafe-no-fsync", "--quota-backend-bytes=1073741824", "--log-level=warn",
	}
}

func (l layout) apiServerArgs() []string {
	return []string{
		APIServer,
		"--bind-address=127.0.0.1", "--secure-port=" + strconv.Itoa(l.secure),
		// Nothing uses the Service "kubernetes", and its endpoints may not be loopback addresses.
		"--advertise-address=127.0.0.1", "--endpoint-reconciler-type=none",
		"--etcd-servers=https://" + loopbackAddress(l.etcdClient), "--etcd-cafile=" + l.path(pkiDir, "ca.crt"),
		"--etcd-certfile=" + l.path(pkiDir, "server.crt"), "--etcd-keyfile=" + l.path(pkiDir, "server.key"),
		"--tls-cert-file=" + l.path(pkiDir, "server.crt"), "--tls-private-key-file=" + l.path(pkiDir, "server.key"),
		"--client-ca-file=" + l.path(pkiDir, "ca.crt"),
		"--service-account-issuer=https://kubernetes.default.svc.cluster.local",
		"--service-account-key-file=" + l.path(pkiDir, "service-account.pub"),
		"--service-account-signing-key-file=" + l.path(pkiDir, "service-account.key"),
		// Aggregated API servers need these, and so do the controller manager's and the scheduler's own servers.
		"--requestheader-client-ca-file=" + l.path(pkiDir, "ca.crt"), "--requestheader-allowed-names=front-proxy-client",
		"--requestheader-username-headers=X-Remote-User", "--requestheader-group-headers=X-Remote-Group",
		"--requestheader-extra-headers-prefix=X-Remote-Extra-",
		"--service-cluster-ip-range=10.96.0.0/16",
		"--authorization-mode=Node,RBAC", "--enable-admission-plugins=NodeRestriction", "--enable-bootstrap-token-auth",
		"--allow-privileged=true", "--profiling=false",
		"--audit-policy-file=" + l.path(configDir, "audit-policy.yaml"), "--audit-log-path=" + l.path(auditLog),
		// The log is never rotated, because rotation would hide requests from Audit.
		"--audit-log-maxsize=1000000",
	}
}

func (l layout) controllerManagerArgs(o Options) []string {
	kubeconfig := l.path(ControllerManager + ".kubeconfig")
	return []string{
		ControllerManager,
		"--bind-address=127.0.0.1", "--secure-port=" + strconv.Itoa(l.controller),
		"--tls-cert-file=" + l.path(pkiDir, "server.crt"), "--tls-private-key-file=" + l.path(pkiDir, "server.key"),
		"--kubeconfig=" + kubeconfig, "--authentication-kubeconfig=" + kubeconfig,
		"--authorization-kubeconfig=" + kubeconfig, "--use-service-account-credentials=true",
		"--leader-elect=false", "--kube-api-qps=1000", "--kube-api-burst=2000",
		"--service-account-private-key-file=" + l.path(pkiDir, "service-account.key"),
		"--root-ca-file=" + l.path(pkiDir, "ca.crt"),
		"--node-monitor-grace-period=" + o.NodeMonitorGracePeriod.String(),
		// The default is 15 s, for which a test would wait.
		"--horizontal-pod-autoscaler-sync-period=2s",
	}
}

func (l layout) schedulerArgs() []string {
	kubeconfig := l.path(Scheduler + ".kubeconfig")
	return []string{
		Scheduler,
		"--bind-address=127.0.0.1", "--secure-port=" + strconv.Itoa(l.scheduler),
		"--tls-cert-file=" + l.path(pkiDir, "server.crt"), "--tls-private-key-file=" + l.path(pkiDir, "server.key"),
		"--config=" + l.path(configDir, "scheduler.yaml"),
		"--authentication-kubeconfig=" + kubeconfig, "--authorization-kubeconfig=" + kubeconfig,
	}
}

func (l layout) kwokArgs() []string {
	return []string{
		"--kubeconfig=" + l.path(Kwok+".kubeconfig"), "--config=" + l.path(configDir, "kwok.yaml"),
		"--manage-nodes-with-label-selector=" + powerLabel + "=" + powerOn,
	}
}

// startComponents starts the processes. It waits until the first two are ready, because all others need them. The
// others start in parallel.
func (c *Cluster) startComponents(ctx context.Context, commands []Command) error {
	for _, command := range commands {
		p := &Process{command: command, detached: c.state.Detached, cluster: c}
		if err := p.startProcess(); err != nil {
			return err
		}
		if err := c.recordProcess(p); err != nil {
			return err
		}
		if command.Name != Etcd && command.Name != APIServer {
			continue
		}
		if err := c.awaitProcessReady(ctx, p); err != nil {
			return err
		}
	}
	return c.awaitComponentsReady(ctx)
}

func (c *Cluster) createClients() error {
	config, err := clientcmd.BuildConfigFromFlags("", c.Kubeconfig())
	if err != nil {
		return fmt.Errorf("reading the administrator's kubeconfig: %w", err)
	}
	config.QPS = -1
	config.UserAgent = "slipway-dev"
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return fmt.Errorf("making the administrator's client: %w", err)
	}
	c.config, c.client = config, client
	return nil
}

// awaitComponentsReady waits until the processes that startComponents did not wait for are ready.
func (c *Cluster) awaitComponentsReady(ctx context.Context) error {
	for _, name := range []string{ControllerManager, Scheduler} {
		if err := c.awaitProcessReady(ctx, c.Process(name)); err != nil {
			return err
		}
	}
	return c.pollProcess(ctx, c.Process(ControllerManager), func(ctx context.Context) error {
		_, err := c.client.CoreV1().ServiceAccounts(metav1.NamespaceDefault).Get(ctx, "default", metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return errors.New("the default ServiceAccount does not exist yet")
		}
		return err
	})
}

// awaitProcessReady waits until the readiness URL of a process returns 200. Without a readiness URL it returns at
// once.
func (c *Cluster) awaitProcessReady(ctx context.Context, p *Process) error {
	if p.command.ReadyURL == "" {
		return nil
	}
	// The client accepts only certificates of this control plane. So it does not mistake another server, which took the
	// port first, for the process.
	client, err := rest.HTTPClientFor(c.RESTConfig())
	if err != nil {
		return fmt.Errorf("making a client for %s: %w", p.Name(), err)
	}
	defer client.CloseIdleConnections()
	return c.pollProcess(ctx, p, func(ctx context.Context) error {
		request, err := http.NewRequestWithContext(ctx, http.MethodGet, p.command.ReadyURL, nil)
		if err != nil {
			return err
		}
		response, err := client.Do(request)
		if err != nil {
			return err
		}
		defer func() { _ = response.Body.Close() }() // only the status matters
		if response.StatusCode != http.StatusOK {
			return fmt.Errorf("%s answers %s", p.command.ReadyURL, response.Status)
		}
		return nil
	})
}

// pollProcess repeats check until check succeeds. It returns an error if the context or the process ends first. The
// error includes the end of the process's log, or is ErrPortTaken.
func (c *Cluster) pollProcess(ctx context.Context, p *Process, check func(context.Context) error) error {
	if _, bounded := ctx.Deadline(); !bounded {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, bootTimeout)
		defer cancel()
	}
	ticker := time.NewTicker(readyPollInterval)
	defer ticker.Stop()
	for {
		err := check(ctx)
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%s is not ready: %w (last answer: %w)\n%s", p.Name(), ctx.Err(), err, p.readLogTail())
		case <-p.Exited():
			words := p.readLogTail()
			if strings.Contains(words, "address already in use") {
				return fmt.Errorf("%s: %w", p.Name(), ErrPortTaken)
			}
			return fmt.Errorf("%s ended before it was ready:\n%s", p.Name(), words)
		case <-ticker.C:
		}
	}
}
