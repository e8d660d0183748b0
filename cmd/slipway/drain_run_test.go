package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/spf13/cobra"

	"github.com/slipway-dev/slipway/api/v1alpha1"
	"github.com/slipway-dev/slipway/internal/cordon"
	"github.com/slipway-dev/slipway/internal/drain"
	"github.com/slipway-dev/slipway/internal/kubeapi"
	"github.com/slipway-dev/slipway/internal/placement/saved"
	"github.com/slipway-dev/slipway/internal/testing/must"
	"github.com/slipway-dev/slipway/internal/testing/virtual"
)

// fakeDrainCluster serves the API requests of `slipway drain` in virtual time: reads and patches of Nodes, and list, watch
// and eviction of pods. An evicted pod stops after stopsIn and is replaced by a pod on a schedulable node, if there is one.
type fakeDrainCluster struct {
	t       *testing.T
	stopsIn time.Duration
	// stopsInByNode overrides stopsIn for the pods of some nodes.
	stopsInByNode map[string]time.Duration

	mu        sync.Mutex
	version   int
	nodes     map[string]*kubeapi.Node
	pods      map[string]*kubeapi.Pod // by name
	evictedAt map[string]time.Time    // by name of the pod
	events    []podEvent
	newEvents chan struct{}
	// beforeRequest is called before each request, with method and path.
	beforeRequest func(method, path string)
	// losesAnswer, if set, reports whether a request takes effect but its answer is lost.
	losesAnswer func(method, path string) bool
	// neverAnswers, if set, reports whether a request is never answered.
	neverAnswers func(method, path string) bool
	// owners maps nodes to the field manager that last changed spec.unschedulable.
	owners map[string]string
	// surger, if set, starts successors in a drain.
	surger drain.Surger
	// room and groups are the cluster in which a preview finds room for successors. If room is nil, it cannot be read.
	room   *saved.Objects
	groups []v1alpha1.NodeGroup
	// patchedBy is the field manager of the latest patch, even if it failed.
	patchedBy string
}

type podEvent struct {
	Type   string      `json:"type"`
	Object kubeapi.Pod `json:"object"`
}

const drainTestNamespace = "shop"

func newFakeDrainCluster(t *testing.T, nodes ...string) *fakeDrainCluster {
	c := &fakeDrainCluster{
		t: t, nodes: map[string]*kubeapi.Node{}, pods: map[string]*kubeapi.Pod{}, evictedAt: map[string]time.Time{},
		newEvents: make(chan struct{}), owners: map[string]string{},
	}
	for _, name := range nodes {
		c.editNode(name, func(n *kubeapi.Node) { n.Name, n.UID = name, "uid-of-"+name })
	}
	return c
}

// editNode changes a node as another client does.
func (c *fakeDrainCluster) editNode(name string, change func(*kubeapi.Node)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	n := c.nodes[name]
	if n == nil {
		n = &kubeapi.Node{}
		c.nodes[name] = n
	}
	change(n)
	c.version++
	n.ResourceVersion = strconv.Itoa(c.version)
}

func (c *fakeDrainCluster) isCordoned(name string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.nodes[name].Spec.Unschedulable
}

// runPod runs a pod of a Deployment on a node.
func (c *fakeDrainCluster) runPod(name, node string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.runPodLocked(name, node)
}

func (c *fakeDrainCluster) runPodLocked(name, node string) {
	grace := int64(max(30*time.Second, c.stopsIn, c.stopsInByNode[node]) / time.Second)
	p := &kubeapi.Pod{
		ObjectMeta: kubeapi.ObjectMeta{
			Name: name, Namespace: drainTestNamespace, UID: "uid-of-" + name, CreationTimestamp: time.Now(),
			OwnerReferences: []kubeapi.OwnerReference{{Kind: "ReplicaSet", Name: "web", UID: "uid-of-web", Controller: new(true)}},
		},
		Spec:   kubeapi.PodSpec{NodeName: node, TerminationGracePeriodSeconds: &grace},
		Status: kubeapi.PodStatus{Phase: "Running"},
	}
	c.pods[name] = p
	c.sendEvent("ADDED", p)
}

func (c *fakeDrainCluster) sendEvent(kind string, p *kubeapi.Pod) {
	c.version++
	p.ResourceVersion = strconv.Itoa(c.version)
	c.events = append(c.events, podEvent{kind, *p})
	close(c.newEvents)
	c.newEvents = make(chan struct{})
}

