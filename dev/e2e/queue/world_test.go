package queue_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"net/url"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/slipway-dev/slipway/dev/aws"
	"github.com/slipway-dev/slipway/dev/fakecluster"
	"github.com/slipway-dev/slipway/dev/faultproxy"
	"github.com/slipway-dev/slipway/dev/testbed"
	"github.com/slipway-dev/slipway/dev/workload"
	"github.com/slipway-dev/slipway/internal/notice/aws/queue"
)

const (
	queueName = "notices"
	deadName  = "dead-letters"
	namespace = "shop"
)

// world is a cluster and an AWS account in memory, in virtual time (testing/synctest).
type world struct {
	t       *testing.T
	ctx     context.Context
	memory  *fakecluster.Cluster
	client  kubernetes.Interface
	cloud   *aws.Cloud
	ledger  *ledger
	proxy   *faultproxy.Proxy
	api     *faultproxy.Front
	aws     *faultproxy.Front
	log     *slog.Logger // of all processes
	adjust  func(*queue.Config)
	running sync.WaitGroup // processes, killed ones too
	sending sync.WaitGroup // messages on their way to the queue

	mu     sync.Mutex
	random *rand.Rand
	next   int // number of the next instance
}

func newWorld(t *testing.T, seed uint64, group string, hooks ...aws.LifecycleHook) *world {
	t.Helper()
	memory, err := fakecluster.New()
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	w := &world{
		t: t, ctx: ctx, memory: memory, cloud: aws.NewCloud(group, hooks...), ledger: newLedger(), proxy: faultproxy.New(kindOf),
		adjust: func(*queue.Config) {},
		random: rand.New(rand.NewPCG(seed, 0)),
	}
	w.client, err = kubernetes.NewForConfig(&rest.Config{Host: apiServer, QPS: -1, Transport: faultproxy.NewDirectTransport(memory)})
	if err != nil {
		t.Fatal(err)
	}
	var lines testbed.LogBuffer
	w.log = slog.New(slog.NewTextHandler(&lines, nil))
	w.cloud.SQS.CreateQueue(deadName, aws.QueueOptions{})
	w.cloud.SQS.CreateQueue(queueName, aws.QueueOptions{DeadLetter: deadName, MaxReceives: maxReceives})
	w.api = w.proxy.ServeDirect("api", mustParse(t, apiServer), faultproxy.NewDirectTransport(w.ledger.wrap(memory)))
	w.aws = w.proxy.ServeDirect("aws", mustParse(t, awsEndpoint), faultproxy.NewDirectTransport(restorePath(w.cloud)))
	w.ledger.watch(ctx, t, w.client)
	t.Cleanup(func() {
		stop()
		memory.Close()
		w.running.Wait()
		if t.Failed() {
			text := lines.String()
			t.Logf("end of the log of all processes:\n%s", text[max(0, len(text)-maxLogBytes):])
		}
		time.Sleep(10 * time.Minute) // the sleeps of goroutines that a killed process has left
	})
	return w
}

const (
	apiServer   = "https://kubernetes.test"
	awsEndpoint = "http://aws.test"
	queueURL    = awsEndpoint + "/" + aws.AccountID + "/" + queueName
	// maxReceives is more than the kills and faults of a course cause. So only poison reaches the dead-letter queue.
	maxReceives = 20
	maxLogBytes = 40_000
)

func mustParse(t *testing.T, text string) *url.URL {
	t.Helper()
	u, err := url.Parse(text)
	if err != nil {
		t.Fatal(err)
	}
	return u
}

// nameAction adds the action of an AWS request to its path, where the proxy finds it. restorePath removes it.
func nameAction(next http.RoundTripper) http.RoundTripper {
	return roundTripper(func(r *http.Request) (*http.Response, error) {
		_, action, isJSON := strings.Cut(r.Header.Get("X-Amz-Target"), ".")
		if !isJSON && r.Body != nil {
			body, err := io.ReadAll(r.Body)
			if err != nil {
				return nil, err
			}
			r = r.Clone(r.Context())
			r.Body = io.NopCloser(bytes.NewReader(body))
			form, _ := url.ParseQuery(string(body)) // the emulator refuses an invalid one
			action = form.Get("Action")
		}
		r = r.Clone(r.Context())
		r.URL.Path = actionPrefix + action
		return next.RoundTrip(r)
	})
}

const actionPrefix = "/action/"

