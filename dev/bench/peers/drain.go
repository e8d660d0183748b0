package peers

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	auditv1 "k8s.io/apiserver/pkg/apis/audit/v1"

	"github.com/slipway-dev/slipway/dev/azure"
	"github.com/slipway-dev/slipway/dev/bench/audit"
	"github.com/slipway-dev/slipway/dev/bench/bareclient"
	"github.com/slipway-dev/slipway/dev/bench/metadata"
	"github.com/slipway-dev/slipway/dev/controlplane"
	"github.com/slipway-dev/slipway/dev/testbed"
)

const (
	// idleTime is how long a handler's idle memory settles before the notice.
	idleTime = 10 * time.Second
	// maxPhase is the upper limit of a random wait before a notice. It is the longest poll interval of known handlers.
	maxPhase = 5 * time.Second
	// settleTime is how long a handler may still write to the API server after the drain.
	settleTime = 3 * time.Second
	// memoryInterval is the time between two reads of a process's memory.
	memoryInterval = 20 * time.Millisecond
	// auditTimeout is how long the last entries of the audit log may take. The API server writes them after its answer.
	auditTimeout = 5 * time.Second
)

func labelKey(namespace string) string { return "bench.slipway.dev/" + namespace }

func (b *peersBench) labelNode(ctx context.Context, node, namespace string) error {
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"labels": map[string]string{labelKey(namespace): ""}}})
	if err != nil {
		return err
	}
	if _, err := b.Client().CoreV1().Nodes().Patch(ctx, node, types.MergePatchType, patch, metav1.PatchOptions{}); err != nil {
		return fmt.Errorf("labelling node %s: %w", node, err)
	}
	return nil
}

// listPods returns the names of the pods on the target's node.
func (b *peersBench) listPods(ctx context.Context, t target) ([]string, error) {
	list, err := b.Client().CoreV1().Pods(t.namespace).List(ctx, metav1.ListOptions{
		FieldSelector: fields.OneTermEqualSelector("spec.nodeName", t.node).String(),
	})
	if err != nil {
		return nil, fmt.Errorf("pods on %s: %w", t.node, err)
	}
	var names []string
	for _, p := range list.Items {
		names = append(names, p.Name)
	}
	return names, nil
}

// removeWorkload deletes the target's namespace and waits until its pods are gone, so that they do not slow down the
// next drain.
func (b *peersBench) removeWorkload(ctx context.Context, t target) error {
	ctx, cancel := context.WithTimeout(ctx, stepTimeout)
	defer cancel()
	if err := b.Client().CoreV1().Namespaces().Delete(ctx, t.namespace, metav1.DeleteOptions{}); err != nil {
		return err
	}
	// Pods on a machine that has ended stay until they are deleted without grace period.
	now := int64(0)
	if err := b.Client().CoreV1().Pods(t.namespace).DeleteCollection(ctx, metav1.DeleteOptions{GracePeriodSeconds: &now}, metav1.ListOptions{}); err != nil {
		return err
	}
	return testbed.PollUntil(ctx, "the pods of namespace "+t.namespace+" are gone", func() bool {
		left, err := b.Client().CoreV1().Pods(t.namespace).List(ctx, metav1.ListOptions{Limit: 1})
		return err == nil && len(left.Items) == 0
	})
}

func (b *peersBench) drainWithBareClient(ctx context.Context, t target, drain func(*bareclient.Client, context.Context) error) (measurement, error) {
	client, err := bareclient.Connect(ctx, b.Kubeconfig(), t.node)
	if err != nil {
		return measurement{}, err
	}
	bounded, cancel := context.WithTimeout(ctx, stepTimeout)
	defer cancel()
	began := time.Now()
	if err := drain(client, bounded); err != nil {
		return measurement{}, err
	}
	return b.readMeasurement(ctx, t, began)
}

func (b *peersBench) drainWithSlipway(ctx context.Context, t target) (measurement, error) {
	path, err := testbed.EnsureBinary("slipway")
	if err != nil {
		return measurement{}, err
	}
	return b.drainWithCommand(ctx, t, true, path, "drain", t.node, "--kubeconfig", b.Kubeconfig())
}

func (b *peersBench) drainWithKubectl(ctx context.Context, t target) (measurement, error) {
	return b.drainWithCommand(ctx, t, false, b.clients.Kubectl, "drain", t.node, "--kubeconfig", b.Kubeconfig(), "--ignore-daemonsets")
}