// stopPod terminates a pod, as an eviction or a deletion does.
func (c *fakeDrainCluster) stopPod(name string) {
	p := c.pods[name]
	if p == nil || p.DeletionTimestamp != nil {
		return
	}
	c.evictedAt[name] = time.Now()
	p.DeletionTimestamp = new(time.Now().Add(time.Duration(*p.Spec.TerminationGracePeriodSeconds) * time.Second))
	p.DeletionGracePeriodSeconds = p.Spec.TerminationGracePeriodSeconds
	c.sendEvent("MODIFIED", p)
	stopsIn, otherwise := c.stopsInByNode[p.Spec.NodeName]
	if !otherwise {
		stopsIn = c.stopsIn
	}
	time.AfterFunc(stopsIn, func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		delete(c.pods, name)
		c.sendEvent("DELETED", p)
		for _, node := range slices.Sorted(maps.Keys(c.nodes)) {
			if !c.nodes[node].Spec.Unschedulable {
				c.runPodLocked(name+"-again", node)
				return
			}
		}
	})
}

func (c *fakeDrainCluster) newClient() *kubeapi.Client {
	return kubeapi.NewClient(&url.URL{Scheme: "http", Host: "apiserver.test"}, &http.Client{Transport: promhttp.RoundTripperFunc(c.serveRequest)}, "test")
}

func (c *fakeDrainCluster) serveRequest(r *http.Request) (*http.Response, error) {
	if err := r.Context().Err(); err != nil {
		return nil, err
	}
	if c.beforeRequest != nil {
		c.beforeRequest(r.Method, r.URL.Path)
	}
	if r.Method == http.MethodPatch {
		c.mu.Lock()
		c.patchedBy = r.URL.Query().Get("fieldManager")
		c.mu.Unlock()
	}
	if c.neverAnswers != nil && c.neverAnswers(r.Method, r.URL.Path) {
		<-r.Context().Done()
		return nil, r.Context().Err()
	}
	if r.URL.Query().Get("watch") == "true" {
		return c.watchPods(r), nil
	}
	w := httptest.NewRecorder()
	c.mu.Lock()
	defer c.mu.Unlock()
	path := strings.Split(strings.Trim(r.URL.Path, "/"), "/")
	var answer any
	switch {
	case len(path) == 4 && path[2] == "nodes" && c.nodes[path[3]] == nil:
		c.writeError(w, http.StatusNotFound, "NotFound")
	case len(path) == 4 && path[2] == "nodes" && r.Method == http.MethodGet:
		answer = c.withManagedFields(c.nodes[path[3]])
	case len(path) == 4 && path[2] == "nodes" && r.Method == http.MethodPatch:
		if !c.patchNode(r, c.nodes[path[3]]) {
			c.writeError(w, http.StatusConflict, "Conflict")
			break
		}
		answer = c.nodes[path[3]]
	case r.URL.Path == "/api/v1/pods":
		answer = c.listPods(selectedNode(r))
	case strings.HasSuffix(r.URL.Path, "/poddisruptionbudgets"):
		answer = map[string]any{"metadata": map[string]any{"resourceVersion": strconv.Itoa(c.version)}, "items": []any{}}
	case r.Method == http.MethodPost && path[len(path)-1] == "eviction", r.Method == http.MethodDelete && path[4] == "pods":
		c.stopPod(path[5])
		answer = map[string]any{"kind": "Status", "status": "Success"}
	default:
		c.t.Errorf("%s %s: unexpected request of a drain", r.Method, r.URL)
		c.writeError(w, http.StatusNotFound, "NotFound")
	}
	if c.losesAnswer != nil && c.losesAnswer(r.Method, r.URL.Path) {
		return nil, errors.New("connection reset")
	}
	if answer != nil {
		if err := json.NewEncoder(w).Encode(answer); err != nil {
			c.t.Error(err)
		}
	}
	response := w.Result()
	response.Request = r
	return response, nil
}