func restorePath(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		r.URL.Path = "/"
		next.ServeHTTP(w, r)
	})
}

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// process is an emulated process. kill ends it as SIGKILL does, and stop as SIGTERM does.
type process struct{ kill, stop func() }

func (w *world) startProcess() process {
	life := w.proxy.StartLife()
	ctx, cancel := context.WithCancel(w.ctx)
	ended := make(chan struct{})
	w.running.Go(func() {
		defer close(ended)
		err := runQueue(ctx, w.t, w.adjust, w.log, w.api.Transport(life, nil), nameAction(w.aws.Transport(life, nil)))
		if err != nil && ctx.Err() == nil {
			w.t.Errorf("the process ended: %v", err)
		}
	})
	return process{
		kill: func() { life.Kill(); cancel() },
		stop: func() {
			cancel()
			<-ended
			life.Kill()
		},
	}
}

// chance reports true with a probability.
func (w *world) chance(p float64) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.random.Float64() < p
}

func (w *world) between(low, high time.Duration) time.Duration {
	w.mu.Lock()
	defer w.mu.Unlock()
	return low + time.Duration(w.random.Int64N(int64(high-low)))
}

// instance is an EC2 instance, with a Node unless it is of another cluster.
type instance struct {
	id, node string
	pods     []string
	// hasNoProviderID is true if the Node does not name its instance.
	hasNoProviderID bool
	notices         int // different ones that are announced for it while its Node exists
}

func (w *world) newInstance() *instance {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.next++
	i := &instance{id: fmt.Sprintf("i-%017x", w.next), node: fmt.Sprintf("ip-10-%d-%d-%d.eu-west-1.compute.internal", w.next>>16, w.next>>8&255, w.next&255)}
	w.cloud.EC2.Put(aws.EC2Instance{ID: i.id, Zone: zone, PrivateDNSName: i.node, State: "running"})
	w.cloud.AutoScaling.AddInstance(i.id)
	return i
}

// join adds the Node of an instance, with pods that run on it.
func (w *world) join(i *instance, pods int) {
	n := &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: i.node, Labels: map[string]string{corev1.LabelHostname: i.node}},
		Spec:       corev1.NodeSpec{ProviderID: "aws:///" + zone + "/" + i.id},
		Status: corev1.NodeStatus{Conditions: []corev1.NodeCondition{{
			Type: corev1.NodeReady, Status: corev1.ConditionTrue, LastHeartbeatTime: metav1.Now(), LastTransitionTime: metav1.Now(),
		}}},
	}
	if i.hasNoProviderID {
		n.Spec.ProviderID = ""
	}
	w.check(w.client.CoreV1().Nodes().Create(w.ctx, n, metav1.CreateOptions{}))
	for k := range pods {
		p := workload.App{Namespace: namespace, Name: fmt.Sprintf("web-%s-%d", i.id[len(i.id)-6:], k), StopSeconds: fmt.Sprint(1 + k*3), GracePeriod: 20 * time.Second}.Pod()
		p.Spec.NodeName = i.node
		i.pods = append(i.pods, p.Name)
		w.check(w.client.CoreV1().Pods(namespace).Create(w.ctx, p, metav1.CreateOptions{}))
	}
}

func (w *world) check(_ any, err error) {
	if err != nil && w.ctx.Err() == nil {
		w.t.Error(err)
	}
}

// remove ends an instance: its pods are lost, and its Node goes. It returns the pods that had not ended.
func (w *world) remove(i *instance) {
	w.ledger.end(i)
	w.cloud.EC2.SetState(i.id, "terminated")
	noGrace := int64(0)
	now := metav1.DeleteOptions{GracePeriodSeconds: &noGrace}
	w.check(nil, w.client.CoreV1().Nodes().Delete(w.ctx, i.node, metav1.DeleteOptions{}))
	for _, p := range i.pods {
		_ = w.client.CoreV1().Pods(namespace).Delete(w.ctx, p, now) // most have ended
	}
	_ = w.client.CoordinationV1().Leases(corev1.NamespaceNodeLease).Delete(w.ctx, i.node, metav1.DeleteOptions{}) // keeps the cluster small
}

// ledger records what the manager does to nodes and pods, as the cluster saw it.
type ledger struct {
	mu     sync.Mutex
	pods   map[string]*podRecord
	nodes  map[string]*nodeRecord
	events map[string]int // by reason
}

type podRecord struct {
	evictions, deletions int // accepted ones
	ended                time.Time
}

type nodeRecord struct {
	unschedulable, drained bool
	cordons, drains        int
	removed                time.Time
	lost                   []string // pods that ran when the instance ended
}

