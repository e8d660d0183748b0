package chart_test

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/slipway-dev/slipway/api/v1alpha1"
	"github.com/slipway-dev/slipway/dev/azure"
	"github.com/slipway-dev/slipway/dev/controlplane"
	"github.com/slipway-dev/slipway/dev/testbed"
	"github.com/slipway-dev/slipway/dev/workload"
)

// helm runs the program helm and returns its output.
func (b bed) helm(args ...string) string {
	b.t.Helper()
	built, err := controlplane.BuildClientBinaries(b.ctx, os.Stderr)
	b.check(err)
	cmd := exec.CommandContext(b.ctx, built.Helm, append(args, "--kubeconfig", b.Kubeconfig())...)
	cmd.Env = controlplane.MinimalEnvironment(b.t.TempDir())
	out, err := cmd.CombinedOutput()
	if err != nil {
		b.t.Fatalf("helm %s: %v: %s", strings.Join(args, " "), err, out)
	}
	return string(out)
}

// TestHelmUpgradeWarnsBeforeItRemovesTheManager upgrades a release with a manager to the default values.
func TestHelmUpgradeWarnsBeforeItRemovesTheManager(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	const name, warning = "kept", "WARNING: this upgrade removes the manager"
	helm := func(command string, args ...string) string {
		t.Helper()
		return b.helm(append([]string{command, name, filepath.Join(root(t), "charts", slipwayChart), "-n", name,
			"--set", "image.registry=registry.example.com/slipway,agent.linux.enabled=false,agent.windows.enabled=true"}, args...)...)
	}
	quiet := helm("install", "--create-namespace", "--set", "manager.enabled=true") + helm("upgrade", "--set", "manager.enabled=true")
	if strings.Contains(quiet, warning) {
		t.Errorf("helm warns although the manager stays:\n%s", quiet)
	}
	if notes := helm("upgrade"); !strings.Contains(notes, warning) {
		t.Errorf("helm upgrade prints:\n%s", notes)
	}
	if notes := helm("upgrade"); strings.Contains(notes, warning) {
		t.Errorf("helm warns although there is no manager:\n%s", notes)
	}
	b.helm("uninstall", name, "-n", name)
}

// earlierRelease is a release to upgrade from: its chart and the directory of its programs.
type earlierRelease struct{ chart, programs string }

// previousRoot names a checkout of an earlier commit with its programs in bin/. Without it, the earlier release is this
// checkout. Its chart gets a lower version, which is also the tag of its images.
const previousRoot = "SLIPWAY_PREVIOUS"

var chartVersions = regexp.MustCompile(`(?m)^((?:app)?[vV]ersion: ).*$`)

func newEarlierRelease(t *testing.T) earlierRelease {
	t.Helper()
	from, programs := os.Getenv(previousRoot), ""
	if from != "" {
		programs = filepath.Join(from, "bin")
	} else {
		slipway, err := testbed.EnsureBinary("slipway")
		if err != nil {
			t.Fatal(err)
		}
		from, programs = root(t), filepath.Dir(slipway)
	}
	dir := filepath.Join(t.TempDir(), slipwayChart)
	if err := os.CopyFS(dir, os.DirFS(filepath.Join(from, "charts", slipwayChart))); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(dir, "Chart.yaml")
	raw, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if n := len(chartVersions.FindAll(raw, -1)); n != 2 {
		t.Fatalf("%s has %d versions, want 2", file, n)
	}
	if err := os.WriteFile(file, chartVersions.ReplaceAll(raw, []byte("${1}0.0.9")), 0o600); err != nil {
		t.Fatal(err)
	}
	return earlierRelease{dir, programs}
}

const upgradedRelease = "upgraded"