// withManagedFields returns a node with the field manager of spec.unschedulable.
func (c *fakeDrainCluster) withManagedFields(n *kubeapi.Node) any {
	raw, err := json.Marshal(n)
	if err != nil {
		c.t.Error(err)
	}
	var o map[string]any
	if err := json.Unmarshal(raw, &o); err != nil {
		c.t.Error(err)
	}
	fields := map[string]any{"f:spec": map[string]any{"f:unschedulable": map[string]any{}}}
	if meta, ok := o["metadata"].(map[string]any); ok {
		meta["managedFields"] = []any{
			map[string]any{"manager": "kubelet", "fieldsV1": map[string]any{"f:metadata": map[string]any{}}},
			map[string]any{"manager": c.owners[n.Name], "fieldsV1": fields},
		}
	}
	return o
}

func selectedNode(r *http.Request) string {
	return strings.TrimPrefix(r.URL.Query().Get("fieldSelector"), "spec.nodeName=")
}

func (c *fakeDrainCluster) listPods(node string) any {
	items := []kubeapi.Pod{}
	for _, p := range c.pods {
		if p.Spec.NodeName == node {
			items = append(items, *p)
		}
	}
	return map[string]any{"metadata": map[string]any{"resourceVersion": strconv.Itoa(c.version)}, "items": items}
}

// patchNode applies a patch of the node's spec. It returns false on a conflict of UID or resourceVersion.
func (c *fakeDrainCluster) patchNode(r *http.Request, n *kubeapi.Node) bool {
	var patch struct {
		Metadata struct{ UID, ResourceVersion string }
		Spec     struct{ Unschedulable bool }
	}
	if err := json.NewDecoder(r.Body).Decode(&patch); err != nil {
		c.t.Error(err)
	}
	if m := patch.Metadata; m.UID != n.UID || m.ResourceVersion != "" && m.ResourceVersion != n.ResourceVersion {
		return false
	}
	if n.Spec.Unschedulable != patch.Spec.Unschedulable {
		c.owners[n.Name] = r.URL.Query().Get("fieldManager")
	}
	n.Spec.Unschedulable = patch.Spec.Unschedulable
	c.version++
	n.ResourceVersion = strconv.Itoa(c.version)
	return true
}

func (c *fakeDrainCluster) writeError(w http.ResponseWriter, code int, reason string) {
	w.WriteHeader(code)
	fmt.Fprintf(w, `{"kind":"Status","reason":%q,"message":"%s from the test server","code":%d}`, reason, reason, code)
}

// watchPods sends the events of a node's pods after a version until the request ends. PDBs do not change.
func (c *fakeDrainCluster) watchPods(r *http.Request) *http.Response {
	since, err := strconv.Atoi(r.URL.Query().Get("resourceVersion"))
	if err != nil {
		c.t.Error(err)
	}
	out, in := io.Pipe()
	go func() {
		for next := 0; ; {
			c.mu.Lock()
			events, news := c.events[next:], c.newEvents
			next = len(c.events)
			c.mu.Unlock()
			for _, e := range events {
				if v, _ := strconv.Atoi(e.Object.ResourceVersion); v <= since || e.Object.Spec.NodeName != selectedNode(r) {
					continue
				}
				if json.NewEncoder(in).Encode(e) != nil {
					return // the client has closed the connection
				}
			}
			select {
			case <-news:
			case <-r.Context().Done():
				in.CloseWithError(r.Context().Err())
				return
			}
		}
	}()
	return &http.Response{StatusCode: http.StatusOK, Header: http.Header{}, Body: out, Request: r}
}

// drainResult is the result of a drain command.
type drainResult struct {
	code        int
	out, stderr string
	took        time.Duration
}

// runDrain runs the command with the arguments.
func (c *fakeDrainCluster) runDrain(ctx context.Context, args ...string) drainResult {
	c.t.Helper()
	f := drainFlags{kube: newKubeFlags("drain")}
	cmd := &cobra.Command{}
	f.addFlags(cmd)
	must.NoError(c.t, cmd.ParseFlags(args))
	o, err := f.drainOptions()
	must.NoError(c.t, err)
	o.Surger = c.surger
	f.readForRooms = func(context.Context) (*saved.Objects, []v1alpha1.NodeGroup, error) {
		if c.room == nil {
			return nil, nil, errors.New("forbidden")
		}
		return c.room, c.groups, nil
	}
	var out, stderr bytes.Buffer
	began := time.Now()
	code := toExitCode(f.drainNodes(ctx, c.newClient(), cmd.Flags().Args(), o, &out, &stderr))
	return drainResult{code, out.String(), stderr.String(), time.Since(began)}
}

