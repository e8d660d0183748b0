package docs_test

import (
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"

	emulator "github.com/slipway-dev/slipway/dev/cloudpool"
	"github.com/slipway-dev/slipway/dev/controlplane"
	"github.com/slipway-dev/slipway/dev/testbed"
	"github.com/slipway-dev/slipway/dev/workload"
)

// tutorial is the page for new users. The tests read it first.
const tutorial = "docs/tutorial.md"

// doctor and the README, which runs slipway doctor, follow. Later pages remove more instances, and doctor would report them.
const doctor = "docs/doctor.md"

// secondCluster lists the pages of the second cluster, with their order. The first cluster has all other pages.
var secondCluster = map[string]int{
	"docs/aks-maintenance.md": 0,
	"docs/install.md":         1, "docs/moving-from-aks-node-termination-handler.md": 1, "docs/retirement-howto.md": 1,
}

// before prepares the state that a page assumes.
var before = map[string]func(*reader){
	readme:                         (*reader).madeUp,
	tutorial:                       (*reader).madeUp,
	"docs/aks-spot.md":             (*reader).madeUp,
	"docs/aks-maintenance.md":      (*reader).madeUp,
	"docs/ci-runners.md":           (*reader).runners,
	"docs/drain.md":                (*reader).node,
	"docs/placement.md":            (*reader).node,
	doctor:                         (*reader).machineDown,
	"docs/cloudpool-howto.md":      (*reader).cloudpool,
	"docs/install.md":              (*reader).bare,
	"docs/retirement-howto.md":     (*reader).bare,
	"docs/moving-from-mechanic.md": (*reader).mechanic,
	"docs/moving-from-aks-node-termination-handler.md": (*reader).handler,
	"docs/moving-from-openstack-autoscaler.md":         (*reader).openStackNode,
	"docs/moving-from-vmss-pod-watcher.md":             (*reader).podWatcher,
}

// madeUp provides the addresses that a page expects from make up.
func (r *reader) madeUp() {
	r.replaced["http://127.0.0.1:16925/emulator"] = r.bed.ControlURL()
	r.free("127.0.0.1:9819")
}

// node provides the example node of the pages. Another page may have retired it.
func (r *reader) node() {
	r.t.Helper()
	const example = 3
	_, err := r.bed.Client().CoreV1().Nodes().Get(r.ctx, general.NodeName(example), metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		err = r.bed.AddNodes(r.ctx, general.Node(example))
	}
	r.check(err)
}

// machineDown powers off the instance that the tutorial's event removes.
func (r *reader) machineDown() {
	r.t.Helper()
	r.check(r.bed.PowerOff(r.ctx, spot.NodeName(0)))
}

// free replaces an address of the page with an unused address.
func (r *reader) free(address string) {
	r.t.Helper()
	here, err := controlplane.ReserveFreeAddress(r.ctx)
	r.check(err)
	r.replaced[address] = here
}

// runners adds a pool of three instances, with a job on the first, and a manager. It replaces ten minutes with seconds.
func (r *reader) runners() {
	r.t.Helper()
	r.replaced["cooldown: 10m"] = "cooldown: 3s"
	ci := controlplane.AKSPool{Name: "ci"}
	r.check(r.bed.AddPool(r.ctx, ci, 3))
	job := workload.App{
		Namespace: "ci", Name: "build-4711", Node: ci.NodeName(0), StopSeconds: "0.1", Labels: map[string]string{"app.kubernetes.io/component": "job-runner"},
	}
	r.check(workload.CreateAndAwait(r.ctx, r.bed.Client(), workload.NewNamespace("ci"), job.Pod()))
	r.manager(filepath.Join(r.bed.Dir(), "clouds.yaml"))
}

// manager starts an installed manager with the administrator's rights.
func (r *reader) manager(clouds string) {
	r.t.Helper()
	path, err := testbed.EnsureBinary("slipway")
	r.check(err)
	p, err := r.bed.StartProcess(r.ctx, controlplane.Command{Name: "manager-" + filepath.Base(r.dir) + "-" + filepath.Base(r.t.Name()), Path: path, Args: []string{
		"manager", "--kubeconfig", r.bed.Kubeconfig(), "--install-crds", "--cloud-config", clouds, "--listen", "", "--leader-elect=false",
		"--poll-interval", "500ms", "--group-poll-interval", "1s", "--cloud-poll-interval", "500ms",
	}})
	r.check(err)
	r.t.Cleanup(func() {
		_ = p.Kill() // it has no state to lose
		if r.t.Failed() {
			log, _ := os.ReadFile(p.LogFile())
			r.t.Logf("log of the manager:\n%s", log)
		}
	})
}

// cloudpool starts a cloudpool server with four machines that are nodes.
func (r *reader) cloudpool() {
	r.t.Helper()
	pool := emulator.New(emulator.Options{Name: "workers", Nodes: emulator.ClusterNodes{Cluster: r.bed.Cluster, Pool: "workers"}})
	r.t.Cleanup(pool.Close)
	_, err := pool.AddMachines(r.ctx, 4)
	r.check(err)
	server := httptest.NewServer(pool.Handler())
	r.t.Cleanup(server.Close)
	r.replaced["http://cloudpool.example.com:8443"] = server.URL
	for _, address := range []string{"127.0.0.1:9819", "127.0.0.1:8080", "127.0.0.1:8081"} {
		r.free(address)
	}
}