// drainWithCommand runs a command that drains the node and then ends. If the command is ours, it must succeed.
func (b *peersBench) drainWithCommand(ctx context.Context, t target, isOurs bool, path string, args ...string) (measurement, error) {
	ctx, cancel := context.WithTimeout(ctx, stepTimeout)
	defer cancel()
	began := time.Now()
	process, err := b.StartProcess(ctx, controlplane.Command{Name: "drain-" + t.namespace, Path: path, Args: args})
	if err != nil {
		return measurement{}, err
	}
	memory := startMemorySamples(process)
	defer memory.stop()
	select {
	case <-process.Exited():
	case <-ctx.Done():
		return measurement{}, errors.Join(fmt.Errorf("%s has not ended within %s", filepath.Base(path), stepTimeout), process.Kill())
	}
	if err := process.ExitError(); err != nil && isOurs {
		return measurement{}, fmt.Errorf("%s: %w; its output: %s", filepath.Base(path), err, readOutput(process))
	}
	m, err := b.readMeasurement(ctx, t, began)
	m.peak = memory.stop()
	return m, errors.Join(err, checkEvicted(m, process))
}

func (b *peersBench) drainWithAgent(ctx context.Context, t target) (measurement, error) {
	return b.drainWithHandler(ctx, t, handler{
		start: func(ctx context.Context, endpoint string) (*controlplane.Process, error) {
			agent, err := b.StartAgent(ctx, t.pool, t.instance, "--endpoint", endpoint)
			if err != nil {
				return nil, err
			}
			return agent.Process, nil
		},
		countRequests: func(since time.Time) (int, error) {
			byNode, err := audit.AgentRequestsByNode(b.Cluster, since)
			return len(byNode[t.node]), err
		},
	})
}

// drainWithPeer runs the handler of Options.Peer. It has the rights of an administrator, because the rights that it
// needs are not known.
func (b *peersBench) drainWithPeer(ctx context.Context, t target) (measurement, error) {
	return b.drainWithHandler(ctx, t, handler{
		start: func(ctx context.Context, endpoint string) (*controlplane.Process, error) {
			listen, err := controlplane.ReserveFreeAddress(ctx)
			if err != nil {
				return nil, err
			}
			kubeconfig, err := b.ServiceAccountKubeconfig(ctx, peerAccount, peerAccount, controlplane.TokenOptions{})
			if err != nil {
				return nil, err
			}
			var args []string
			values := strings.NewReplacer("{node}", t.node, "{resource}", t.pool.ResourceName(t.instance), "{kubeconfig}", kubeconfig,
				"{endpoint}", endpoint, ec2Placeholder, endpoint, "{listen}", listen)
			for _, arg := range b.args {
				args = append(args, values.Replace(arg))
			}
			command := controlplane.Command{Name: "peer-" + t.namespace, Path: b.o.Peer, Args: args}
			if b.isEC2 {
				if command, err = runInCluster(command, kubeconfig); err != nil {
					return nil, err
				}
			}
			return b.StartProcess(ctx, command)
		},
		countRequests: func(since time.Time) (int, error) {
			requests, err := b.ReadAuditLog(controlplane.AuditFilter{Since: since, User: "system:serviceaccount:" + peerAccount + ":" + peerAccount})
			return len(requests), err
		},
	})
}

// checkPeer makes Options.Peer absolute and reads Options.PeerArgs.
func (b *peersBench) checkPeer() (err error) {
	if b.o.Peer == "" {
		if b.o.PeerArgs != "" {
			return fmt.Errorf("peer-args is %q: requires peer", b.o.PeerArgs)
		}
		return nil
	}
	if b.o.Peer, err = filepath.Abs(b.o.Peer); err != nil {
		return err
	}
	if info, err := os.Stat(b.o.Peer); err != nil || info.IsDir() || info.Mode()&0o111 == 0 {
		return fmt.Errorf("peer is %q: must be the path of an executable file", b.o.Peer)
	}
	args := b.o.PeerArgs
	if strings.TrimSpace(args) == "" {
		if args = aksPeerArgs; b.peerName() == awsPeer {
			args = awsPeerArgs
		}
	}
	b.args, b.isEC2 = strings.Fields(args), strings.Contains(args, ec2Placeholder)
	return nil
}