func TestNodePastItsDeadlineStaysCordoned(t *testing.T) {
	for _, tt := range []struct {
		flag     string
		cordoned bool
	}{
		{"--deadline=10s", true},
		{"--timeout=10s", false},
	} {
		t.Run(tt.flag, virtual.InVirtualTime(func(t *testing.T) {
			c := newFakeDrainCluster(t, "n")
			c.stopsIn = time.Hour // a finalizer, or a kubelet that does not answer
			c.runPod("stuck", "n")
			r := c.runDrain(t.Context(), "n", tt.flag)
			if r.code != exitUnfinished || r.took.Round(time.Second) != 10*time.Second {
				t.Errorf("exit code %d after %s:\n%s%s", r.code, r.took, r.out, r.stderr)
			}
			if c.isCordoned("n") != tt.cordoned || strings.Contains(r.stderr, "uncordoned again") == tt.cordoned {
				t.Errorf("cordoned is %v, want %v:\n%s", c.isCordoned("n"), tt.cordoned, r.stderr)
			}
		}))
	}
}

func TestI3GivingUpKeepsACordonThatOthersNeed(t *testing.T) {
	for _, tt := range []struct {
		name     string
		change   func(*kubeapi.Node) // during the drain
		cordoned bool
		text     string
	}{
		{"no change", func(*kubeapi.Node) {}, false, "n: uncordoned again"},
		{"kubelet writes status", func(n *kubeapi.Node) {
			n.Status.Conditions = []kubeapi.Condition{{Type: "Ready", Status: "True"}}
		}, false, "n: uncordoned again"},
		{"agent gets notice", func(n *kubeapi.Node) {
			n.Annotations = newCordonRecord("azure-1", cordon.FoundCordon)
		}, true, `n: stays cordoned because azure-1 needs the cordon`},
		{"retirement cordons the node", func(n *kubeapi.Node) {
			n.Annotations = newCordonRecord("retirement-a", cordon.OwnCordon)
		}, true, `n: stays cordoned because retirement-a needs the cordon`},
		{"notice without cordon", func(n *kubeapi.Node) {
			n.Annotations = newCordonRecord("azure-1", "")
		}, false, "n: uncordoned again"},
		{"other tool removes the node", func(n *kubeapi.Node) {
			n.Spec.Taints = []kubeapi.Taint{{Key: "ToBeDeletedByClusterAutoscaler", Effect: "NoSchedule"}}
		}, true, "n: stays cordoned because cluster-autoscaler (taint ToBeDeletedByClusterAutoscaler:NoSchedule) needs the cordon"},
		{"replaced by cordoned node", func(n *kubeapi.Node) {
			n.UID, n.Spec.Unschedulable = "uid-of-another", true
		}, true, "metadata.uid is uid-of-another, want uid-of-n"},
		{"other client uncordons", func(n *kubeapi.Node) {
			n.Spec.Unschedulable = false
		}, false, "n: another client has already uncordoned it"},
	} {
		t.Run(tt.name, virtual.InVirtualTime(func(t *testing.T) {
			c := newFakeDrainCluster(t, "n")
			c.stopsIn = time.Hour
			c.runPod("stuck", "n")
			time.AfterFunc(5*time.Second, func() { c.editNode("n", tt.change) })
			r := c.runDrain(t.Context(), "n", "--timeout=10s")
			if c.isCordoned("n") != tt.cordoned || !strings.Contains(r.stderr, tt.text) || r.code != exitUnfinished {
				t.Errorf("cordoned is %v, want %v, exit code %d; want %q in:\n%s", c.isCordoned("n"), tt.cordoned, r.code,
					tt.text, r.stderr)
			}
		}))
	}
}

func newCordonRecord(owner string, whose cordon.CordonOrigin) map[string]string {
	raw, err := json.Marshal(cordon.Record{Owner: owner, Since: time.Now(), Cordon: whose})
	if err != nil {
		panic(err) // impossible for these values
	}
	return map[string]string{cordon.AnnotationKey(owner): string(raw)}
}

