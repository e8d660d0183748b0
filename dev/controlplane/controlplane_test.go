package controlplane_test

import (
	"context"
	"errors"
	"net"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/slipway-dev/slipway/dev/controlplane"
	"github.com/slipway-dev/slipway/dev/workload"
	"github.com/slipway-dev/slipway/internal/testing/check"
	"github.com/slipway-dev/slipway/internal/testing/must"
)

func TestMain(m *testing.M) {
	if dir := os.Getenv(starterVariable); dir != "" {
		startAndHang(dir)
	}
	os.Exit(controlplane.RunTestsAndStopShared(m))
}

// createNamespaceAndNode creates a namespace and a node for one test on the shared control plane.
func createNamespaceAndNode(t *testing.T, name string) (c *controlplane.Cluster, node string) {
	t.Helper()
	c = controlplane.StartShared(t)
	node = "node-of-" + name
	must.NoError(t, c.AddNodes(t.Context(), controlplane.NodeSpec{Name: node}))
	must.NoError(t, workload.Create(t.Context(), c.Client(), workload.NewNamespace(name)))
	// Pods of a new namespace are refused until its default ServiceAccount exists.
	awaitServiceAccount(t, c.Client(), name, "default")
	return c, node
}

func awaitServiceAccount(t *testing.T, client kubernetes.Interface, namespace, name string) {
	t.Helper()
	eventually(t.Context(), t, "ServiceAccount "+namespace+"/"+name, func(ctx context.Context) error {
		_, err := client.CoreV1().ServiceAccounts(namespace).Get(ctx, name, metav1.GetOptions{})
		return err
	})
}

// waitTimeout is the timeout of every wait. Waits take far less, but the machine may be busy.
const waitTimeout = 5 * time.Minute

// eventually retries check until it returns nil.
func eventually(ctx context.Context, t *testing.T, what string, check func(context.Context) error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(ctx, waitTimeout)
	defer cancel()
	ticker := time.NewTicker(20 * time.Millisecond)
	defer ticker.Stop()
	for {
		err := check(ctx)
		if err == nil {
			return
		}
		select {
		case <-ctx.Done():
			t.Fatalf("%s: %v", what, err)
		case <-ticker.C:
		}
	}
}

func TestEveryWorkloadKindBecomesReady(t *testing.T) {
	t.Parallel()
	c, node := createNamespaceAndNode(t, "kinds")
	app := func(name string) workload.App {
		return workload.App{Namespace: "kinds", Name: name, Replicas: 2, Node: node}
	}
	job := app("job")
	job.RunSeconds = "0.2"
	important := app("important")
	important.PriorityClass = "important"
	ctx, cancel := context.WithTimeout(t.Context(), waitTimeout)
	defer cancel()
	err := workload.CreateAndAwait(ctx, c.Client(), workload.NewPriorityClass("important", 1000),
		app("stateful").StatefulSet(), app("daemon").DaemonSet(), job.Job(), app("bare").Pod(),
		important.Deployment(), important.PodDisruptionBudget())
	must.NoError(t, err)
	eventually(t.Context(), t, "a Job whose pods run 0.2 s", func(ctx context.Context) error {
		job, err := c.Client().BatchV1().Jobs("kinds").Get(ctx, "job", metav1.GetOptions{})
		if err != nil {
			return err
		}
		if job.Status.CompletionTime == nil {
			return errors.New("it has not completed")
		}
		return nil
	})
}

