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

// dock is the release of the story, and its namespace.
const dock = "dock"

// These are the pools of the story. Pool home has room for all pods and stays.
var (
	home = controlplane.AKSPool{Name: "home"}
	spot = controlplane.AKSPool{Name: "spot", Spot: true}
	ci   = controlplane.AKSPool{Name: "ci"}
	// Pool crowd has no instance until pods need it. Pool night has an instance, and the test kills its manager during
	// the retirement.
	crowd = controlplane.AKSPool{Name: "crowd"}
	night = controlplane.AKSPool{Name: "night"}
)

const (
	shop     = "shop"
	shopNode = "e2e.slipway.dev/shop" // the label of nodes that may run the shop
	build    = "e2e.slipway.dev/build"
)

var web = workload.App{Namespace: shop, Name: "web", Replicas: 4, StopSeconds: "0.5", NodeSelector: map[string]string{shopNode: ""}}

// dockValues contains the story's values, with a placeholder for the clouds file. The agents get short intervals from
// their file, and the manager from arguments. One NodeGroup is an object, because the cloudpool requires it. The others
// are in the values.
const dockValues = `
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
manager:
  nodeSelector: {kubernetes.azure.com/agentpool: home}
  nodeGroups:
    spot:
      nodeSelector: {matchLabels: {kubernetes.azure.com/agentpool: spot}}
      cloud: {provider: azure, group: %s}
    crowd:
      nodeSelector: {matchLabels: {kubernetes.azure.com/agentpool: crowd}}
      cloud: {provider: azure, group: %s}
      maxSize: 10
      scaleUp: {}
      scaleDown: {underutilized: {cooldown: 2s}}
      disruptionBudgets: [{nodes: 100%%}]
    night:
      nodeSelector: {matchLabels: {kubernetes.azure.com/agentpool: night}}
      cloud: {provider: azure, group: %s}
      scaleDown: {idleByLabel: {podSelector: {matchLabels: {%s: "true"}}, namespaces: [%s], cooldown: 2s}}
  extraArgs:
    - --leader-election-lease-duration=1m
    - --group-poll-interval=1s
    - --scale-poll-interval=1s
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

// story holds a new control plane with the installed chart and a process for each of its pods. Only the agents of later
// instances have no process.
type story struct {
	bed
	managers  []*testbed.Manager
	guard     *controlplane.Process // the agent on the instance that Azure preempts
	cloudpool string                // address of its API
}

// TestTheStoryOfAChart installs the chart with one values file into a new control plane. It starts the programs of the
// pods as the pods would. Then it plays the story of the demo. Each chapter has its own instances.
func TestTheStoryOfAChart(t *testing.T) {
	t.Parallel()
	shared := testbed.StartForTest(t, testbed.Options{Azure: azure.Options{}, ARM: azure.ARMOptions{DeleteTime: time.Second}})
	s := &story{bed: onBed(t, shared)}
	s.furnish()
	s.install()
	s.man()
	s.chapter("a machine is taken away", (*story).preempted)
	s.chapter("a machine is idle", (*story).idle)
	s.chapter("pods come without room and go again", (*story).load)
	s.chapter("the manager is killed", (*story).crash)
}

// chapter runs one chapter with the full timeout. The chapter runs even if other chapters failed.
func (s *story) chapter(title string, play func(*story)) {
	s.t.Run(title, func(t *testing.T) {
		c := *s
		c.bed = onBed(t, s.Testbed)
		play(&c)
	})
}

// furnish adds the instances and their workloads. The shop runs on the Spot instance, and each instance of ci and night
// runs a build. The instance of night also runs pods that must move.
func (s *story) furnish() {
	s.t.Helper()
	for pool, n := range map[controlplane.AKSPool]int{home: 2, spot: 1, ci: 2, night: 1, crowd: 0} {
		s.check(s.AddPool(s.ctx, pool, n))
	}
	s.label(spot.NodeName(0), shopNode)
	s.label(night.NodeName(0), cacheNode)
	s.check(workload.CreateAndAwait(s.ctx, s.Client(), workload.NewNamespace(shop), web.Deployment(), web.PodDisruptionBudget(), cache.Deployment(), cache.PodDisruptionBudget(),
		buildOn(ci, 0).Pod(), buildOn(ci, 1).Pod(), buildOn(night, 0).Pod()))
	s.label(home.NodeName(0), shopNode)
	s.label(home.NodeName(1), shopNode)
}

// buildOn returns a pod that prevents the retirement of an instance.
func buildOn(pool controlplane.AKSPool, instance int) workload.App {
	return workload.App{
		Namespace: shop, Name: fmt.Sprint("build-", pool.Name, "-", instance), Node: pool.NodeName(instance), StopSeconds: "0.5",
		Labels: map[string]string{build: "true"},
	}
}

func (s *story) label(node, key string) {
	s.t.Helper()
	_, err := s.Client().CoreV1().Nodes().Patch(s.ctx, node, types.MergePatchType, []byte(`{"metadata":{"labels":{"`+key+`":""}}}`),
		metav1.PatchOptions{})
	s.check(err)
}

// install creates the Secrets in the values and applies the chart.
func (s *story) install() {
	s.t.Helper()
	config := s.AzureProviderConfig()
	config.Groups = append(config.Groups, testbed.EmptyGroupConfig(crowd.ScaleSetName()))
	secrets := "/etc/slipway/secrets/"
	token, authority := s.read(config.Auth.TokenFile), s.read(config.Endpoints.CAFile)
	config.Auth.TokenFile, config.Endpoints.CAFile = secrets+"token", secrets+"ca.crt"
	raw, err := json.Marshal(config)
	s.check(err)
	s.installed(slipwayChart, dock, fmt.Sprintf(dockValues, raw, spot.ScaleSetName(), crowd.ScaleSetName(), night.ScaleSetName(), build, shop))
	s.secret("azure", corev1.SecretTypeOpaque, map[string]string{"token": token, "ca.crt": authority})
	key, err := x509.MarshalPKCS8PrivateKey(s.ARMServer().Certificate.PrivateKey)
	s.check(err)
	s.secret("tls", corev1.SecretTypeTLS, map[string]string{
		corev1.TLSCertKey:       string(s.ARMServer().CA),
		corev1.TLSPrivateKeyKey: string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: key})),
	})
}

func (s *story) secret(name string, kind corev1.SecretType, files map[string]string) {
	s.t.Helper()
	_, err := s.Client().CoreV1().Secrets(dock).Create(s.ctx, &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Name: name}, Type: kind, StringData: files,
	}, metav1.CreateOptions{})
	s.check(err)
}

// man starts the processes. The manager installs the types, so it comes first. The second manager waits for the first.
func (s *story) man() {
	s.t.Helper()
	for _, pod := range s.pods(dock, "slipway-manager", 2) {
		p, addresses := s.plugged(s.contain(pod)).start([]string{"--listen"})
		s.managers = append(s.managers, &testbed.Manager{Process: p, URL: "http://" + addresses[0]})
	}
	s.group()
	agents := s.pods(dock, "slipway-agent", 6)
	s.guard, _ = s.contain(s.on(spot.NodeName(0), agents)).start([]string{"--listen"}, "--endpoint="+s.ScheduledEventsURL(spot, 0))
	for i := range 2 {
		s.contain(s.on(ci.NodeName(i), agents)).start([]string{"--listen"}, "--endpoint="+s.ScheduledEventsURL(ci, i))
	}
	s.contain(s.on(night.NodeName(0), agents)).start([]string{"--listen"}, "--endpoint="+s.ScheduledEventsURL(night, 0))
	front := s.pods(dock, "slipway-cloudpool", 1)
	_, addresses := s.plugged(s.contain(front[0])).start([]string{"--listen", "--metrics-listen"})
	s.cloudpool = addresses[0]
}

// plugged installs the sample plugin and an empty instance directory where a container looks for them. A program that
// cannot start a plugin does not start.
func (s *story) plugged(c container) container {
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
func (s *story) group() {
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
`, ci.ScaleSetName(), build, shop)), &o.Object))
	s.apply([]*unstructured.Unstructured{o})
}

