package retirement_test

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/Azure/azure-sdk-for-go/sdk/azcore"
	"github.com/Azure/azure-sdk-for-go/sdk/azcore/policy"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/slipway-dev/slipway/api/v1alpha1"
	"github.com/slipway-dev/slipway/dev/azure"
	"github.com/slipway-dev/slipway/dev/faultproxy"
	"github.com/slipway-dev/slipway/dev/testbed"
	"github.com/slipway-dev/slipway/dev/workload"
	provider "github.com/slipway-dev/slipway/internal/cloud/azure"
	"github.com/slipway-dev/slipway/internal/kubeapi"
	"github.com/slipway-dev/slipway/internal/manager"
)

// scheduleRun runs a schedule. It is a fixture in a namespace that it shares with other runs.
type scheduleRun struct {
	*fixture
	schedule
	proxy   *faultproxy.Proxy
	manager *inProcessManager
	checker *requestChecker

	mu           sync.Mutex
	requestCount int // number of requests so far
	pending      []disturbance
	running      sync.WaitGroup // running disturbances
}

// faultsNamespace is the namespace of all schedules' pods. Separate namespaces would be most of the work.
const faultsNamespace = "faults"

var faultsSpace struct {
	sync.Once
	err error
}

// runSchedule runs a schedule on a pool of instances, and checks how it ends.
func (f *fixture) runSchedule(sc schedule) {
	t := f.t
	t.Helper()
	t.Logf("%s\nreplay: cd dev && go test -race ./e2e/retirement -run '^%s$' -faults.first=%d -faults.seeds=1", sc,
		strings.Split(t.Name(), "/")[0], sc.seed)
	s := &scheduleRun{fixture: f, schedule: sc, pending: slices.Clone(sc.disturbances)}
	if sc.agentPool {
		s.ownedByAKS()
	}
	s.nodeGroup(sc.group())
	if s.virtual {
		s.check(workload.Create(s.ctx, s.Client(), workload.NewNamespace(faultsNamespace)))
	} else {
		faultsSpace.Do(func() {
			faultsSpace.err = workload.Create(s.ctx, s.Client(), workload.NewNamespace(faultsNamespace))
		})
		s.check(faultsSpace.err)
		t.Cleanup(s.cleanUp)
	}
	s.createPods()
	for i := range sc.retired {
		s.retire(i)
	}
	s.startManager()
	s.awaitEnds()
	s.awaitDisturbances()
	s.checkEndState(s.awaitEnds())
}

// awaitEnds waits until all retirements have ended.
func (s *scheduleRun) awaitEnds() map[int]*v1alpha1.NodeRetirement {
	s.t.Helper()
	ends := map[int]*v1alpha1.NodeRetirement{}
	for i := range s.retired {
		ends[i] = s.awaitEnd(i)
	}
	return ends
}

// awaitDisturbances starts no more disturbances, and waits for the running ones. A retirement that ends early leaves
// disturbances to the manager's later requests. The final check must not run while they still change the cluster.
func (s *scheduleRun) awaitDisturbances() {
	s.mu.Lock()
	s.pending = nil
	s.mu.Unlock()
	s.running.Wait()
}

// group returns the NodeGroup's spec of a schedule.
func (s schedule) group() string {
	spec := fmt.Sprintf("minSize: %d\ndrain: {timeout: 3m, evictUnmanaged: true}", s.minimum)
	if s.budget > 0 {
		spec += fmt.Sprintf("\ndisruptionBudgets: [{nodes: %d}]", s.budget)
	}
	return spec
}

func (s *scheduleRun) createPods() {
	s.t.Helper()
	var objects []runtime.Object
	for i := range s.retired {
		for n := range s.pods {
			pod := s.pod(fmt.Sprintf("%s-%d-%d", s.name, i, n), i)
			objects = append(objects, pod)
		}
	}
	s.check(workload.Create(s.ctx, s.Client(), objects...))
	if s.budgeted {
		app := workload.App{
			Namespace: faultsNamespace, Name: s.name, Replicas: 2, MinAvailable: "1", StartSeconds: "0", StopSeconds: "0.1",
			NodeSelector: map[string]string{"kubernetes.azure.com/agentpool": s.pool.Name},
		}
		s.check(workload.CreateAndAwait(s.ctx, s.Client(), app.Deployment(), app.PodDisruptionBudget()))
	}
}