// handler is a program that reads the notices of a node and drains it.
type handler struct {
	// start starts the program. The endpoint is the metadata service that it reads.
	start func(ctx context.Context, endpoint string) (*controlplane.Process, error)
	// countRequests returns the number of the program's requests to the API server since a time. It counts a watch once.
	countRequests func(since time.Time) (int, error)
}

// machine is the machine of a target, as its cloud sees it.
type machine struct {
	endpoint string
	reads    func() int // of the metadata service so far
	// announce announces a Spot notice, and returns when it became visible.
	announce func() (time.Time, error)
	// awaitEnd waits until the machine has ended, or until all pods have left it.
	awaitEnd func(context.Context) error
	close    func()
}

func (b *peersBench) newMachine(t target) machine {
	if b.isEC2 {
		return b.newEC2Machine(t)
	}
	var event azure.EventRecord
	return machine{
		endpoint: b.ScheduledEventsURL(t.pool, t.instance),
		reads:    func() int { return b.countReads(t.pool) },
		announce: func() (_ time.Time, err error) {
			event, err = b.Azure.Announce(azure.Announcement{Type: azure.Preempt, Resources: []string{t.pool.ResourceName(t.instance)}})
			return event.VisibleAt, err
		},
		awaitEnd: func(ctx context.Context) error {
			_, err := b.Azure.AwaitState(ctx, func(s azure.State) bool {
				r, ok := s.Event(event.EventID)
				return ok && !r.IsListed()
			})
			return err
		},
		close: func() {},
	}
}

func (b *peersBench) newEC2Machine(t target) machine {
	m := metadata.EC2.Start(t.node)
	return machine{
		endpoint: m.Endpoint, reads: m.Requests, close: m.Close,
		announce: func() (time.Time, error) { return m.Announce(), nil },
		awaitEnd: func(ctx context.Context) error {
			_, err := b.AwaitPods(ctx, t.node, "gone", func(pods []corev1.Pod) bool { return len(pods) == 0 })
			return err
		},
	}
}

// drainWithHandler starts a handler, waits until it reads the metadata service, and announces a Spot notice. It ends
// the handler when the machine ends.
func (b *peersBench) drainWithHandler(ctx context.Context, t target, h handler) (measurement, error) {
	ctx, cancel := context.WithTimeout(ctx, 2*stepTimeout)
	defer cancel()
	machine := b.newMachine(t)
	defer machine.close()
	before := machine.reads()
	process, err := h.start(ctx, machine.endpoint)
	if err != nil {
		return measurement{}, err
	}
	defer func() { _ = process.Kill() }() // it may have ended with its machine
	if err := awaitReads(ctx, process, machine, before); err != nil {
		return measurement{}, err
	}
	if err := testbed.Sleep(ctx, idleTime+time.Duration(b.random.Int64N(int64(maxPhase)))); err != nil {
		return measurement{}, err
	}
	agent := testbed.Agent{Process: process}
	idle, _, err := agent.ResidentMemory()
	if err != nil {
		return measurement{}, err
	}
	memory := startMemorySamples(process)
	defer memory.stop()
	visibleAt, err := machine.announce() //nolint:contextcheck // a notice outlives its announcer
	if err != nil {
		return measurement{}, err
	}
	if err := machine.awaitEnd(ctx); err != nil {
		return measurement{}, fmt.Errorf("%w; the output of %s: %s", err, process.Name(), readOutput(process))
	}
	if err := testbed.Sleep(ctx, settleTime); err != nil {
		return measurement{}, err
	}
	m, err := b.readMeasurement(ctx, t, visibleAt)
	if err != nil {
		return m, err
	}
	m.idle, m.peak = idle, memory.stop()
	if m.requests, err = h.countRequests(visibleAt); err != nil {
		return m, err
	}
	if b.isEC2 && m.notEvicted+m.deleted > 0 {
		return m, fmt.Errorf("%d pods were not evicted and %d were deleted without eviction, want 0; the output of %s: %s", m.notEvicted, m.deleted,
			process.Name(), readOutput(process))
	}
	if m.requests < podsEach-m.notEvicted {
		return m, fmt.Errorf("audit log: %d requests of the handler for %d evictions", m.requests, podsEach-m.notEvicted)
	}
	return m, checkEvicted(m, process)
}