func TestServiceAccountKubeconfigHasExactlyItsPermissions(t *testing.T) {
	t.Parallel()
	c, node := createNamespaceAndNode(t, "rights")
	client := c.Client()
	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "reader"}}
	if _, err := client.CoreV1().ServiceAccounts("rights").Create(t.Context(), account, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	role := &rbacv1.Role{
		ObjectMeta: metav1.ObjectMeta{Name: "reader"},
		Rules:      []rbacv1.PolicyRule{{APIGroups: []string{""}, Resources: []string{"pods"}, Verbs: []string{"list"}}},
	}
	if _, err := client.RbacV1().Roles("rights").Create(t.Context(), role, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	binding := &rbacv1.RoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: "reader"},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: "reader"},
		Subjects:   []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: "rights", Name: "reader"}},
	}
	if _, err := client.RbacV1().RoleBindings("rights").Create(t.Context(), binding, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	reader := newServiceAccountClient(t, c, "rights", "reader", controlplane.TokenOptions{Node: node, Duration: 10 * time.Minute})
	eventually(t.Context(), t, "listing pods with permission", func(ctx context.Context) error {
		_, err := reader.CoreV1().Pods("rights").List(ctx, metav1.ListOptions{})
		return err
	})
	_, err := reader.CoreV1().Pods("default").List(t.Context(), metav1.ListOptions{})
	if !apierrors.IsForbidden(err) {
		t.Errorf("listing another namespace's pods: %v, want Forbidden", err)
	}
	err = reader.CoreV1().Nodes().Delete(t.Context(), node, metav1.DeleteOptions{})
	if !apierrors.IsForbidden(err) {
		t.Errorf("deleting a node: %v, want Forbidden", err)
	}
	_, err = c.ServiceAccountKubeconfig(t.Context(), "rights", "reader", controlplane.TokenOptions{Pod: "p", Node: node})
	check.ErrorContains(t, err, "not to both")
}

func TestPodBoundTokenEndsWithPod(t *testing.T) {
	t.Parallel()
	c, node := createNamespaceAndNode(t, "bound")
	pod := workload.App{Namespace: "bound", Name: "agent", Node: node}.Pod()
	ctx, cancel := context.WithTimeout(t.Context(), waitTimeout)
	defer cancel()
	must.NoError(t, workload.CreateAndAwait(ctx, c.Client(), pod))
	agent := newServiceAccountClient(t, c, "bound", "default", controlplane.TokenOptions{Pod: "agent"})
	if _, err := agent.Discovery().ServerVersion(); err != nil {
		t.Fatal(err)
	}
	_, err := agent.CoreV1().Pods("bound").List(ctx, metav1.ListOptions{})
	if !apierrors.IsForbidden(err) {
		t.Errorf("listing pods with a valid token and no permission: %v, want Forbidden", err)
	}
	force := metav1.NewDeleteOptions(0)
	must.NoError(t, c.Client().CoreV1().Pods("bound").Delete(ctx, "agent", *force))
	// The API server caches a valid token for 10 seconds.
	eventually(t.Context(), t, "the token of a deleted pod", func(ctx context.Context) error {
		_, err := agent.CoreV1().Pods("bound").List(ctx, metav1.ListOptions{})
		if !apierrors.IsUnauthorized(err) {
			return errors.New("it is still accepted")
		}
		return nil
	})
}

func newServiceAccountClient(t *testing.T, c *controlplane.Cluster, namespace, name string, o controlplane.TokenOptions,
) *kubernetes.Clientset {
	t.Helper()
	path, err := c.ServiceAccountKubeconfig(t.Context(), namespace, name, o)
	must.NoError(t, err)
	config, err := clientcmd.BuildConfigFromFlags("", path)
	must.NoError(t, err)
	client, err := kubernetes.NewForConfig(config)
	must.NoError(t, err)
	return client
}

