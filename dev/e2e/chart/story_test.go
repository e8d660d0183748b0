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

// The pools of the story: home has room for all and stays.
var (
	home = controlplane.AKSPool{Name: "home"}
	spot = controlplane.AKSPool{Name: "spot", Spot: true}
	ci   = controlplane.AKSPool{Name: "ci"}
	// crowd has no machine until pods come for it, and night one whose manager is killed.
	crowd = controlplane.AKSPool{Name: "crowd"}
	night = controlplane.AKSPool{Name: "night"}
)

const (
	shop     = "shop"
	shopNode = "e2e.slipway.dev/shop" // the label of nodes that the shop may run on
	build    = "e2e.slipway.dev/build"
)

var web = workload.App{Namespace: shop, Name: "web", Replicas: 4, Stop: "0.5", NodeSelector: map[string]string{shopNode: ""}}

// dockValues are the story's, with the file of clouds to fill in. The agents are told to be quick in their file, the manager
// by arguments. One NodeGroup is an object, as the cloudpool wants it, and the others are in the values.
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

// story is a fresh control plane with the chart installed on it, and every process running that its pods would be, but for
// the agents of machines that come later.
type story struct {
	bed
	managers  []*testbed.Manager
	guard     *controlplane.Process // the agent on the machine that is taken away
	cloudpool string                // address of its API
}

// TestTheStoryOfAChart installs the chart with one file of values into a fresh control plane, starts what its pods would
// run, as they would run it, and tells the story of the demo on that. Its chapters have machines of their own.
func TestTheStoryOfAChart(t *testing.T) {
	t.Parallel()
	shared := testbed.ForTest(t, testbed.Options{Azure: azure.Options{}, ARM: azure.ARMOptions{DeleteTime: time.Second}})
	s := &story{bed: onBed(t, shared)}
	s.furnish()
	s.install()
	s.man()
	s.chapter("a machine is taken away", (*story).preempted)
	s.chapter("a machine is idle", (*story).idle)
	s.chapter("pods come without room and go again", (*story).load)
	s.chapter("the manager is killed", (*story).crash)
}

// chapter plays one with all of the patience. Whether the others went well is nothing to it.
func (s *story) chapter(title string, play func(*story)) {
	s.t.Run(title, func(t *testing.T) {
		c := *s
		c.bed = onBed(t, s.Testbed)
		play(&c)
	})
}

// furnish adds the machines and what runs on them: the shop on the Spot machine, a build on each machine of ci and of night,
// and beside the latter what has to move.
func (s *story) furnish() {
	s.t.Helper()
	for pool, n := range map[controlplane.AKSPool]int{home: 2, spot: 1, ci: 2, night: 1, crowd: 0} {
		s.check(s.AddPool(s.ctx, pool, n))
	}
	s.label(spot.NodeName(0), shopNode)
	s.label(night.NodeName(0), cacheNode)
	s.check(workload.CreateSettled(s.ctx, s.Client(), workload.Namespace(shop), web.Deployment(), web.Budget(), cache.Deployment(), cache.Budget(),
		buildOn(ci, 0).Pod(), buildOn(ci, 1).Pod(), buildOn(night, 0).Pod()))
	s.label(home.NodeName(0), shopNode)
	s.label(home.NodeName(1), shopNode)
}

// buildOn is a pod that keeps a machine.
func buildOn(pool controlplane.AKSPool, instance int) workload.App {
	return workload.App{
		Namespace: shop, Name: fmt.Sprint("build-", pool.Name, "-", instance), Node: pool.NodeName(instance), Stop: "0.5",
		Labels: map[string]string{build: "true"},
	}
}

func (s *story) label(node, key string) {
	s.t.Helper()
	_, err := s.Client().CoreV1().Nodes().Patch(s.ctx, node, types.MergePatchType, []byte(`{"metadata":{"labels":{"`+key+`":""}}}`),
		metav1.PatchOptions{})
	s.check(err)
}

