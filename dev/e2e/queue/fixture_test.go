package queue_test

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"io"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/slipway-dev/slipway/dev/aws"
	"github.com/slipway-dev/slipway/dev/controlplane"
	"github.com/slipway-dev/slipway/dev/testbed"
	"github.com/slipway-dev/slipway/dev/workload"
)

const (
	hookTimeout = 4 * time.Second
	unknownTime = 6 * time.Second
	agentConfig = `
onRebalance: drain
`
)

// shared is the manager of all tests on the shared control plane, with its AWS account. One queue has one manager.
var shared struct {
	sync.Once

	cloud   *aws.Cloud
	process *controlplane.Process
	url     string
	err     error
}

// startShared starts the account and the manager. Both end with the test binary.
func startShared(tb testing.TB, bed *testbed.Testbed) error {
	tb.Helper()
	ctx := context.Background() // it outlives the test
	if err := errors.Join(bed.InstallManagerOnce(ctx), bed.InstallQueuePermissions(ctx)); err != nil {
		return err
	}
	shared.cloud = aws.StartCloud("workers", aws.LifecycleHook{Name: "drain", Timeout: hookTimeout},
		aws.LifecycleHook{Name: "ready", Timeout: time.Minute, Transition: aws.Launching})
	shared.cloud.SQS.CreateQueue(deadName, aws.QueueOptions{})
	shared.cloud.SQS.CreateQueue(queueName, aws.QueueOptions{DeadLetter: deadName, MaxReceives: 4})
	path, err := testbed.EnsureBinary("slipway")
	if err != nil {
		return err
	}
	kubeconfig, err := bed.ServiceAccountKubeconfig(ctx, testbed.ManagerNamespace, testbed.ManagerAccount, controlplane.TokenOptions{})
	if err != nil {
		return err
	}
	listen, err := controlplane.ReserveFreeAddress(ctx)
	if err != nil {
		return err
	}
	shared.url = "http://" + listen
	file := bed.Dir() + "/queue-agent.yaml"
	if err := os.WriteFile(file, []byte(agentConfig), 0o600); err != nil {
		return err
	}
	shared.process, err = bed.StartProcess(ctx, controlplane.Command{
		Name: "queue-manager", Path: path, ReadyURL: shared.url + "/readyz", Env: aws.Credentials(),
		Args: []string{
			"manager", "--kubeconfig", kubeconfig, "--listen", listen, "--leader-elect=false",
			"--aws-queue-url", shared.cloud.URL() + "/" + aws.AccountID + "/" + queueName, "--aws-queue-endpoint", shared.cloud.URL(),
			"--aws-queue-agent-config", file, "--aws-queue-visibility=5s", "--aws-queue-parked-visibility=1s", "--aws-queue-wait-time=2s",
			"--aws-queue-unknown-node-grace=" + unknownTime.String(),
			// Longer than the timeout of the hook, so that a drain needs heartbeats.
			"--aws-queue-hook-timeout=1m",
		},
	})
	return err
}

// fixture is an EC2 instance with its Node, and a namespace.
type fixture struct {
	*testbed.Testbed

	cloud *aws.Cloud
	t     testing.TB
	ctx   context.Context
	ns    string
}

func newFixture(t testing.TB, name string) *fixture {
	t.Helper()
	bed := testbed.StartShared(t)
	shared.Do(func() { shared.err = startShared(t, bed) })
	if shared.err != nil {
		t.Fatal(shared.err)
	}
	f := &fixture{Testbed: bed, cloud: shared.cloud, t: t, ctx: testbed.TestContext(t), ns: name}
	f.check(workload.Create(f.ctx, f.Client(), workload.NewNamespace(f.ns)))
	t.Cleanup(func() {
		if t.Failed() {
			raw, _ := os.ReadFile(shared.process.LogFile()) // only for people
			t.Logf("log of the manager:\n%s", raw)
		}
	})
	return f
}