func TestAuditLogHasUIDOfEviction(t *testing.T) {
	t.Parallel()
	c, node := createNamespaceAndNode(t, "audit")
	pod := workload.App{Namespace: "audit", Name: "evicted", Node: node, StopSeconds: "0"}.Pod()
	ctx, cancel := context.WithTimeout(t.Context(), waitTimeout)
	defer cancel()
	begun := time.Now()
	must.NoError(t, workload.CreateAndAwait(ctx, c.Client(), pod))
	found, err := c.Client().CoreV1().Pods("audit").Get(ctx, "evicted", metav1.GetOptions{})
	must.NoError(t, err)
	err = c.Client().CoreV1().Pods("audit").EvictV1(ctx, &policyv1.Eviction{
		ObjectMeta:    metav1.ObjectMeta{Name: "evicted"},
		DeleteOptions: metav1.NewPreconditionDeleteOptions(string(found.UID)),
	})
	must.NoError(t, err)
	filter := controlplane.AuditFilter{
		UserAgent: "slipway-dev", Verb: "create", Resource: "pods/eviction", Namespace: "audit", Since: begun,
	}
	requests, err := c.ReadAuditLog(filter)
	must.NoError(t, err)
	if len(requests) != 1 {
		t.Fatalf("the audit log has %d evictions, want 1", len(requests))
	}
	if body := string(requests[0].RequestObject.Raw); !strings.Contains(body, `"preconditions":{"uid":"`+string(found.UID)+`"}`) {
		t.Errorf("the eviction was logged as %s, want a precondition on UID %s", body, found.UID)
	}
	for name, other := range map[string]controlplane.AuditFilter{
		"of another client": {UserAgent: "kubectl", Resource: "pods/eviction", Namespace: "audit"},
		"of another verb":   {Verb: "delete", Resource: "pods/eviction", Namespace: "audit"},
		"in the future":     {Resource: "pods/eviction", Namespace: "audit", Since: time.Now().Add(time.Hour)},
		"of another pod":    {Resource: "pods/eviction", Namespace: "audit", Name: "other"},
	} {
		requests, err := c.ReadAuditLog(other)
		must.NoError(t, err)
		if len(requests) != 0 {
			t.Errorf("%d evictions %s, want none", len(requests), name)
		}
	}
}

func TestRestartedAPIServerKeepsData(t *testing.T) {
	t.Parallel()
	c := controlplane.StartForTest(t, controlplane.Options{Nodes: []controlplane.NodeSpec{{Name: "kept"}}})
	checkIsolation(t, controlplane.StartShared(t), c)
	server := c.Process(controlplane.APIServer)

	must.NoError(t, server.Pause(t.Context()))
	if !server.IsAlive() {
		t.Error("a paused API server counts as dead")
	}
	short, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	if _, err := c.Client().CoreV1().Nodes().List(short, metav1.ListOptions{}); err == nil {
		t.Error("a paused API server answers")
	}
	must.NoError(t, server.Resume())
	if _, err := c.Client().CoreV1().Nodes().List(t.Context(), metav1.ListOptions{}); err != nil {
		t.Errorf("a resumed API server: %v", err)
	}

	before := server.PID()
	must.NoError(t, server.Kill())
	if server.IsAlive() {
		t.Error("the killed API server is alive")
	}
	if _, err := c.Client().CoreV1().Nodes().Get(t.Context(), "kept", metav1.GetOptions{}); err == nil {
		t.Error("a killed API server answers")
	}
	must.NoError(t, server.Restart(t.Context()))
	if server.PID() == before {
		t.Errorf("the restarted API server has the process number %d of the killed one", before)
	}
	if _, err := c.Client().CoreV1().Nodes().Get(t.Context(), "kept", metav1.GetOptions{}); err != nil {
		t.Errorf("a node from before the restart: %v", err)
	}

	ctx, cancel := context.WithTimeout(t.Context(), waitTimeout)
	defer cancel()
	web := workload.App{Name: "web", Replicas: 3}
	must.NoError(t, workload.CreateAndAwait(ctx, c.Client(), web.Deployment()))
}