// pod returns a pod without a controller, bound to one of the instances.
func (s *scheduleRun) pod(name string, instance int) *corev1.Pod {
	pod := workload.App{Namespace: faultsNamespace, Name: name, StartSeconds: "0", StopSeconds: "0.1", GracePeriod: time.Second}.Pod()
	pod.Spec.NodeName = s.pool.NodeName(instance)
	return pod
}

// startManager starts the manager behind its proxies.
func (s *scheduleRun) startManager() {
	s.t.Helper()
	s.proxy = faultproxy.New(kindOf)
	s.checker = newRequestChecker(s.fixture, s.limits())
	s.checker.attach(s.proxy)
	schedule := faultproxy.NewFaultSchedule(s.seed, faultproxy.FaultRates{Percent: s.failing, Delay: lateAnswer, Stale: staleRead})
	log := &testbed.LogBuffer{}
	s.proxy.SetFaults(func(r faultproxy.Request) faultproxy.Fault {
		s.startDueDisturbances(r)
		if s.virtual && s.ctx.Err() != nil {
			return faultproxy.Fault{}
		}
		fault := schedule(r)
		if fault != (faultproxy.Fault{}) {
			_, _ = fmt.Fprintf(log, "time=%s fault=%+v of %s\n", time.Now().Format(time.RFC3339Nano), fault, r)
		}
		return fault
	})
	s.manager = s.newManager(s.proxy, log, s.shortPollFlags()...)
	s.runManager(s.manager, s.proxy, log)
}

// runManager runs a manager until the test ends.
func (f *fixture) runManager(m *inProcessManager, proxy *faultproxy.Proxy, log *testbed.LogBuffer) {
	ctx, stop := context.WithCancel(f.ctx)
	var over sync.WaitGroup
	over.Go(func() { m.run(ctx) })
	f.t.Cleanup(func() {
		stop()
		if !f.virtual { // the manager then continues without faults, because it can only end after it has read everything
			_ = proxy.Close()
		}
		over.Wait()
		if f.t.Failed() {
			f.t.Logf("log of the manager:\n%s", log.String())
		}
	})
}

// newManager prepares a manager behind a proxy.
func (f *fixture) newManager(proxy *faultproxy.Proxy, log io.Writer, flags ...string) *inProcessManager {
	f.t.Helper()
	server, err := url.Parse(f.RESTConfig().Host)
	f.check(err)
	if !f.virtual {
		api, err := proxy.Serve("api", server, f.account())
		f.check(err)
		return newInProcessManager(f.t, rest.Config{Host: api.String()}, kubeapi.Config{Server: api}, log,
			append(flags, "--cloud-config", f.cloudConfig(proxy, batchWindow))...)
	}
	api := proxy.ServeDirect("api", server, f.RESTConfig().Transport)
	arm := proxy.ServeDirect("arm", f.ARMServer().URL, faultproxy.NewDirectTransport(f.ARM.Handler()))
	config := f.azure(batchWindow)
	e := newInProcessManager(f.t, rest.Config{Host: server.String()}, kubeapi.Config{Server: server}, log, flags...)
	e.connect = func(e *inProcessManager) func() {
		life := proxy.StartLife()
		way := api.Transport(life, f.RESTConfig().Transport) // a manager ends only after its caches have been filled
		e.kube.Transport = way
		e.api.Wrap = func(http.RoundTripper) http.RoundTripper { return way }
		e.config.Clouds = &manager.Clouds{Azure: &manager.AzureCloud{Config: config, Options: provider.Options{
			Transport:  arm.Transport(life, nil),
			Credential: issuer{f.ARM}, // the SDK's own credentials hold a lock during requests, which stops virtual time
		}}}
		return life.Kill
	}
	return e
}

// issuer is a credential that gets its tokens directly from ARM.
type issuer struct{ arm *azure.ARM }

// GetToken implements azcore.TokenCredential.
func (i issuer) GetToken(context.Context, policy.TokenRequestOptions) (azcore.AccessToken, error) {
	return azcore.AccessToken{Token: i.arm.IssueToken(), ExpiresOn: time.Now().Add(time.Hour)}, nil
}

// batchWindow is how long a deletion of an instance waits for others.
const batchWindow = "50ms"

// shortPollFlags returns the flags of a manager with short intervals.
func (s *scheduleRun) shortPollFlags() []string {
	return []string{
		"--selector", shard + "=" + s.name, "--poll-interval", "500ms", "--cloud-poll-interval", "200ms", "--retry-interval", "200ms",
	}
}

