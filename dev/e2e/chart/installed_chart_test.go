package chart_test

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"sigs.k8s.io/yaml"

	"github.com/slipway-dev/slipway/api/v1alpha1"
	"github.com/slipway-dev/slipway/dev/azure"
	"github.com/slipway-dev/slipway/dev/controlplane"
	"github.com/slipway-dev/slipway/dev/testbed"
	"github.com/slipway-dev/slipway/dev/workload"
)

// releaseName is the name of the release and of its namespace.
const releaseName = "installed"

// These are the pools of instances. Pool home has room for all pods and stays.
var (
	home = controlplane.AKSPool{Name: "home"}
	spot = controlplane.AKSPool{Name: "spot", Spot: true}
	ci   = controlplane.AKSPool{Name: "ci"}
)

const (
	shopNamespace = "shop"
	shopLabel     = "e2e.slipway.dev/shop" // the label of nodes that may run the shop
	buildLabel    = "e2e.slipway.dev/build"
)

var web = workload.App{Namespace: shopNamespace, Name: "web", Replicas: 4, StopSeconds: "0.5", NodeSelector: map[string]string{shopLabel: ""}}

// releaseValues contains the values of the release, with a placeholder for the clouds file. The agents get short intervals from
// their file, and the manager from arguments. One NodeGroup is an object, because the cloudpool requires it. The others
// are in the values.
const releaseValues = `
image: {registry: registry.example.com/slipway, tag: v1.2.3}
clouds:
  config:
    azure: %s
    plugins:
      directory: /plugins/bin
      use: [{type: directory, config: {path: /plugins/machines, host: host-1}}]
  secretName: azure
agent:
  config: {pollInterval: 200ms, maxConcurrentDrains: 2}
placement:
  managedNodes: [{matchLabels: {kubernetes.azure.com/agentpool: ci}}]
manager:
  enabled: true
  nodeSelector: {kubernetes.azure.com/agentpool: home}
  nodeGroups:
    spot:
      nodeSelector: {matchLabels: {kubernetes.azure.com/agentpool: spot}}
      cloud: {provider: azure, group: %s}
  extraArgs:
    - --leader-election-lease-duration=1m
    - --group-poll-interval=1s
    - --poll-interval=500ms
    - --cloud-poll-interval=500ms
  extraVolumes: [{name: plugins, emptyDir: {}}]
  extraVolumeMounts: [{name: plugins, mountPath: /plugins, readOnly: true}]
cloudpool:
  enabled: true
  replicas: 1
  nodeSelector: {kubernetes.azure.com/agentpool: home}
  nodeGroups: [ci]
  tls: {secretName: tls}
  extraVolumes: [{name: plugins, emptyDir: {}}]
  extraVolumeMounts: [{name: plugins, mountPath: /plugins, readOnly: true}]
`

// installation holds a new control plane with the installed chart and a process for each of its pods.
type installation struct {
	bed
	spotAgent *controlplane.Process // the agent on the instance that Azure preempts
	cloudpool string                // address of its API
}

// TestInstalledChartRetiresPreemptedAndIdleNodes installs the chart with one values file into a new control plane. It
// starts the programs of the pods as the pods would.
func TestInstalledChartRetiresPreemptedAndIdleNodes(t *testing.T) {
	t.Parallel()
	shared := testbed.StartForTest(t, testbed.Options{Azure: azure.Options{}, ARM: azure.ARMOptions{DeleteTime: time.Second}})
	s := &installation{bed: newBedOn(t, shared)}
	s.addWorkloads()
	s.install()
	s.startProcesses()
	s.preempt()
	s.retireIdleNode()
}

// addWorkloads adds the instances and their workloads. The shop runs on the Spot instance, and each instance of ci runs a
// build.
func (s *installation) addWorkloads() {
	s.t.Helper()
	for pool, n := range map[controlplane.AKSPool]int{home: 2, spot: 1, ci: 2} {
		s.check(s.AddPool(s.ctx, pool, n))
	}
	s.label(spot.NodeName(0), shopLabel)
	s.check(workload.CreateAndAwait(s.ctx, s.Client(), workload.NewNamespace(shopNamespace), web.Deployment(), web.PodDisruptionBudget(),
		buildOn(ci, 0).Pod(), buildOn(ci, 1).Pod()))
	s.label(home.NodeName(0), shopLabel)
	s.label(home.NodeName(1), shopLabel)
}