// preempted is the first chapter. Azure preempts the Spot instance, and its agent drains it in time without a forced
// deletion. The manager cleans up after the instance is really gone.
func (s *story) preempted() {
	e, err := s.Azure.Announce(azure.Announcement{Type: azure.Preempt, Resources: []string{spot.ResourceName(0)}})
	s.check(err)
	_, err = s.AwaitNotice(s.ctx, e.EventID, "allowed to begin", func(r azure.EventRecord) bool { return r.StartedBy == azure.ByApproval })
	s.check(err)
	_, err = s.AwaitEvent(s.ctx, spot.NodeName(0), "Drained")
	s.check(err)
	s.check(testbed.PollUntil(s.ctx, "Azure has taken the machine", func() bool { _, there := s.ARM.VM(spot.ResourceName(0)); return !there }))
	s.check(s.guard.Kill())
	s.silence(spot.NodeName(0))
	rt := s.retired(spot.NodeName(0))
	if rt.Spec.Reason != v1alpha1.Notice {
		s.t.Errorf("%s was retired for %s, want a notice", rt.Spec.NodeName, rt.Spec.Reason)
	}
	s.check(testbed.PollUntil(s.ctx, "the ledger is settled", func() bool {
		l, _ := s.Azure.Ledger().Event(e.EventID)
		return l.CountOutcome(azure.OutcomeFinished) == int(web.Replicas)
	}))
	l, _ := s.Azure.Ledger().Event(e.EventID)
	if cut := l.PodsKilledWithTimeLeft(testbed.CutTolerance); len(cut) > 0 {
		s.t.Errorf("cut short while time remained: %v", cut)
	}
}