// startDueDisturbances starts the disturbances that are due.
func (s *scheduleRun) startDueDisturbances(r faultproxy.Request) {
	s.mu.Lock()
	s.requestCount++
	var due []disturbance
	s.pending = slices.DeleteFunc(s.pending, func(t disturbance) bool {
		if t.at > s.requestCount {
			return false
		}
		due = append(due, t)
		s.running.Add(1) // before any wait can begin: see awaitDisturbances
		return true
	})
	s.mu.Unlock()
	for _, t := range due {
		s.t.Logf("%s of node %d, before %s", t.kind, t.node, r)
		if err := s.disturb(t); err != nil && s.ctx.Err() == nil {
			s.t.Errorf("%s of node %d: %v", t.kind, t.node, err)
		}
		s.running.Done()
	}
}

// disturb runs one disturbance.
func (s *scheduleRun) disturb(t disturbance) error {
	node := s.pool.NodeName(t.node)
	nodes := s.Client().CoreV1().Nodes()
	merge := func(patch string, subresources ...string) error {
		_, err := nodes.Patch(s.ctx, node, types.MergePatchType, []byte(patch), metav1.PatchOptions{}, subresources...)
		return client.IgnoreNotFound(err)
	}
	switch t.kind {
	case crash:
		s.manager.crash()
		return nil
	case protect:
		return s.addProtectedPod(node, t.node)
	case claim:
		s.runLater(claimedFor, func() error { return merge(`{"spec":{"taints":null}}`) })
		return merge(`{"spec":{"taints":[{"key":"ToBeDeletedByClusterAutoscaler","value":"1","effect":"NoSchedule"}]}}`)
	case uncordon:
		return merge(`{"spec":{"unschedulable":false}}`)
	case cancel:
		return client.IgnoreNotFound(s.objects().Delete(s.ctx, &v1alpha1.NodeRetirement{ObjectMeta: metav1.ObjectMeta{Name: node}}))
	case deleteNode:
		return client.IgnoreNotFound(nodes.Delete(s.ctx, node, metav1.DeleteOptions{}))
	case duplicate:
		err := s.tryCreate("NodeRetirement", node+secondSuffix, "reason: Idle\nnodeName: "+node)
		if apierrors.IsAlreadyExists(err) {
			return nil
		}
		return err
	case deletionFails:
		return s.ARM.InjectFaults(azure.ARMFault{Kind: azure.ARMDeletionFails, Resource: s.pool.ResourceName(t.node), Times: 1})
	case recreate:
		return s.recreateNode(node)
	case instanceLost:
		return s.deleteInstance(node, t.node)
	}
	return fmt.Errorf("unknown disturbance")
}

// addProtectedPod binds a protected pod to the node for a while, if the node exists.
func (s *scheduleRun) addProtectedPod(node string, instance int) error {
	if _, err := s.Client().CoreV1().Nodes().Get(s.ctx, node, metav1.GetOptions{}); err != nil {
		return client.IgnoreNotFound(err)
	}
	pods := s.Client().CoreV1().Pods(faultsNamespace)
	pod := s.pod(fmt.Sprintf("%s-%d-protected", s.name, instance), instance)
	pod.Annotations["slipway.dev/do-not-evict"] = "true"
	if _, err := pods.Create(s.ctx, pod, metav1.CreateOptions{}); err != nil {
		if apierrors.IsAlreadyExists(err) {
			return nil
		}
		return err
	}
	s.checker.addProtectedPod(pod.Name, node)
	s.runLater(protectedFor, func() error {
		s.checker.removeProtectedPod(pod.Name)
		none := int64(0)
		return client.IgnoreNotFound(pods.Delete(s.ctx, pod.Name, metav1.DeleteOptions{GracePeriodSeconds: &none}))
	})
	return nil
}

const (
	// protectedFor is how long a protected pod runs. A pod that starts too late to save its node still blocks the
	// deletion of the instance.
	protectedFor = 3 * time.Second
	// claimedFor is how long another tool claims its node. During that time, the node counts as unavailable.
	claimedFor = 3 * time.Second
	// lostFor is how long the cloud's own controller takes to delete the Node of a deleted instance.
	lostFor = 5 * time.Second
)

// runLater runs an action that must end before the schedule ends.
func (s *scheduleRun) runLater(after time.Duration, do func() error) {
	s.running.Go(func() {
		select {
		case <-s.ctx.Done():
			return
		case <-time.After(after):
		}
		if err := do(); err != nil && s.ctx.Err() == nil {
			s.t.Errorf("after a disturbance: %v", err)
		}
	})
}