// buildOn returns a pod that prevents the retirement of an instance.
func buildOn(pool controlplane.AKSPool, instance int) workload.App {
	return workload.App{
		Namespace: shopNamespace, Name: fmt.Sprint("build-", pool.Name, "-", instance), Node: pool.NodeName(instance), StopSeconds: "0.5",
		Labels: map[string]string{buildLabel: "true"},
	}
}

func (s *installation) label(node, key string) {
	s.t.Helper()
	_, err := s.Client().CoreV1().Nodes().Patch(s.ctx, node, types.MergePatchType, []byte(`{"metadata":{"labels":{"`+key+`":""}}}`),
		metav1.PatchOptions{})
	s.check(err)
}

// install creates the Secrets in the values and applies the chart.
func (s *installation) install() {
	s.t.Helper()
	config := s.AzureProviderConfig()
	secrets := "/etc/slipway/secrets/"
	token, authority := s.read(config.Auth.TokenFile), s.read(config.Endpoints.CAFile)
	config.Auth.TokenFile, config.Endpoints.CAFile = secrets+"token", secrets+"ca.crt"
	raw, err := json.Marshal(config)
	s.check(err)
	s.installChart(slipwayChart, releaseName, fmt.Sprintf(releaseValues, raw, spot.ScaleSetName()))
	s.secret("azure", corev1.SecretTypeOpaque, map[string]string{"token": token, "ca.crt": authority})
	key, err := x509.MarshalPKCS8PrivateKey(s.ARMServer().Certificate.PrivateKey)
	s.check(err)
	s.secret("tls", corev1.SecretTypeTLS, map[string]string{
		corev1.TLSCertKey:       string(s.ARMServer().CA),
		corev1.TLSPrivateKeyKey: string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: key})),
	})
}

func (s *installation) secret(name string, kind corev1.SecretType, files map[string]string) {
	s.t.Helper()
	_, err := s.Client().CoreV1().Secrets(releaseName).Create(s.ctx, &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Name: name}, Type: kind, StringData: files,
	}, metav1.CreateOptions{})
	s.check(err)
}

// startProcesses starts the processes. The manager installs the CRDs, so it comes first. The second manager waits for the
// first.
func (s *installation) startProcesses() {
	s.t.Helper()
	for _, pod := range s.pods(releaseName, "slipway-manager", 2) {
		s.addPlugins(s.newContainer(pod)).start([]string{"--listen"})
	}
	s.group()
	agentObjects := s.pods(releaseName, "slipway-agent", 5)
	s.spotAgent, _ = s.newContainer(s.on(spot.NodeName(0), agentObjects)).start([]string{"--listen"}, "--endpoint="+s.ScheduledEventsURL(spot, 0))
	for i := range 2 {
		s.newContainer(s.on(ci.NodeName(i), agentObjects)).start([]string{"--listen"}, "--endpoint="+s.ScheduledEventsURL(ci, i))
	}
	cloudpoolRelease := s.pods(releaseName, "slipway-cloudpool", 1)
	_, addresses := s.addPlugins(s.newContainer(cloudpoolRelease[0])).start([]string{"--listen", "--metrics-listen"})
	s.cloudpool = addresses[0]
}

// addPlugins installs the sample plugin and an empty instance directory where a container looks for them. A program that
// cannot start a plugin does not start.
func (s *installation) addPlugins(c container) container {
	s.t.Helper()
	bin, machines := filepath.Join(c.mounts["/plugins"], "bin"), filepath.Join(c.mounts["/plugins"], "machines")
	for _, dir := range []string{bin, machines} {
		s.check(os.Mkdir(dir, 0o700))
	}
	s.check(testbed.BuildPackages(s.ctx, filepath.Join(bin, "directory"), "./examples/directory"))
	s.check(os.WriteFile(filepath.Join(machines, "host.json"), []byte(`{"quota": 10}`), 0o600))
	return c
}

// group creates the NodeGroup that retires its nodes when they have no build.
func (s *installation) group() {
	s.t.Helper()
	o := &unstructured.Unstructured{Object: map[string]any{}}
	s.check(yaml.Unmarshal([]byte(fmt.Sprintf(`
apiVersion: slipway.dev/v1alpha1
kind: NodeGroup
metadata: {name: ci}
spec:
  nodeSelector: {matchLabels: {kubernetes.azure.com/agentpool: ci}}
  cloud: {provider: azure, group: %s}
  scaleDown: {idleByLabel: {podSelector: {matchLabels: {%s: "true"}}, namespaces: [%s], cooldown: 2s}}
`, ci.ScaleSetName(), buildLabel, shopNamespace)), &o.Object))
	s.apply([]*unstructured.Unstructured{o})
}