// countReads returns how often the metadata service of a pool was read.
func (b *peersBench) countReads(pool controlplane.AKSPool) int {
	for _, s := range b.Azure.State().ScaleSets {
		if s.Name == pool.ScaleSetName() {
			return s.Requests
		}
	}
	return 0
}

// awaitReads waits until a handler has read the metadata service twice, so that it is past its start.
func awaitReads(ctx context.Context, handler *controlplane.Process, m machine, before int) error {
	ctx, cancel := context.WithTimeout(ctx, stepTimeout)
	defer cancel()
	err := testbed.PollUntil(ctx, "the handler reads the metadata service", func() bool {
		return !handler.IsAlive() || m.reads() >= before+2
	})
	if err == nil && !handler.IsAlive() {
		err = errors.New("the handler has ended")
	}
	if err != nil {
		return fmt.Errorf("%w; its output: %s", err, readOutput(handler))
	}
	return nil
}

// checkEvicted returns an error if a program evicted no pod, because it then measured nothing.
func checkEvicted(m measurement, process *controlplane.Process) error {
	if m.notEvicted < podsEach {
		return nil
	}
	return fmt.Errorf("no pod was evicted; the output of %s: %s", process.Name(), readOutput(process))
}

// readOutput returns the end of a process's output.
func readOutput(process *controlplane.Process) []byte {
	const most = 2000 // bytes
	output, _ := os.ReadFile(process.LogFile())
	return output[max(0, len(output)-most):]
}

// readMeasurement reads the evictions and deletions of the target's pods from the audit log.
func (b *peersBench) readMeasurement(ctx context.Context, t target, began time.Time) (measurement, error) {
	var m measurement
	var failed error
	deadline := time.Now().Add(auditTimeout)
	for {
		if m, failed = b.readAudit(t, began); failed != nil || m.notEvicted == 0 || time.Now().After(deadline) {
			return m, failed
		}
		if err := testbed.Sleep(ctx, 200*time.Millisecond); err != nil {
			return m, err
		}
	}
}

func (b *peersBench) readAudit(t target, began time.Time) (measurement, error) {
	requests, err := b.ReadAuditLog(controlplane.AuditFilter{Since: began, Namespace: t.namespace})
	if err != nil {
		return measurement{}, err
	}
	requests = slices.DeleteFunc(requests, func(e auditv1.Event) bool { return isOfControlPlane(e.User.Username) })
	evicted := audit.EvictionTimesByName(requests)
	deleted := audit.DeletionTimes(requests)
	var m measurement
	for _, pod := range t.pods {
		key := t.namespace + "/" + pod
		at, ok := evicted[key]
		if ok {
			m.last = max(m.last, at.Sub(began))
		} else {
			m.notEvicted++
		}
		if _, ok := deleted[key]; ok {
			m.deleted++
		}
	}
	return m, nil
}

// isOfControlPlane reports whether a user is a controller or the emulated kubelet, which delete pods after an
// eviction.
func isOfControlPlane(user string) bool {
	return user == "slipway-dev:kwok" || user == "system:kube-controller-manager" ||
		strings.HasPrefix(user, "system:serviceaccount:"+metav1.NamespaceSystem+":") || user == "system:kube-scheduler"
}

// memorySamples reads the peak memory of a process until the process ends. The operating system's own figure for an
// ended process would include the memory of the process that started it.
type memorySamples struct {
	cancel context.CancelFunc
	done   chan struct{}
	peak   int64
}

func startMemorySamples(process *controlplane.Process) *memorySamples {
	ctx, cancel := context.WithCancel(context.Background())
	s := &memorySamples{cancel: cancel, done: make(chan struct{})}
	go func() {
		defer close(s.done)
		agent := testbed.Agent{Process: process}
		ticker := time.NewTicker(memoryInterval)
		defer ticker.Stop()
		for {
			if _, peak, err := agent.ResidentMemory(); err == nil {
				s.peak = max(s.peak, peak)
			}
			select {
			case <-ctx.Done():
				return
			case <-process.Exited():
				return
			case <-ticker.C:
			}
		}
	}()
	return s
}

// stop ends the samples and returns the peak in bytes. It may be called twice.
func (s *memorySamples) stop() int64 {
	s.cancel()
	<-s.done
	return s.peak
}