func newLedger() *ledger {
	return &ledger{pods: map[string]*podRecord{}, nodes: map[string]*nodeRecord{}, events: map[string]int{}}
}

func (l *ledger) pod(name string) *podRecord {
	if l.pods[name] == nil {
		l.pods[name] = &podRecord{}
	}
	return l.pods[name]
}

func (l *ledger) node(name string) *nodeRecord {
	if l.nodes[name] == nil {
		l.nodes[name] = &nodeRecord{}
	}
	return l.nodes[name]
}

// wrap returns a handler that counts the manager's evictions, deletions and Events. It does not store the Events, which
// keeps the cluster small.
func (l *ledger) wrap(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		parts := strings.Split(r.URL.Path, "/")
		switch last := parts[len(parts)-1]; {
		case r.Method == http.MethodPost && last == "events":
			body, _ := io.ReadAll(r.Body) // an incomplete one has no reason
			var e struct{ Reason string }
			_ = json.Unmarshal(body, &e)
			l.mu.Lock()
			l.events[e.Reason]++
			l.mu.Unlock()
			w.Header().Set("Content-Type", "application/json")
			w.WriteHeader(http.StatusCreated)
			_, _ = w.Write(body)
		case r.Method == http.MethodPost && last == "eviction":
			l.count(next, w, r, parts[len(parts)-2], func(p *podRecord) { p.evictions++ })
		case r.Method == http.MethodDelete && len(parts) > 2 && parts[len(parts)-2] == "pods":
			l.count(next, w, r, last, func(p *podRecord) { p.deletions++ })
		default:
			next.ServeHTTP(w, r)
		}
	})
}

func (l *ledger) count(next http.Handler, w http.ResponseWriter, r *http.Request, pod string, add func(*podRecord)) {
	answer := httptest.NewRecorder()
	next.ServeHTTP(answer, r)
	if answer.Code < 300 {
		l.mu.Lock()
		add(l.pod(pod))
		l.mu.Unlock()
	}
	for key, values := range answer.Header() {
		w.Header()[key] = values
	}
	w.WriteHeader(answer.Code)
	_, _ = w.Write(answer.Body.Bytes())
}

// watch records the ends of pods, and each cordon and drain of a node.
func (l *ledger) watch(ctx context.Context, t *testing.T, client kubernetes.Interface) {
	t.Helper()
	pods, err := client.CoreV1().Pods(namespace).Watch(ctx, metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	nodes, err := client.CoreV1().Nodes().Watch(ctx, metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	go func() {
		for e := range pods.ResultChan() {
			if p, ok := e.Object.(*corev1.Pod); ok && e.Type == watch.Deleted {
				l.mu.Lock()
				if r := l.pod(p.Name); r.ended.IsZero() {
					r.ended = time.Now()
				}
				l.mu.Unlock()
			}
		}
	}()
	go func() {
		for e := range nodes.ResultChan() {
			if n, ok := e.Object.(*corev1.Node); ok && e.Type != watch.Deleted {
				l.recordNode(n)
			}
		}
	}()
}

func (l *ledger) recordNode(n *corev1.Node) {
	l.mu.Lock()
	defer l.mu.Unlock()
	r := l.node(n.Name)
	if n.Spec.Unschedulable && !r.unschedulable {
		r.cordons++
	}
	isDrained := false
	for _, c := range n.Status.Conditions {
		isDrained = isDrained || c.Type == "Drained" && c.Status == corev1.ConditionTrue
	}
	if isDrained && !r.drained {
		r.drains++
	}
	r.unschedulable, r.drained = n.Spec.Unschedulable, isDrained
}

// end records the end of an instance, and the pods that still ran on it.
func (l *ledger) end(i *instance) {
	l.mu.Lock()
	defer l.mu.Unlock()
	n := l.node(i.node)
	n.removed = time.Now()
	for _, p := range i.pods {
		if l.pod(p).ended.IsZero() {
			n.lost = append(n.lost, p)
		}
	}
}

// object matches the part of a path that names one object.
var object = regexp.MustCompile(`/(nodes|pods|namespaces|leases)/[^/]+`)

// kindOf returns a request without its object names.
func kindOf(r faultproxy.Request) string {
	kind := r.Method + " " + object.ReplaceAllString(r.Path, "/$1/*")
	if strings.Contains(r.Query, "watch=true") {
		kind += " (watch)"
	}
	return kind
}