func (f *fixture) check(err error) {
	f.t.Helper()
	if err != nil {
		f.t.Fatal(err)
	}
}

// newID returns the ID of the instance of a node. It does not add the instance.
func newID(node string) string {
	sum := fnv.New64a()
	sum.Write([]byte(node))
	return fmt.Sprintf("i-%017x", sum.Sum64())
}

// addNode adds an instance with its Node, and returns its ID.
func (f *fixture) addNode(node string) string {
	f.t.Helper()
	id := newID(node)
	f.cloud.EC2.Put(aws.EC2Instance{ID: id, Zone: zone, PrivateDNSName: node, State: "running"})
	f.cloud.AutoScaling.AddInstance(id)
	f.check(f.AddNodes(f.ctx, controlplane.NodeSpec{Name: node, ProviderID: "aws:///" + zone + "/" + id}))
	return id
}

// runPods runs a Deployment on a node.
func (f *fixture) runPods(node string, replicas int32, stopSeconds string) {
	f.t.Helper()
	app := workload.App{Namespace: f.ns, Name: node, Replicas: replicas, Node: node, StopSeconds: stopSeconds}
	f.check(workload.CreateAndAwait(f.ctx, f.Client(), app.Deployment()))
}

func (f *fixture) send(body string) (id string) { return f.cloud.SQS.Send(queueName, body) }

func (f *fixture) record(id string) aws.MessageRecord {
	f.t.Helper()
	all := f.cloud.SQS.Messages(queueName)
	i := slices.IndexFunc(all, func(m aws.MessageRecord) bool { return m.ID == id })
	if i < 0 {
		f.t.Fatalf("no message %s was sent", id)
	}
	return all[i]
}

func (f *fixture) awaitDeleted(id string) aws.MessageRecord {
	f.t.Helper()
	f.await("message "+id+" is deleted", func() bool { return !f.record(id).Deleted.IsZero() })
	return f.record(id)
}

func (f *fixture) await(what string, is func() bool) {
	f.t.Helper()
	f.check(testbed.PollUntil(f.ctx, what, is))
}

func (f *fixture) awaitNode(node, what string, is func(*corev1.Node) bool) {
	f.t.Helper()
	_, err := f.AwaitNode(f.ctx, node, what, is)
	f.check(err)
}

func (f *fixture) awaitDrained(node string) {
	f.t.Helper()
	f.awaitNode(node, "drained", func(n *corev1.Node) bool {
		return n.Spec.Unschedulable && slices.ContainsFunc(n.Status.Conditions, func(c corev1.NodeCondition) bool {
			return string(c.Type) == "Drained" && c.Status == corev1.ConditionTrue
		})
	})
	_, err := f.AwaitPods(f.ctx, node, "none of the test's", func(pods []corev1.Pod) bool {
		return !slices.ContainsFunc(pods, func(p corev1.Pod) bool { return p.Namespace == f.ns })
	})
	f.check(err)
}

func (f *fixture) getNode(node string) *corev1.Node {
	f.t.Helper()
	n, err := f.Client().CoreV1().Nodes().Get(f.ctx, node, metav1.GetOptions{})
	f.check(err)
	return n
}

// readMetric returns the sum of the manager's series with this prefix, such as slipway_queue_messages_parked_total.
func (f *fixture) readMetric(prefix string) (sum float64) {
	f.t.Helper()
	request, err := http.NewRequestWithContext(f.ctx, http.MethodGet, shared.url+"/metrics", nil)
	f.check(err)
	answer, err := http.DefaultClient.Do(request)
	f.check(err)
	defer func() { _ = answer.Body.Close() }() // read only
	text, err := io.ReadAll(answer.Body)
	f.check(err)
	for line := range strings.Lines(string(text)) {
		if !strings.HasPrefix(line, prefix) {
			continue
		}
		value, err := strconv.ParseFloat(strings.TrimSpace(line[strings.LastIndexByte(line, ' ')+1:]), 64)
		f.check(err)
		sum += value
	}
	return sum
}