func TestI3NodeIsReadAgainAfterConflict(t *testing.T) {
	for _, tt := range []struct {
		name   string
		patch  int // number of the patch, from 1, that another client precedes
		change func(*kubeapi.Node)
		text   string
	}{
		{"other client cordons first", 1, func(n *kubeapi.Node) { n.Spec.Unschedulable = true }, ""},
		{"agent gets notice before uncordon", 2, func(n *kubeapi.Node) {
			n.Annotations = newCordonRecord("azure-1", cordon.FoundCordon)
		}, "azure-1"},
	} {
		t.Run(tt.name, virtual.InVirtualTime(func(t *testing.T) {
			c := newFakeDrainCluster(t, "n")
			c.stopsIn = time.Hour
			c.runPod("stuck", "n")
			patches := 0
			c.beforeRequest = func(method, _ string) {
				if method != http.MethodPatch {
					return
				}
				if patches++; patches == tt.patch {
					c.editNode("n", tt.change)
				}
			}
			r := c.runDrain(t.Context(), "n", "--timeout=10s")
			if !c.isCordoned("n") || !strings.Contains(r.stderr, tt.text) || strings.Contains(r.stderr, "uncordoned again") {
				t.Errorf("want the other client's cordon, and %q in:\n%s", tt.text, r.stderr)
			}
		}))
	}
}

// listNewPods returns the pods on a node that were created after the start.
func (c *fakeDrainCluster) listNewPods(node string) []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	var names []string
	for name, p := range c.pods {
		if p.Spec.NodeName == node && strings.HasSuffix(name, "-again") {
			names = append(names, name)
		}
	}
	return names
}

func TestNodesWithADeadlineAreDrainedInParallel(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newFakeDrainCluster(t, "a", "b", "stays")
		c.stopsInByNode = map[string]time.Duration{"a": 45 * time.Second, "b": 40 * time.Second}
		c.runPod("web-a", "a")
		c.runPod("web-b", "b")
		began := time.Now()
		r := c.runDrain(t.Context(), "a", "b", "--deadline=60s")
		if r.code != 0 {
			t.Errorf("exit code %d:\n%s%s", r.code, r.out, r.stderr)
		}
		for _, name := range []string{"web-a", "web-b"} {
			if at, evicted := c.evictedAt[name]; !evicted || at.Sub(began) > 5*time.Second {
				t.Errorf("%s was evicted after %s, want at once", name, at.Sub(began))
			}
		}
		for _, node := range []string{"a", "b"} {
			if pods := c.listNewPods(node); len(pods) > 0 || !c.isCordoned(node) {
				t.Errorf("new pods %v on %s", pods, node)
			}
		}
		a, b := strings.Index(r.out, "a: drained after 4"), strings.Index(r.out, "b: drained after 4")
		if a < 0 || b < a {
			t.Errorf("want the drain reports of a and b, in this order:\n%s", r.out)
		}
		for line := range strings.Lines(r.stderr) {
			if !strings.HasPrefix(line, "a: ") && !strings.HasPrefix(line, "b: ") || strings.Contains(line, "\x1b") {
				t.Errorf("%q is not a separate line", line)
			}
		}
	})
}

func TestHangingCordonCostsNoPodBeforeADeadline(t *testing.T) {
	for name, nodes := range map[string][]string{"alone": {"a"}, "beside another": {"a", "b"}} {
		for _, method := range []string{http.MethodPatch, http.MethodGet} {
			t.Run(name+"/"+method, virtual.InVirtualTime(func(t *testing.T) {
				c := newFakeDrainCluster(t, "a", "b", "stays")
				c.stopsIn = 10 * time.Second
				gets := 0
				c.neverAnswers = func(verb, path string) bool {
					if !strings.HasSuffix(path, "/nodes/a") || verb != method {
						return false
					}
					gets++
					return verb == http.MethodPatch || gets > 1 // the first read checks that the node exists
				}
				for _, node := range nodes {
					c.runPod("web-"+node, node)
				}
				began := time.Now()
				r := c.runDrain(t.Context(), append(nodes, "--deadline=30s")...)
				for _, node := range nodes {
					if at, evicted := c.evictedAt["web-"+node]; !evicted || at.Sub(began) > 10*time.Second {
						t.Errorf("web-%s was evicted after %s, want within 10 s", node, at.Sub(began))
					}
				}
				if r.code == 0 || !strings.Contains(r.stderr, "a: cannot cordon the node") {
					t.Errorf("exit code %d, want a report that a was not cordoned:\n%s%s", r.code, r.out, r.stderr)
				}
			}))
		}
	}
}