func (s *scheduleRun) recreateNode(node string) error {
	nodes := s.Client().CoreV1().Nodes()
	n, err := nodes.Get(s.ctx, node, metav1.GetOptions{})
	if err != nil {
		return client.IgnoreNotFound(err)
	}
	if err := nodes.Delete(s.ctx, node, metav1.DeleteOptions{}); err != nil {
		return client.IgnoreNotFound(err)
	}
	fresh := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: node, Labels: n.Labels}, Spec: corev1.NodeSpec{ProviderID: n.Spec.ProviderID}}
	fresh.Status = n.Status
	fresh.Status.Conditions = slices.DeleteFunc(slices.Clone(n.Status.Conditions),
		func(c corev1.NodeCondition) bool { return strings.HasPrefix(string(c.Type), "Drain") })
	_, err = nodes.Create(s.ctx, fresh, metav1.CreateOptions{})
	return err
}

// deleteInstance deletes the instance. It immediately updates its Node as the node lifecycle controller would after a while.
func (s *scheduleRun) deleteInstance(node string, instance int) error {
	if _, there := s.ARM.VM(s.pool.ResourceName(instance)); !there {
		return nil
	}
	if err := s.ARM.RemoveVM(s.ctx, s.pool.ResourceName(instance)); err != nil {
		if _, there := s.ARM.VM(s.pool.ResourceName(instance)); !there {
			return nil // its deletion has ended meanwhile
		}
		return err
	}
	patch := `{"status":{"conditions":[{"type":"Ready","status":"Unknown","reason":"NodeStatusUnknown"}]}}`
	nodes := s.Client().CoreV1().Nodes()
	s.runLater(lostFor, func() error { return client.IgnoreNotFound(nodes.Delete(s.ctx, node, metav1.DeleteOptions{})) })
	_, err := nodes.Patch(s.ctx, node, types.StrategicMergePatchType, []byte(patch), metav1.PatchOptions{}, "status")
	return client.IgnoreNotFound(err)
}

// secondSuffix is the name suffix of a node's second NodeRetirement.
const secondSuffix = "-again"

// awaitEnd waits until the retirements of a node have ended. It returns the retirement that deleted the node, or else the
// first one. It returns nil if the first one was cancelled and is gone.
func (s *scheduleRun) awaitEnd(i int) *v1alpha1.NodeRetirement {
	s.t.Helper()
	node := s.pool.NodeName(i)
	var ends [2]*v1alpha1.NodeRetirement
	for n, name := range []string{node, node + secondSuffix} {
		ends[n] = s.awaitFinalPhase(name)
	}
	if second := ends[1]; second != nil && second.Status.Phase == v1alpha1.Succeeded {
		return second
	}
	return ends[0]
}

// cleanUp deletes everything that the schedule has created. The managers of other runs then need not read it.
func (s *scheduleRun) cleanUp() {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(s.ctx), testTimeout)
	defer cancel()
	note := func(err error) {
		if client.IgnoreNotFound(err) != nil {
			s.t.Errorf("clean up: %v", err)
		}
	}
	mine := client.MatchingLabels{shard: s.name}
	var records v1alpha1.NodeRetirementList
	note(s.objects().List(ctx, &records, mine))
	for i := range records.Items {
		rt := &records.Items[i]
		if len(rt.Finalizers) > 0 {
			note(s.objects().Patch(ctx, rt, client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`))))
		}
		note(s.objects().Delete(ctx, rt))
	}
	note(s.objects().DeleteAllOf(ctx, &v1alpha1.NodeGroup{}, mine))
	none := int64(0)
	now := metav1.DeleteOptions{GracePeriodSeconds: &none}
	if s.budgeted {
		note(s.Client().AppsV1().Deployments(faultsNamespace).Delete(ctx, s.name, now))
		note(s.Client().PolicyV1().PodDisruptionBudgets(faultsNamespace).Delete(ctx, s.name, now))
	}
	for i := range s.nodes {
		note(s.Client().CoreV1().Nodes().Delete(ctx, s.pool.NodeName(i), now))
		if i < s.retired {
			for n := range s.pods {
				note(s.Client().CoreV1().Pods(faultsNamespace).Delete(ctx, fmt.Sprintf("%s-%d-%d", s.name, i, n), now))
			}
		}
	}
}

// limits returns the limits of a schedule.
func (s schedule) limits() limits {
	return limits{
		nodes: s.nodes, minimum: s.minimum, budget: max(1, s.budget), othersRemoveNodes: s.has(anyNode, claim, instanceLost, deleteNode, recreate),
		pods: faultsNamespace, maxAge: staleRead,
	}
}