// checkIsolation checks that a control plane has only the node kept, which another control plane lacks, and that the
// other's administrator has no access.
func checkIsolation(t *testing.T, other, c *controlplane.Cluster) {
	t.Helper()
	nodes, err := c.Client().CoreV1().Nodes().List(t.Context(), metav1.ListOptions{})
	if err != nil || len(nodes.Items) != 1 || nodes.Items[0].Name != "kept" {
		t.Errorf("the nodes are %+v, %v; want only kept", nodes, err)
	}
	if _, err := other.Client().CoreV1().Nodes().Get(t.Context(), "kept", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("the node in the other control plane: %v, want NotFound", err)
	}
	foreign := other.RESTConfig()
	foreign.Host, foreign.CAData = c.RESTConfig().Host, c.RESTConfig().CAData
	client, err := kubernetes.NewForConfig(foreign)
	must.NoError(t, err)
	if _, err := client.CoreV1().Nodes().List(t.Context(), metav1.ListOptions{}); !apierrors.IsUnauthorized(err) {
		t.Errorf("the other control plane's administrator: %v, want Unauthorized", err)
	}
}

func TestDetachedControlPlaneIsFoundAndStopped(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	started, err := controlplane.Start(t.Context(), controlplane.Options{Dir: dir, Detached: true})
	must.NoError(t, err)
	t.Cleanup(func() {
		if err := started.Stop(); err != nil {
			t.Error(err)
		}
	})
	sleep := controlplane.Command{Name: "child", Path: "/bin/sleep", Args: []string{"600"}}
	child, err := started.StartProcess(t.Context(), sleep)
	must.NoError(t, err)
	if _, err := started.StartProcess(t.Context(), sleep); err == nil {
		t.Error("a second process of the same name was started")
	}
	_, err = controlplane.Start(t.Context(), controlplane.Options{Dir: dir})
	if !errors.Is(err, controlplane.ErrNotEmpty) {
		t.Errorf("starting a second one in the same directory: %v, want %v", err, controlplane.ErrNotEmpty)
	}
	found, err := controlplane.Open(dir)
	must.NoError(t, err)
	if err := found.AddNodes(t.Context(), controlplane.NodeSpec{Name: "late"}); err != nil {
		t.Errorf("adding a node to an opened control plane: %v", err)
	}
	must.NoError(t, found.Stop())
	if child.IsAlive() {
		t.Error("the added process outlived the control plane")
	}
	for _, name := range []string{controlplane.Etcd, controlplane.APIServer, controlplane.Kwok} {
		if found.Process(name).IsAlive() {
			t.Errorf("%s outlived Stop", name)
		}
	}
	if _, err := controlplane.Open(t.TempDir()); !errors.Is(err, controlplane.ErrNotFound) {
		t.Errorf("opening an empty directory: %v, want %v", err, controlplane.ErrNotFound)
	}
}

func TestInvalidOptionsAreRefused(t *testing.T) {
	t.Parallel()
	for name, o := range map[string]controlplane.Options{
		`"1.20", it must be one of 1.30, 1.33, 1.34, 1.35, 1.36, 1.37`: {Version: "1.20"},
		`"kube-proxy", known are`:                                      {Flags: map[string][]string{"kube-proxy": nil}},
		`period -1s, it must be positive`:                              {NodeMonitorGracePeriod: -time.Second},
	} {
		_, err := controlplane.Start(t.Context(), o)
		if err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("Start(%+v): %v, want an error with %s", o, err, name)
		}
	}
	c := controlplane.StartShared(t)
	for wanted, spec := range map[string]controlplane.NodeSpec{
		`node a: cpu is "many"`: {Name: "a", CPU: "many"},
		`node b: Pods is -1`:    {Name: "b", Pods: -1},
		`node C`:                {Name: "C"},
	} {
		err := c.AddNodes(t.Context(), spec)
		if err == nil || !strings.Contains(err.Error(), wanted) {
			t.Errorf("AddNodes(%+v): %v, want an error with %s", spec, err, wanted)
		}
	}
}