func TestAllNodesAreCordonedBeforeTheFirstEviction(t *testing.T) {
	for _, args := range [][]string{{"a", "b", "a"}, {"a", "b", "--timeout=1m"}, {"a", "b", "--deadline=2m"}} {
		t.Run(strings.Join(args, " "), virtual.InVirtualTime(func(t *testing.T) {
			c := newFakeDrainCluster(t, "a", "b", "stays")
			c.stopsIn = 40 * time.Second // two of them exceed --timeout, which applies to each node
			c.runPod("web-a", "a")
			c.runPod("web-b", "b")
			c.beforeRequest = func(_, path string) {
				if strings.HasSuffix(path, "/eviction") && (!c.isCordoned("a") || !c.isCordoned("b")) {
					t.Errorf("%s comes before the cordons", path)
				}
			}
			r := c.runDrain(t.Context(), args...)
			if r.code != 0 || strings.Count(r.out, "drained after") != 2 || len(c.listNewPods("stays")) != 2 {
				t.Errorf("exit code %d, new pods %v:\n%s%s", r.code, c.listNewPods("stays"), r.out, r.stderr)
			}
		}))
	}
}

func TestNodeIsReadAgainBeforeItsDrain(t *testing.T) {
	for _, tt := range []struct {
		name              string
		found             bool // cordoned by another client
		change            func(*kubeapi.Node)
		code              int
		cordoned, evicted bool
		text              string
	}{
		{"uncordoned by the client that cordoned it", true, func(n *kubeapi.Node) { n.Spec.Unschedulable = false }, 0, true, true, "b: cordoned again"},
		{"uncordoned by a user", false, func(n *kubeapi.Node) { n.Spec.Unschedulable = false }, 0, true, true, "b: cordoned again"},
		{"replaced", false, func(n *kubeapi.Node) { n.UID, n.Spec.Unschedulable = "another", false }, 1, false, false, "another"},
		{"replaced by cordoned node", true, func(n *kubeapi.Node) { n.UID = "another" }, 1, true, false, ""},
	} {
		t.Run(tt.name, virtual.InVirtualTime(func(t *testing.T) {
			c := newFakeDrainCluster(t, "a", "b")
			c.editNode("b", func(n *kubeapi.Node) { n.Spec.Unschedulable = tt.found })
			c.stopsIn = 40 * time.Second
			c.runPod("web-a", "a")
			c.runPod("web-b", "b")
			time.AfterFunc(20*time.Second, func() { c.editNode("b", tt.change) })
			r := c.runDrain(t.Context(), "a", "b")
			_, evicted := c.evictedAt["web-b"]
			if r.code != tt.code || c.isCordoned("b") != tt.cordoned || evicted != tt.evicted || !strings.Contains(r.stderr, tt.text) {
				t.Errorf("exit code %d, b cordoned: %v, its pod evicted: %v:\n%s%s", r.code, c.isCordoned("b"), evicted, r.out, r.stderr)
			}
		}))
	}
}

func TestI3InterruptRestoresEveryUndrainedNode(t *testing.T) {
	for _, flag := range []string{"--timeout=0", "--deadline=2h"} {
		t.Run(flag, virtual.InVirtualTime(func(t *testing.T) {
			c := newFakeDrainCluster(t, "a", "b", "c", "d")
			c.editNode("d", func(n *kubeapi.Node) { n.Spec.Unschedulable = true })
			c.stopsInByNode = map[string]time.Duration{"b": time.Hour, "c": time.Hour, "d": time.Hour}
			c.runPod("web-a", "a")
			c.runPod("web-b", "b")
			c.runPod("web-c", "c")
			c.runPod("web-d", "d")
			ctx, interrupt := context.WithCancel(t.Context())
			time.AfterFunc(time.Minute, interrupt)
			r := c.runDrain(ctx, "a", "b", "c", "d", flag)
			if r.code != exitInterrupted || !c.isCordoned("a") || c.isCordoned("b") || c.isCordoned("c") || !c.isCordoned("d") {
				t.Errorf("exit code %d, cordoned: a %v, b %v, c %v, d %v:\n%s%s", r.code, c.isCordoned("a"), c.isCordoned("b"),
					c.isCordoned("c"), c.isCordoned("d"), r.out, r.stderr)
			}
			last := -1
			for _, want := range []string{"a: drained", "b: cancelled", "c: cancelled", "d: cancelled"} {
				at := strings.Index(r.out, want)
				if at <= last {
					t.Errorf("want %q in this order:\n%s", want, r.out)
				}
				last = at
			}
		}))
	}
}