// preempt makes Azure preempt the Spot instance, and its agent drains it in time without a forced deletion. The manager
// deletes the Node after the instance is deleted.
func (s *installation) preempt() {
	e, err := s.Azure.Announce(azure.Announcement{Type: azure.Preempt, Resources: []string{spot.ResourceName(0)}})
	s.check(err)
	_, err = s.AwaitNotice(s.ctx, e.EventID, "allowed to begin", func(r azure.EventRecord) bool { return r.StartedBy == azure.ByApproval })
	s.check(err)
	_, err = s.AwaitEvent(s.ctx, spot.NodeName(0), "Drained")
	s.check(err)
	s.check(testbed.PollUntil(s.ctx, "Azure has deleted the instance", func() bool { _, there := s.ARM.VM(spot.ResourceName(0)); return !there }))
	s.check(s.spotAgent.Kill())
	s.markUnreachable(spot.NodeName(0))
	rt := s.retired(spot.NodeName(0))
	if rt.Spec.Reason != v1alpha1.Notice {
		s.t.Errorf("%s was retired for %s, want Notice", rt.Spec.NodeName, rt.Spec.Reason)
	}
	s.check(testbed.PollUntil(s.ctx, "the ledger has the end of each pod", func() bool {
		l, _ := s.Azure.Ledger().Event(e.EventID)
		return l.CountOutcome(azure.OutcomeFinished) == int(web.Replicas)
	}))
	l, _ := s.Azure.Ledger().Event(e.EventID)
	if cut := l.PodsKilledWithTimeLeft(testbed.CutTolerance); len(cut) > 0 {
		s.t.Errorf("killed although time remained: %v", cut)
	}
}

// markUnreachable sets the status as the node lifecycle controller does for a node that sends no heartbeats.
func (s *installation) markUnreachable(node string) {
	s.t.Helper()
	s.check(testbed.PollUntil(s.ctx, "the node is Unknown", func() bool {
		_, err := s.Client().CoreV1().Nodes().Patch(s.ctx, node, types.StrategicMergePatchType,
			[]byte(`{"status":{"conditions":[{"type":"Ready","status":"Unknown","reason":"NodeStatusUnknown"}]}}`), metav1.PatchOptions{}, "status")
		return err == nil || apierrors.IsNotFound(err)
	}))
}

// retireIdleNode ends a build, and a retirement deletes its node and instance. The other build keeps its node. The cloudpool
// observes the change.
func (s *installation) retireIdleNode() {
	s.check(s.Client().CoreV1().Pods(shopNamespace).Delete(s.ctx, buildOn(ci, 0).Name, metav1.DeleteOptions{}))
	rt := s.retired(ci.NodeName(0))
	if rt.Spec.Reason != v1alpha1.Idle {
		s.t.Errorf("%s was retired for %s, want Idle", rt.Spec.NodeName, rt.Spec.Reason)
	}
	if _, there := s.ARM.VM(ci.ResourceName(0)); there {
		s.t.Error("the idle node's instance still exists")
	}
	if _, there := s.ARM.VM(ci.ResourceName(1)); !there {
		s.t.Error("the instance of the node with a build is gone")
	}
	if node, err := s.Client().CoreV1().Nodes().Get(s.ctx, ci.NodeName(1), metav1.GetOptions{}); err != nil || node.Spec.Unschedulable {
		s.t.Errorf("the node with a build: %v, or it is cordoned", err)
	}
	s.checkAccess()
}

// retired waits until a node's retirement has succeeded. It checks that the Node is gone.
func (s *installation) retired(node string) *v1alpha1.NodeRetirement {
	s.t.Helper()
	rt := s.awaitRetirement(node, "succeeded", func(rt *v1alpha1.NodeRetirement) bool { return rt.Status.Phase == v1alpha1.Succeeded })
	if _, err := s.Client().CoreV1().Nodes().Get(s.ctx, node, metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		s.t.Errorf("Node %s still exists: %v", node, err)
	}
	return rt
}