// upgradeValues contains the values of both releases, with placeholders for the clouds file and a scale set. The pods of
// agents and managers take 5 s to stop, so that the test can end their processes while their tokens are valid.
const upgradeValues = `
image: {registry: registry.example.com/slipway}
clouds: {config: {azure: %s}, secretName: azure}
agent:
  config: {pollInterval: 200ms}
  podAnnotations: {dev.slipway.dev/stop-seconds: "5"}
manager:
  enabled: true
  nodeSelector: {kubernetes.azure.com/agentpool: home}
  podAnnotations: {dev.slipway.dev/stop-seconds: "5"}
  nodeGroups:
    ci: {nodeSelector: {matchLabels: {kubernetes.azure.com/agentpool: ci}}, cloud: {provider: azure, group: %s}}
  extraArgs: [--group-poll-interval=1s, --poll-interval=500ms, --cloud-poll-interval=500ms]
`

// upgrade holds a control plane with a release in the middle of two drains: an agent drains the node spot for a notice, and
// the manager retires the node ci.
type upgrade struct {
	installation
	from    earlierRelease
	running []runningPod
	history map[string]*testbed.NodeHistory // by node
	endings *podEndings
}

// runningPod is a pod of the release with its process.
type runningPod struct {
	pod     corev1.Pod
	process *controlplane.Process
}

var (
	// blocked has pods on both nodes. Its PDB allows no eviction until the upgrade is done.
	blocked = workload.App{Namespace: shopNamespace, Name: "blocked", Replicas: 4, MaxUnavailable: "0", StopSeconds: "0.5", NodeSelector: map[string]string{shopLabel: ""}}
	// slow has pods on both nodes that take longer to stop than the upgrade of the agents.
	slow = workload.App{Namespace: shopNamespace, Name: "slow", Replicas: 4, StopSeconds: "15", GracePeriod: time.Minute, NodeSelector: map[string]string{shopLabel: ""}}
)

// TestHelmUpgradeMidDrainLosesNothing upgrades a release from an earlier one while an agent drains a node, and the manager
// retires another. Some pods are stopping, and others are blocked by PDB.
func TestHelmUpgradeMidDrainLosesNothing(t *testing.T) {
	t.Parallel()
	shared := testbed.StartForTest(t, testbed.Options{Azure: azure.Options{}, ARM: azure.ARMOptions{DeleteTime: time.Second}})
	s := &upgrade{installation: installation{bed: newBedOn(t, shared)}, from: newEarlierRelease(t), history: map[string]*testbed.NodeHistory{}}
	s.installEarlier()
	noticed, retired := spot.NodeName(0), ci.NodeName(0)
	event := s.startDrains()
	claims := map[string]map[string]string{noticed: s.claims(noticed), retired: s.claims(retired)}

	s.upgrade()

	for node, want := range claims {
		if got := s.claims(node); len(want) == 0 || !maps.Equal(got, want) {
			t.Errorf("the cordon claims of %s were %v, and are %v after the upgrade", node, want, got)
		}
	}
	s.check(s.Client().PolicyV1().PodDisruptionBudgets(shopNamespace).Delete(s.ctx, blocked.Name, metav1.DeleteOptions{}))
	_, err := s.AwaitEvent(s.ctx, noticed, "Drained")
	s.check(err)
	rt := s.retired(retired)
	if _, there := s.ARM.VM(ci.ResourceName(0)); there {
		t.Error("the instance of the retired node still exists")
	}
	_, err = s.AwaitNotice(s.ctx, event, "allowed to begin", func(r azure.EventRecord) bool { return r.StartedBy == azure.ByApproval })
	s.check(err)
	s.checkEndings(event)
	s.checkEvents(noticed, retired, rt)
	s.checkCordonsHeld()
}