// bare removes the testbed's installation of Slipway, because the page installs it again.
func (r *reader) bare() {
	r.t.Helper()
	client, err := dynamic.NewForConfig(r.bed.RESTConfig())
	r.check(err)
	for _, kind := range []schema.GroupVersionResource{
		{Group: "rbac.authorization.k8s.io", Version: "v1", Resource: "clusterroles"},
		{Group: "rbac.authorization.k8s.io", Version: "v1", Resource: "clusterrolebindings"},
		{Group: "admissionregistration.k8s.io", Version: "v1", Resource: "validatingadmissionpolicies"},
		{Group: "admissionregistration.k8s.io", Version: "v1", Resource: "validatingadmissionpolicybindings"},
		{Group: "flowcontrol.apiserver.k8s.io", Version: "v1", Resource: "flowschemas"},
		{Group: "flowcontrol.apiserver.k8s.io", Version: "v1", Resource: "prioritylevelconfigurations"},
		{Version: "v1", Resource: "namespaces"},
	} {
		list, err := client.Resource(kind).List(r.ctx, metav1.ListOptions{})
		r.check(err)
		for _, o := range list.Items {
			if strings.HasPrefix(o.GetName(), testbed.AgentNamespace) {
				r.check(client.Resource(kind).Delete(r.ctx, o.GetName(), metav1.DeleteOptions{}))
			}
		}
	}
	// Pods on an instance without power do not end on their own.
	now := metav1.DeleteOptions{GracePeriodSeconds: new(int64)}
	r.check(testbed.PollUntil(r.ctx, "the namespace is gone", func() bool {
		_ = r.bed.Client().CoreV1().Pods(testbed.AgentNamespace).DeleteCollection(r.ctx, now, metav1.ListOptions{}) // or the next time
		_, err := r.bed.Client().CoreV1().Namespaces().Get(r.ctx, testbed.AgentNamespace, metav1.GetOptions{})
		return apierrors.IsNotFound(err)
	}))
}

// mechanic provides an installed mechanic that has cordoned a node.
func (r *reader) mechanic() {
	r.t.Helper()
	r.check(workload.Create(r.ctx, r.bed.Client(), workload.NewNamespace("mechanic")))
	_, err := r.bed.Client().CoreV1().ConfigMaps("mechanic").Create(r.ctx, &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Name: "mechanic"},
		Data: map[string]string{
			"mechanic.yaml": "vmEvents:\n  reboot: true\n  redeploy: false\noptional:\n  kubeletProblem: true\n  pollingInterval: 60\n",
		},
	}, metav1.CreateOptions{})
	r.check(err)
	r.patchNode(spot.NodeName(4), `{"metadata":{"labels":{"mechanic.cordoned":"true"}},"spec":{"unschedulable":true}}`)
}

// handler provides a taint and a cordon of the old handler.
func (r *reader) handler() {
	r.bare()
	r.patchNode(spot.NodeName(5),
		`{"spec":{"unschedulable":true,"taints":[{"key":"aks-node-termination-handler/reboot","value":"x","effect":"NoSchedule"}]}}`)
}

func (r *reader) patchNode(name, patch string) {
	r.t.Helper()
	_, err := r.bed.Client().CoreV1().Nodes().Patch(r.ctx, name, types.StrategicMergePatchType, []byte(patch), metav1.PatchOptions{})
	r.check(err)
}

// openStackNode adds a node without a provider ID.
func (r *reader) openStackNode() {
	r.t.Helper()
	r.check(r.bed.AddNodes(r.ctx, controlplane.NodeSpec{Name: "kube-worker-ab12"}))
}

// podWatcher creates the tool's Deployment with its environment.
func (r *reader) podWatcher() {
	r.t.Helper()
	labels := map[string]string{"app": "vmss-pod-watcher"}
	var env []corev1.EnvVar
	for _, v := range [][2]string{
		{"COOLDOWN", "10m"},
		{"LABEL_KEY", "app.kubernetes.io/component"},
		{"LABEL_VALUE", "runner"},
		{"NAMESPACE", "ci"},
		{"VMSS_RG", "mc_demo"},
		{"FOCUS_NODEPOOL", "ci"},
		{"SCHEDULED_CHECK_FLAG", "true"},
	} {
		env = append(env, corev1.EnvVar{Name: v[0], Value: v[1]})
	}
	none := int32(0)
	r.check(workload.Create(r.ctx, r.bed.Client(), &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceSystem, Name: "vmss-pod-watcher"},
		Spec: appsv1.DeploymentSpec{
			Replicas: &none, Selector: &metav1.LabelSelector{MatchLabels: labels},
			Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels}, Spec: corev1.PodSpec{
				Containers: []corev1.Container{{Name: "watcher", Image: "registry.example.com/vmss-pod-watcher", Env: env}},
			}},
		},
	}))
}