// awaitRetirement waits for a state of the node's only retirement.
func (s *installation) awaitRetirement(node, what string, is func(*v1alpha1.NodeRetirement) bool) *v1alpha1.NodeRetirement {
	s.t.Helper()
	client := dynamic.NewForConfigOrDie(s.RESTConfig()).Resource(v1alpha1.GroupVersion.WithResource("noderetirements"))
	rt := &v1alpha1.NodeRetirement{}
	err := testbed.PollUntil(s.ctx, "the retirement of "+node+" has "+what, func() bool {
		list, err := client.List(s.ctx, metav1.ListOptions{FieldSelector: "spec.nodeName=" + node})
		s.check(err)
		if len(list.Items) != 1 {
			return false
		}
		rt = &v1alpha1.NodeRetirement{} // a new object, so no field of an earlier state remains
		s.check(runtime.DefaultUnstructuredConverter.FromUnstructured(list.Items[0].Object, rt))
		return is(rt)
	})
	if err != nil {
		s.t.Fatalf("%v: %s %s", err, rt.Status.Phase, rt.Status.Message)
	}
	return rt
}

// checkAccess checks the access by the chart's roles. The cloudpool answers only accounts with its client role. The viewer's
// role is enough for plan and status.
func (s *installation) checkAccess() {
	s.t.Helper()
	s.account("client", releaseName+"-slipway-cloudpool-client")
	s.account("viewer", releaseName+"-slipway-viewer")
	for account, want := range map[string]int{"client": http.StatusOK, "viewer": http.StatusForbidden, "": http.StatusUnauthorized} {
		if code, body := s.requestSize(account); code != want || code == http.StatusOK && !strings.Contains(body, `"active": 1`) && !strings.Contains(body, `"active":1`) {
			s.t.Errorf("GET /pool/size as %q: %d %s; want %d", account, code, body, want)
		}
	}
	kubeconfig, err := s.ServiceAccountKubeconfig(s.ctx, releaseName, "viewer", controlplane.TokenOptions{})
	s.check(err)
	for _, command := range []string{"status", "plan"} {
		var out bytes.Buffer
		cmd := testbed.NewCommand(s.ctx, s.t, "slipway", command, "--kubeconfig", kubeconfig)
		cmd.Stdout, cmd.Stderr = &out, &out
		if err := cmd.Run(); err != nil {
			s.t.Errorf("slipway %s with the viewer's permissions: %v: %s", command, err, out.String())
		}
	}
}

// account creates a ServiceAccount and binds it to a ClusterRole.
func (s *installation) account(name, role string) {
	s.t.Helper()
	_, err := s.Client().CoreV1().ServiceAccounts(releaseName).Create(s.ctx, &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: name}},
		metav1.CreateOptions{})
	s.check(err)
	_, err = s.Client().RbacV1().ClusterRoleBindings().Create(s.ctx, &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: releaseName + "-" + name},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: role},
		Subjects:   []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: releaseName, Name: name}},
	}, metav1.CreateOptions{})
	s.check(err)
	s.check(s.AwaitPermissions(s.ctx, releaseName, name, role))
}

// size requests the size of the cloudpool's pool, as an account. An empty account sends no token.
func (s *installation) requestSize(account string) (int, string) {
	s.t.Helper()
	r, err := http.NewRequestWithContext(s.ctx, http.MethodGet, "https://"+s.cloudpool+"/pool/size", nil)
	s.check(err)
	if account != "" {
		token, err := s.Client().CoreV1().ServiceAccounts(releaseName).CreateToken(s.ctx, account,
			&authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{Audiences: []string{"slipway-cloudpool"}}}, metav1.CreateOptions{})
		s.check(err)
		r.Header.Set("Authorization", "Bearer "+token.Status.Token)
	}
	trusted := x509.NewCertPool()
	trusted.AppendCertsFromPEM(s.ARMServer().CA)
	client := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: trusted, MinVersion: tls.VersionTLS12}}}
	defer client.CloseIdleConnections()
	answer, err := client.Do(r)
	s.check(err)
	defer func() { _ = answer.Body.Close() }() // the body is only read
	body, err := io.ReadAll(answer.Body)
	s.check(err)
	return answer.StatusCode, string(body)
}

// read returns the text of a file on this host.
func (b bed) read(file string) string {
	b.t.Helper()
	raw, err := os.ReadFile(filepath.Clean(file))
	b.check(err)
	return string(raw)
}