// TestI10MissingNodeStopsTheWholeDrain: kubectl behaves the same way.
func TestI10MissingNodeStopsTheWholeDrain(t *testing.T) {
	for _, flag := range []string{"--timeout=1m", "--deadline=1m", "--dry-run=server"} {
		synctest.Test(t, func(t *testing.T) {
			c := newFakeDrainCluster(t, "a")
			c.runPod("web-a", "a")
			r := c.runDrain(t.Context(), "a", "misspelt", flag)
			if r.code != 1 || c.isCordoned("a") || r.out != "" || r.stderr != "" {
				t.Errorf("%s: exit code %d:\n%s%s", flag, r.code, r.out, r.stderr)
			}
		})
	}
}

func TestI3UnansweredCordonIsUndone(t *testing.T) {
	for _, tt := range []struct {
		name     string
		lost     int  // number of patches without an answer
		first    bool // another client cordons the node before the first patch
		cordoned bool // at the end
		text     string
	}{
		{"first answer is lost", 1, false, false, "uncordoned again"},
		{"first three answers are lost", 3, false, false, "uncordoned again"},
		{"other client cordons first", 1, true, true, ""},
	} {
		t.Run(tt.name, virtual.InVirtualTime(func(t *testing.T) {
			c := newFakeDrainCluster(t, "n")
			c.stopsIn = time.Hour
			c.runPod("stuck", "n")
			patches := 0
			c.beforeRequest = func(method, path string) {
				if method == http.MethodPatch && patches == 0 && tt.first {
					c.owners["n"] = "kubectl-cordon"
					c.editNode("n", func(n *kubeapi.Node) { n.Spec.Unschedulable = true })
				}
			}
			c.losesAnswer = func(method, path string) bool {
				if method == http.MethodPatch && strings.HasSuffix(path, "/nodes/n") {
					patches++
					return patches <= tt.lost
				}
				return false
			}
			r := c.runDrain(t.Context(), "n", "--timeout=10s")
			if r.code != exitUnfinished || c.isCordoned("n") != tt.cordoned || !strings.Contains(r.stderr, tt.text) {
				t.Errorf("exit code %d, cordoned %v, want %d and %v with %q:\n%s", r.code, c.isCordoned("n"), exitUnfinished, tt.cordoned,
					tt.text, r.stderr)
			}
		}))
	}
}

func TestI3InterruptedCordonIsUndone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newFakeDrainCluster(t, "n")
		ctx, interrupt := context.WithCancel(t.Context())
		c.losesAnswer = func(method, path string) bool {
			if method != http.MethodPatch || ctx.Err() != nil {
				return false
			}
			interrupt()
			return true
		}
		r := c.runDrain(ctx, "n")
		if r.code != exitInterrupted || c.isCordoned("n") || !strings.Contains(r.stderr, "uncordoned again") {
			t.Errorf("exit code %d, cordoned %v, want %d and false:\n%s", r.code, c.isCordoned("n"), exitInterrupted, r.stderr)
		}
	})
}

func TestI3CordonAfterTheInterruptIsUndone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newFakeDrainCluster(t, "n")
		ctx, interrupt := context.WithCancel(t.Context())
		patches := 0
		c.neverAnswers = func(method, path string) bool {
			if method != http.MethodPatch {
				return false
			}
			if patches++; patches == 1 {
				interrupt()
				time.AfterFunc(time.Second, func() { // the API server was only slow
					c.editNode("n", func(n *kubeapi.Node) { n.Spec.Unschedulable = true })
					c.mu.Lock()
					defer c.mu.Unlock()
					c.owners["n"] = c.patchedBy
				})
			}
			return patches == 1
		}
		r := c.runDrain(ctx, "n")
		time.Sleep(time.Minute)
		if r.code != exitInterrupted || c.isCordoned("n") || r.took > 5*time.Second {
			t.Errorf("exit code %d after %s, cordoned %v, want %d soon and false:\n%s", r.code, r.took, c.isCordoned("n"), exitInterrupted, r.stderr)
		}
	})
}