func TestFailedStartReportsErrorAndLeavesNothing(t *testing.T) {
	t.Parallel()
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	must.NoError(t, err)
	defer func() { _ = taken.Close() }()
	for name, test := range map[string]struct {
		flags map[string][]string
		want  string
	}{
		"a port that is always taken": {
			map[string][]string{controlplane.Etcd: {"--listen-client-urls=https://" + taken.Addr().String()}},
			"a port was taken by another process",
		},
		"a flag that does not exist": {
			map[string][]string{controlplane.APIServer: {"--no-such-flag"}}, "unknown flag: --no-such-flag",
		},
	} {
		dir := t.TempDir()
		_, err := controlplane.Start(t.Context(), controlplane.Options{Dir: dir, Flags: test.flags})
		if err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: %v, want an error with %q", name, err, test.want)
		}
		left, err := os.ReadDir(dir)
		must.NoError(t, err)
		if len(left) != 0 {
			t.Errorf("%s: %d files are left", name, len(left))
		}
	}
}

func TestAKSNamesMatchAzure(t *testing.T) {
	t.Parallel()
	pool := controlplane.AKSPool{Name: "spot", Spot: true}
	if got, want := pool.NodeName(0), "aks-spot-12345678-vmss000000"; got != want {
		t.Errorf("NodeName(0) is %s, want %s", got, want)
	}
	if got, want := pool.NodeName(46), "aks-spot-12345678-vmss00001a"; got != want {
		t.Errorf("NodeName(46) is %s, want %s", got, want)
	}
	if got, want := pool.ResourceName(46), "aks-spot-12345678-vmss_46"; got != want {
		t.Errorf("Resource(46) is %s, want %s", got, want)
	}
	want := "azure:///subscriptions/00000000-0000-0000-0000-000000000001/resourceGroups/mc_demo/providers/" +
		"Microsoft.Compute/virtualMachineScaleSets/aks-spot-12345678-vmss/virtualMachines/46"
	check.Is(t, want, pool.Node(46).ProviderID)
	if got := pool.Node(1).Labels["kubernetes.azure.com/scalesetpriority"]; got != "spot" {
		t.Errorf("the priority of a Spot machine is %q, want spot", got)
	}
}

// starterVariable makes the test binary start a control plane in this directory and hang until it is killed.
const starterVariable = "SLIPWAY_TEST_STARTER"

func startAndHang(dir string) {
	if _, err := controlplane.Start(context.Background(), controlplane.Options{Dir: dir}); err != nil {
		println(err.Error())
		os.Exit(1)
	}
	select {}
}

func TestProcessesEndWithTheirParent(t *testing.T) {
	t.Parallel()
	dir := t.TempDir() + "/cluster"
	self := startTestBinary(t, dir)
	var c *controlplane.Cluster
	eventually(t.Context(), t, "a control plane of another process", func(context.Context) error {
		var err error
		if c, err = controlplane.Open(dir); err != nil {
			return err
		}
		if c.Process(controlplane.Kwok) == nil {
			return errors.New("kwok does not run yet")
		}
		return nil
	})
	must.NoError(t, self.Kill())
	eventually(t.Context(), t, "the end of a control plane after its starter was killed", func(context.Context) error {
		names := []string{controlplane.Etcd, controlplane.APIServer, controlplane.Kwok}
		alive := slices.DeleteFunc(names, func(name string) bool { return !c.Process(name).IsAlive() })
		if len(alive) != 0 {
			return errors.New("still alive: " + strings.Join(alive, ", "))
		}
		return nil
	})
}

func startTestBinary(t *testing.T, dir string) *os.Process {
	t.Helper()
	self, err := os.Executable()
	must.NoError(t, err)
	process, err := os.StartProcess(self, []string{self}, &os.ProcAttr{
		Env:   append(os.Environ(), starterVariable+"="+dir),
		Files: []*os.File{nil, os.Stdout, os.Stderr},
	})
	must.NoError(t, err)
	var once sync.Once
	t.Cleanup(func() {
		once.Do(func() {
			_ = process.Kill()
			_, _ = process.Wait()
		})
	})
	return process
}