// installEarlier adds the nodes and their pods, installs the earlier release, and starts its processes.
func (s *upgrade) installEarlier() {
	s.t.Helper()
	for pool, n := range map[controlplane.AKSPool]int{home: 2, spot: 1, ci: 1} {
		s.check(s.AddPool(s.ctx, pool, n))
	}
	s.label(spot.NodeName(0), shopLabel)
	s.label(ci.NodeName(0), shopLabel)
	s.check(workload.CreateAndAwait(s.ctx, s.Client(), workload.NewNamespace(shopNamespace), blocked.Deployment(), blocked.PodDisruptionBudget(), slow.Deployment()))
	s.label(home.NodeName(0), shopLabel)
	s.label(home.NodeName(1), shopLabel)

	config := s.AzureProviderConfig()
	token, authority := s.read(config.Auth.TokenFile), s.read(config.Endpoints.CAFile)
	config.Auth.TokenFile, config.Endpoints.CAFile = "/etc/slipway/secrets/token", "/etc/slipway/secrets/ca.crt"
	raw, err := json.Marshal(config)
	s.check(err)
	values := testbed.WriteTempFile(s.t, "values.yaml", fmt.Sprintf(upgradeValues, raw, ci.ScaleSetName()))
	_, err = s.Client().CoreV1().Namespaces().Create(s.ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: upgradedRelease}}, metav1.CreateOptions{})
	s.check(err)
	_, err = s.Client().CoreV1().Secrets(upgradedRelease).Create(s.ctx, &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Name: "azure"}, StringData: map[string]string{"token": token, "ca.crt": authority},
	}, metav1.CreateOptions{})
	s.check(err)
	s.helm("install", upgradedRelease, s.from.chart, "-n", upgradedRelease, "-f", values)
	for _, pod := range s.pods(upgradedRelease, "slipway-manager", 2) {
		s.run(pod, s.from.programs)
	}
	agents := s.pods(upgradedRelease, "slipway-agent", 4)
	for _, node := range []string{spot.NodeName(0), ci.NodeName(0)} {
		s.run(s.on(node, agents), s.from.programs)
	}
}

// run starts the process of a pod, with a program from a directory.
func (s *upgrade) run(pod corev1.Pod, programs string) {
	s.t.Helper()
	c := s.newContainer(pod)
	c.programs = programs
	var more []string
	for _, pool := range []controlplane.AKSPool{spot, ci} {
		if pod.Spec.NodeName == pool.NodeName(0) {
			more = append(more, "--endpoint="+s.ScheduledEventsURL(pool, 0))
		}
	}
	p, _ := c.start([]string{"--listen"}, more...)
	s.running = append(s.running, runningPod{pod, p})
}

// startDrains starts a drain for a notice and a retirement. It waits until both have stopping pods and pods that are blocked
// by PDB. It returns the ID of the notice.
func (s *upgrade) startDrains() string {
	s.t.Helper()
	s.endings = s.recordPodEndings(spot.NodeName(0), ci.NodeName(0))
	for _, node := range []string{spot.NodeName(0), ci.NodeName(0)} {
		h, err := s.RecordNodeStates(s.ctx, node)
		s.check(err)
		s.t.Cleanup(h.StopRecording)
		s.history[node] = h
	}
	cmd := exec.CommandContext(s.ctx, filepath.Join(s.from.programs, "slipway"), "retire", ci.NodeName(0), "--kubeconfig", s.Kubeconfig())
	cmd.Env = controlplane.MinimalEnvironment(s.t.TempDir())
	if out, err := cmd.CombinedOutput(); err != nil {
		s.t.Fatalf("slipway retire: %v: %s", err, out)
	}
	e, err := s.Azure.Announce(azure.Announcement{Type: azure.Redeploy, Resources: []string{spot.ResourceName(0)}, Notice: 10 * time.Minute})
	s.check(err)
	s.awaitRetirement(ci.NodeName(0), "begun to drain", func(rt *v1alpha1.NodeRetirement) bool { return rt.Status.Phase == v1alpha1.Draining })
	for _, node := range []string{spot.NodeName(0), ci.NodeName(0)} {
		_, err = s.AwaitPods(s.ctx, node, "pods that stop, and pods that are blocked", func(pods []corev1.Pod) bool {
			stopping, staying := 0, 0
			for _, p := range pods {
				switch {
				case strings.HasPrefix(p.Name, slow.Name) && p.DeletionTimestamp != nil:
					stopping++
				case strings.HasPrefix(p.Name, blocked.Name) && p.DeletionTimestamp == nil:
					staying++
				}
			}
			return stopping > 0 && staying > 0
		})
		s.check(err)
	}
	_, err = s.AwaitEvent(s.ctx, spot.NodeName(0), "DrainBlocked")
	s.check(err)
	return e.EventID
}