// silence sets the status as the node lifecycle controller does for a node that sends no heartbeats.
func (s *story) silence(node string) {
	s.t.Helper()
	s.check(testbed.PollUntil(s.ctx, "the node is called Unknown", func() bool {
		_, err := s.Client().CoreV1().Nodes().Patch(s.ctx, node, types.StrategicMergePatchType,
			[]byte(`{"status":{"conditions":[{"type":"Ready","status":"Unknown","reason":"NodeStatusUnknown"}]}}`), metav1.PatchOptions{}, "status")
		return err == nil || apierrors.IsNotFound(err)
	}))
}

// idle is the second chapter. A build ends, and a retirement removes its node and instance. The other build keeps its
// own. The cloudpool observes the change.
func (s *story) idle() {
	s.check(s.Client().CoreV1().Pods(shop).Delete(s.ctx, buildOn(ci, 0).Name, metav1.DeleteOptions{}))
	rt := s.retired(ci.NodeName(0))
	if rt.Spec.Reason != v1alpha1.Idle {
		s.t.Errorf("%s was retired for %s, want that it is idle", rt.Spec.NodeName, rt.Spec.Reason)
	}
	if _, there := s.ARM.VM(ci.ResourceName(0)); there {
		s.t.Error("the idle node's machine is there")
	}
	if _, there := s.ARM.VM(ci.ResourceName(1)); !there {
		s.t.Error("the machine of the node with a build is gone")
	}
	if node, err := s.Client().CoreV1().Nodes().Get(s.ctx, ci.NodeName(1), metav1.GetOptions{}); err != nil || node.Spec.Unschedulable {
		s.t.Errorf("the node with a build: %v, or it is cordoned", err)
	}
	s.asked()
}

// retired waits until a node's retirement has succeeded. It checks that the Node is gone.
func (s *story) retired(node string) *v1alpha1.NodeRetirement {
	s.t.Helper()
	rt := s.awaitRetirement(node, "succeeded", func(rt *v1alpha1.NodeRetirement) bool { return rt.Status.Phase == v1alpha1.Succeeded })
	if _, err := s.Client().CoreV1().Nodes().Get(s.ctx, node, metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		s.t.Errorf("Node %s is there: %v", node, err)
	}
	return rt
}

// awaitRetirement waits for a state of the node's only retirement.
func (s *story) awaitRetirement(node, what string, is func(*v1alpha1.NodeRetirement) bool) *v1alpha1.NodeRetirement {
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

// asked checks the access by the chart's roles. The cloudpool answers only accounts with its client role. The viewer's
// role is enough for plan and status.
func (s *story) asked() {
	s.t.Helper()
	s.account("client", dock+"-slipway-cloudpool-client")
	s.account("viewer", dock+"-slipway-viewer")
	for account, want := range map[string]int{"client": http.StatusOK, "viewer": http.StatusForbidden, "": http.StatusUnauthorized} {
		if code, body := s.size(account); code != want || code == http.StatusOK && !strings.Contains(body, `"active": 1`) && !strings.Contains(body, `"active":1`) {
			s.t.Errorf("the size, asked by %q: %d %s; want %d", account, code, body, want)
		}
	}
	kubeconfig, err := s.ServiceAccountKubeconfig(s.ctx, dock, "viewer", controlplane.TokenOptions{})
	s.check(err)
	for _, command := range []string{"status", "plan"} {
		var out bytes.Buffer
		cmd := testbed.NewCommand(s.ctx, s.t, "slipway", command, "--kubeconfig", kubeconfig)
		cmd.Stdout, cmd.Stderr = &out, &out
		if err := cmd.Run(); err != nil {
			s.t.Errorf("slipway %s with the viewer's rights: %v: %s", command, err, out.String())
		}
	}
}

// account creates a ServiceAccount and binds it to a ClusterRole.
func (s *story) account(name, role string) {
	s.t.Helper()
	_, err := s.Client().CoreV1().ServiceAccounts(dock).Create(s.ctx, &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: name}},
		metav1.CreateOptions{})
	s.check(err)
	_, err = s.Client().RbacV1().ClusterRoleBindings().Create(s.ctx, &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: dock + "-" + name},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: role},
		Subjects:   []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: dock, Name: name}},
	}, metav1.CreateOptions{})
	s.check(err)
	s.check(s.AwaitPermissions(s.ctx, dock, name, role))
}

// size requests the size of the cloudpool's pool, as an account. An empty account sends no token.
func (s *story) size(account string) (int, string) {
	s.t.Helper()
	r, err := http.NewRequestWithContext(s.ctx, http.MethodGet, "https://"+s.cloudpool+"/pool/size", nil)
	s.check(err)
	if account != "" {
		token, err := s.Client().CoreV1().ServiceAccounts(dock).CreateToken(s.ctx, account,
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