// install makes the Secrets that the values name, and applies the chart.
func (s *story) install() {
	s.t.Helper()
	config := s.AzureConfig()
	config.Groups = append(config.Groups, testbed.GroupFromNone(crowd.ScaleSet()))
	secrets := "/etc/slipway/secrets/"
	token, authority := s.read(config.Auth.TokenFile), s.read(config.Endpoints.CAFile)
	config.Auth.TokenFile, config.Endpoints.CAFile = secrets+"token", secrets+"ca.crt"
	raw, err := json.Marshal(config)
	s.check(err)
	s.installed(slipwayChart, dock, fmt.Sprintf(dockValues, raw, spot.ScaleSet(), crowd.ScaleSet(), night.ScaleSet(), build, shop))
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

// man starts the processes. The manager installs the types, so that it comes first; the second one waits for the first.
func (s *story) man() {
	s.t.Helper()
	for _, pod := range s.pods(dock, "slipway-manager", 2) {
		p, addresses := s.plugged(s.contain(pod)).start([]string{"--listen"})
		s.managers = append(s.managers, &testbed.Manager{Process: p, URL: "http://" + addresses[0]})
	}
	s.group()
	agents := s.pods(dock, "slipway-agent", 6)
	s.guard, _ = s.contain(s.on(spot.NodeName(0), agents)).start([]string{"--listen"}, "--endpoint="+s.Endpoint(spot, 0))
	for i := range 2 {
		s.contain(s.on(ci.NodeName(i), agents)).start([]string{"--listen"}, "--endpoint="+s.Endpoint(ci, i))
	}
	s.contain(s.on(night.NodeName(0), agents)).start([]string{"--listen"}, "--endpoint="+s.Endpoint(night, 0))
	front := s.pods(dock, "slipway-cloudpool", 1)
	_, addresses := s.plugged(s.contain(front[0])).start([]string{"--listen", "--metrics-listen"})
	s.cloudpool = addresses[0]
}

// plugged puts the sample plugin, and an empty directory of machines, where a container looks for them. A program that
// cannot start a plugin does not start.
func (s *story) plugged(c container) container {
	s.t.Helper()
	bin, machines := filepath.Join(c.mounts["/plugins"], "bin"), filepath.Join(c.mounts["/plugins"], "machines")
	for _, dir := range []string{bin, machines} {
		s.check(os.Mkdir(dir, 0o700))
	}
	s.check(testbed.Build(s.ctx, filepath.Join(bin, "directory"), "./examples/directory"))
	s.check(os.WriteFile(filepath.Join(machines, "host.json"), []byte(`{"quota": 10}`), 0o600))
	return c
}

// group creates the NodeGroup whose nodes leave without a build.
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
`, ci.ScaleSet(), build, shop)), &o.Object))
	s.apply([]*unstructured.Unstructured{o})
}

// preempted is the first chapter: Azure takes the Spot machine away; its agent drains it in time, past no budget, and the
// manager cleans up once the machine is really gone.
func (s *story) preempted() {
	e, err := s.Azure.Announce(azure.Announcement{Type: azure.Preempt, Resources: []string{spot.Resource(0)}})
	s.check(err)
	_, err = s.AwaitNotice(s.ctx, e.EventID, "allowed to begin", func(r azure.Record) bool { return r.StartedBy == azure.ByApproval })
	s.check(err)
	_, err = s.AwaitEvent(s.ctx, spot.NodeName(0), "Drained")
	s.check(err)
	s.check(testbed.Poll(s.ctx, "Azure has taken the machine", func() bool { _, there := s.ARM.VM(spot.Resource(0)); return !there }))
	s.check(s.guard.Kill())
	s.silence(spot.NodeName(0))
	rt := s.retired(spot.NodeName(0))
	if rt.Spec.Reason != v1alpha1.Notice {
		s.t.Errorf("%s was retired for %s, want a notice", rt.Spec.NodeName, rt.Spec.Reason)
	}
	s.check(testbed.Poll(s.ctx, "the ledger is settled", func() bool {
		l, _ := s.Azure.Ledger().Event(e.EventID)
		return l.Count(azure.OutcomeFinished) == int(web.Replicas)
	}))
	l, _ := s.Azure.Ledger().Event(e.EventID)
	if cut := l.CutWithTimeLeft(testbed.CutTolerance); len(cut) > 0 {
		s.t.Errorf("cut short while time remained: %v", cut)
	}
}

// silence does what the node lifecycle controller does of a node that is silent for long enough.
func (s *story) silence(node string) {
	s.t.Helper()
	s.check(testbed.Poll(s.ctx, "the node is called Unknown", func() bool {
		_, err := s.Client().CoreV1().Nodes().Patch(s.ctx, node, types.StrategicMergePatchType,
			[]byte(`{"status":{"conditions":[{"type":"Ready","status":"Unknown","reason":"NodeStatusUnknown"}]}}`), metav1.PatchOptions{}, "status")
		return err == nil || apierrors.IsNotFound(err)
	}))
}

// idle is the second: a build ends, and its node leaves with its machine; the other build keeps its own. The cloudpool has heard
// of it.
func (s *story) idle() {
	s.check(s.Client().CoreV1().Pods(shop).Delete(s.ctx, buildOn(ci, 0).Name, metav1.DeleteOptions{}))
	rt := s.retired(ci.NodeName(0))
	if rt.Spec.Reason != v1alpha1.Idle {
		s.t.Errorf("%s was retired for %s, want that it is idle", rt.Spec.NodeName, rt.Spec.Reason)
	}
	if _, there := s.ARM.VM(ci.Resource(0)); there {
		s.t.Error("the idle node's machine is there")
	}
	if _, there := s.ARM.VM(ci.Resource(1)); !there {
		s.t.Error("the machine of the node with a build is gone")
	}
	if node, err := s.Client().CoreV1().Nodes().Get(s.ctx, ci.NodeName(1), metav1.GetOptions{}); err != nil || node.Spec.Unschedulable {
		s.t.Errorf("the node with a build: %v, or it is cordoned", err)
	}
	s.asked()
}

// retired waits until a node's retirement has succeeded, and its Node is gone.
func (s *story) retired(node string) *v1alpha1.NodeRetirement {
	s.t.Helper()
	rt := s.awaitRetirement(node, "succeeded", func(rt *v1alpha1.NodeRetirement) bool { return rt.Status.Phase == v1alpha1.Succeeded })
	if _, err := s.Client().CoreV1().Nodes().Get(s.ctx, node, metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		s.t.Errorf("Node %s is there: %v", node, err)
	}
	return rt
}

// awaitRetirement waits for a state of the one retirement of a node.
func (s *story) awaitRetirement(node, what string, is func(*v1alpha1.NodeRetirement) bool) *v1alpha1.NodeRetirement {
	s.t.Helper()
	client := dynamic.NewForConfigOrDie(s.RESTConfig()).Resource(v1alpha1.GroupVersion.WithResource("noderetirements"))
	rt := &v1alpha1.NodeRetirement{}
	err := testbed.Poll(s.ctx, "the retirement of "+node+" has "+what, func() bool {
		list, err := client.List(s.ctx, metav1.ListOptions{FieldSelector: "spec.nodeName=" + node})
		s.check(err)
		if len(list.Items) != 1 {
			return false
		}
		rt = &v1alpha1.NodeRetirement{} // of an earlier state nothing is left
		s.check(runtime.DefaultUnstructuredConverter.FromUnstructured(list.Items[0].Object, rt))
		return is(rt)
	})
	if err != nil {
		s.t.Fatalf("%v: %s %s", err, rt.Status.Phase, rt.Status.Message)
	}
	return rt
}

// asked is who may ask, by the chart's roles: the cloudpool answers whom its client role is bound to and nobody else, and the
// viewer's role is all that plan and status need.
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
		cmd := testbed.Command(s.ctx, s.t, "slipway", command, "--kubeconfig", kubeconfig)
		cmd.Stdout, cmd.Stderr = &out, &out
		if err := cmd.Run(); err != nil {
			s.t.Errorf("slipway %s with the viewer's rights: %v: %s", command, err, out.String())
		}
	}
}

// account makes a ServiceAccount and binds it to a ClusterRole.
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
	s.check(s.AwaitRights(s.ctx, dock, name, role))
}

// size asks the cloudpool for the size of its pool, as an account; "" shows no token.
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
	defer func() { _ = answer.Body.Close() }() // It was only read.
	body, err := io.ReadAll(answer.Body)
	s.check(err)
	return answer.StatusCode, string(body)
}

// read is the text of a file of this machine.
func (b bed) read(file string) string {
	b.t.Helper()
	raw, err := os.ReadFile(filepath.Clean(file))
	b.check(err)
	return string(raw)
}