// claims returns the annotations of a node's cordon claims.
func (s *upgrade) claims(node string) map[string]string {
	s.t.Helper()
	n, err := s.Client().CoreV1().Nodes().Get(s.ctx, node, metav1.GetOptions{})
	s.check(err)
	if !n.Spec.Unschedulable {
		s.t.Errorf("%s is not cordoned", node)
	}
	claims := maps.Clone(n.Annotations)
	maps.DeleteFunc(claims, func(key, _ string) bool { return !strings.HasPrefix(key, "cordon.slipway.dev/") })
	return claims
}

// upgrade upgrades the release. It stops and starts processes as the kubelets would: an old pod's process gets SIGTERM when
// its controller deletes the pod, and a new pod's process starts when the pod is on its node.
func (s *upgrade) upgrade() {
	s.t.Helper()
	old := s.running
	s.running = nil
	programs, err := testbed.EnsureBinary("slipway")
	s.check(err)
	out := s.helm("upgrade", upgradedRelease, filepath.Join(root(s.t), "charts", slipwayChart), "-n", upgradedRelease, "--reset-then-reuse-values")
	if !strings.Contains(out, "STATUS: deployed") {
		s.t.Errorf("helm upgrade prints:\n%s", out)
	}
	for _, r := range old {
		s.check(testbed.PollUntil(s.ctx, r.pod.Name+" is deleted", func() bool {
			pod, err := s.Client().CoreV1().Pods(upgradedRelease).Get(s.ctx, r.pod.Name, metav1.GetOptions{})
			return err != nil || pod.DeletionTimestamp != nil
		}))
		s.check(syscall.Kill(r.process.PID(), syscall.SIGTERM))
		select {
		case <-r.process.Exited():
		case <-s.ctx.Done():
			s.t.Fatalf("%s does not end", r.pod.Name)
		}
		s.run(s.successor(r.pod), filepath.Dir(programs))
	}
}

// successor waits for a pod of the new version that replaces an old one: an agent on the same node, or a manager without a
// process.
func (s *upgrade) successor(old corev1.Pod) (pod corev1.Pod) {
	s.t.Helper()
	part := old.Labels["app.kubernetes.io/name"]
	s.check(testbed.PollUntil(s.ctx, "a pod replaces "+old.Name, func() bool {
		list, err := s.Client().CoreV1().Pods(upgradedRelease).List(s.ctx, metav1.ListOptions{LabelSelector: "app.kubernetes.io/name=" + part})
		s.check(err)
		i := slices.IndexFunc(list.Items, func(p corev1.Pod) bool {
			started := slices.ContainsFunc(s.running, func(r runningPod) bool { return r.pod.UID == p.UID })
			return p.Spec.NodeName != "" && !started && p.DeletionTimestamp == nil && p.Labels["helm.sh/chart"] != old.Labels["helm.sh/chart"] &&
				(part != "slipway-agent" || p.Spec.NodeName == old.Spec.NodeName)
		})
		if i >= 0 {
			pod = list.Items[i]
		}
		return i >= 0
	}))
	return pod
}

// podEndings records how the pods of the shop end.
type podEndings struct {
	sync.Mutex
	expected map[types.UID]string // name of each pod that has to leave
	ended    map[types.UID]controlplane.PodEnding
}

// recordPodEndings records the pods that are now on the nodes.
func (s *upgrade) recordPodEndings(nodes ...string) *podEndings {
	s.t.Helper()
	e := &podEndings{expected: map[types.UID]string{}, ended: map[types.UID]controlplane.PodEnding{}}
	list, err := s.Client().CoreV1().Pods(shopNamespace).List(s.ctx, metav1.ListOptions{})
	s.check(err)
	for _, p := range list.Items {
		if slices.Contains(nodes, p.Spec.NodeName) {
			e.expected[p.UID] = p.Name
		}
	}
	if want := int(blocked.Replicas + slow.Replicas); len(e.expected) != want {
		s.t.Fatalf("%d pods are on the nodes, want %d", len(e.expected), want)
	}
	ctx, stop := context.WithCancel(s.ctx)
	w, err := s.Client().CoreV1().Pods(shopNamespace).Watch(ctx, metav1.ListOptions{ResourceVersion: list.ResourceVersion})
	s.check(err)
	var done sync.WaitGroup
	done.Go(func() {
		for event := range w.ResultChan() {
			if p, ok := event.Object.(*corev1.Pod); ok && event.Type == watch.Deleted {
				e.Lock()
				e.ended[p.UID] = controlplane.DeterminePodEnding(p)
				e.Unlock()
			}
		}
	})
	s.t.Cleanup(func() { stop(); done.Wait() })
	return e
}