func TestInterruptBeforeCordonExits130(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newFakeDrainCluster(t, "n")
		ctx, interrupt := context.WithCancel(t.Context())
		interrupt()
		if r := c.runDrain(ctx, "n"); r.code != exitInterrupted || c.isCordoned("n") {
			t.Errorf("exit code %d, cordoned %v", r.code, c.isCordoned("n"))
		}
	})
}

func TestInterruptOfPreviewExits130(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newFakeDrainCluster(t, "n")
		ctx, interrupt := context.WithCancel(t.Context())
		c.beforeRequest = func(_, path string) {
			if strings.HasSuffix(path, "/pods") {
				interrupt()
			}
		}
		c.runPod("web", "n")
		if r := c.runDrain(ctx, "n", "--dry-run=server"); r.code != exitInterrupted {
			t.Errorf("exit code %d: %s", r.code, r.stderr)
		}
	})
}

func TestI3BlockedOutputDoesNotDelayTheRestore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newFakeDrainCluster(t, "n")
		c.stopsIn = time.Hour
		c.runPod("stuck", "n")
		ctx, interrupt := context.WithCancel(t.Context())
		f := drainFlags{kube: newKubeFlags("drain"), dryRun: "none"}
		o, err := f.drainOptions()
		must.NoError(t, err)
		out, ended := stoppedTerminal(make(chan struct{})), make(chan error)
		go func() { ended <- f.drainNodes(ctx, c.newClient(), []string{"n"}, o, out, io.Discard) }()
		time.Sleep(time.Minute)
		interrupt()
		time.Sleep(time.Minute)
		if c.isCordoned("n") {
			t.Error("the node is still cordoned while the output is blocked")
		}
		close(out)
		if code := toExitCode(<-ended); code != exitInterrupted {
			t.Errorf("exit code %d", code)
		}
	})
}

func TestInterruptNamesEveryNodeThatStaysCordoned(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newFakeDrainCluster(t, "a", "b", "c", "d")
		c.editNode("d", func(n *kubeapi.Node) { n.Spec.Unschedulable = true })
		c.stopsInByNode = map[string]time.Duration{"b": time.Hour}
		for _, node := range []string{"a", "b", "c"} {
			c.runPod("web-"+node, node)
		}
		ctx, interrupt := context.WithCancel(t.Context())
		time.AfterFunc(time.Minute, interrupt)
		r := c.runDrain(ctx, "a", "b", "c", "d")
		for _, want := range []string{
			"b: interrupted: 0 evicted pods gone, 1 still terminating", "c: interrupted: no pod is evicted; the drain had not begun\n",
			"still cordoned: a d\n  to undo, run kubectl uncordon a d\n",
		} {
			if !strings.Contains(r.stderr, want) {
				t.Errorf("want %q:\n%s", want, r.stderr)
			}
		}
	})
}

func TestI3InterruptClaimsNoUnknownCordon(t *testing.T) {
	for name, tt := range map[string]struct {
		deleted     bool // or else the API server does not answer after the interrupt
		want, never string
	}{
		"the Node is deleted":            {true, "the node is not cordoned: the Node is deleted\n", "stays cordoned"},
		"the API server does not answer": {false, "the node may be cordoned: uncordoning failed\n", "the node stays cordoned"},
	} {
		t.Run(name, virtual.InVirtualTime(func(t *testing.T) {
			c := newFakeDrainCluster(t, "n")
			c.stopsIn = time.Hour
			c.runPod("stuck", "n")
			ctx, interrupt := context.WithCancel(t.Context())
			c.neverAnswers = func(string, string) bool { return ctx.Err() != nil && !tt.deleted }
			time.AfterFunc(time.Minute, func() {
				c.mu.Lock()
				defer c.mu.Unlock()
				if tt.deleted {
					delete(c.nodes, "n")
				}
				interrupt()
			})
			r := c.runDrain(ctx, "n")
			if r.code != exitInterrupted || !strings.Contains(r.stderr, tt.want) || strings.Contains(r.stderr, tt.never) {
				t.Errorf("exit code %d, want %q:\n%s", r.code, tt.want, r.stderr)
			}
		}))
	}
}