// checkEndings checks that every pod stopped on its own, and that the ledger of the notice agrees.
func (s *upgrade) checkEndings(event string) {
	s.t.Helper()
	s.check(testbed.PollUntil(s.ctx, "all pods of the two nodes have ended", func() bool {
		s.endings.Lock()
		defer s.endings.Unlock()
		for uid := range s.endings.expected {
			if s.endings.ended[uid] == "" {
				return false
			}
		}
		return true
	}))
	s.endings.Lock()
	defer s.endings.Unlock()
	for uid, name := range s.endings.expected {
		if got := s.endings.ended[uid]; got != controlplane.Finished {
			s.t.Errorf("pod %s ended as %s, want %s", name, got, controlplane.Finished)
		}
	}
	l, _ := s.Azure.Ledger().Event(event)
	if cut := l.PodsKilledWithTimeLeft(testbed.CutTolerance); len(cut) > 0 {
		s.t.Errorf("killed although time remained: %v", cut)
	}
}

// checkEvents checks that the Events tell the drain and the retirement once, and nothing of a failure or a restart of them.
func (s *upgrade) checkEvents(noticed, retired string, rt *v1alpha1.NodeRetirement) {
	s.t.Helper()
	for node, last := range map[string]string{noticed: "Acknowledged", retired: "Retired"} { // Events are written in the background
		_, err := s.AwaitEvent(s.ctx, node, last)
		s.check(err)
	}
	list, err := s.Client().CoreV1().Events(metav1.NamespaceAll).List(s.ctx, metav1.ListOptions{})
	s.check(err)
	count := map[string]map[string]int{noticed: {}, retired: {}}
	for _, e := range list.Items {
		if reasons := count[e.InvolvedObject.Name]; reasons != nil && e.InvolvedObject.Kind == "Node" {
			reasons[e.Reason]++
		}
	}
	for node, reasons := range map[string][]string{noticed: {"NoticeReceived", "Cordoned", "Drained", "Acknowledged"}, retired: {"RetirementStarted", "Retired"}} {
		for _, reason := range reasons {
			if n := count[node][reason]; n != 1 {
				s.t.Errorf("%s has %d Events %s, want 1: %v", node, n, reason, count[node])
			}
		}
		for _, reason := range []string{"DrainFailed", "DrainStopped", "Recordoned", "Uncordoned", "LeftCordoned", "RetirementAborted", "RetirementFailed", "RetirementRefused"} {
			if n := count[node][reason]; n != 0 {
				s.t.Errorf("%s has %d Events %s: %v", node, n, reason, count[node])
			}
		}
	}
	s.t.Logf("Events of %s: %v; of %s: %v; retirement: %s", noticed, count[noticed], retired, count[retired], cmp.Or(rt.Status.Message, string(rt.Status.Phase)))
}

// checkCordonsHeld checks that no node was schedulable for a moment after its cordon.
func (s *upgrade) checkCordonsHeld() {
	s.t.Helper()
	for node, h := range s.history {
		cordoned := false
		for _, state := range h.States() {
			if cordoned && !state.Spec.Unschedulable {
				s.t.Errorf("%s was uncordoned at resource version %s", node, state.ResourceVersion)
			}
			cordoned = cordoned || state.Spec.Unschedulable
		}
		if !cordoned {
			s.t.Errorf("%s was never cordoned", node)
		}
	}
}
