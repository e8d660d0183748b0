package surge_test

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"os"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/slipway-dev/slipway/api/v1alpha1"
	"github.com/slipway-dev/slipway/dev/controlplane"
	"github.com/slipway-dev/slipway/dev/faultproxy"
	"github.com/slipway-dev/slipway/dev/testbed"
)

var killWorkers = flag.Int("surge.workers", 8, "how many nodes to drain at the same time with -surge.real")

// stopTime is how long the first stopped request of a kill waits for the others. The timeout of a request of a surge is 4 s.
const stopTime = 2500 * time.Millisecond

// killedDrainTimeout limits a drain with up to maxLives kills. After each kill, a surge has to wait until the record has expired.
const killedDrainTimeout = 15 * time.Minute

// killAtAllRequests kills each program before and after each request of a drain. Each kill interrupts one request of each surge. So a
// drain of 30 Deployments needs far fewer drains than it has requests.
func killAtAllRequests(t *testing.T) {
	for _, program := range []string{agentProgram, managerProgram} {
		t.Run(program, func(t *testing.T) {
			began := time.Now()
			first := newKillWorker(t, program, program[:1])
			seen, _ := first.drainNext(&killBatch{})
			again, _ := first.drainNext(&killBatch{})
			requests := keepCommon(seen, again)
			t.Logf("an undisturbed drain has %d requests, another one too has %d of them: %s", len(seen), len(requests), formatKinds(requests))
			plan := newKillPlan(requests, *realSurges)
			t.Run("workers", func(t *testing.T) {
				for i := range *killWorkers {
					t.Run(fmt.Sprint(i), func(t *testing.T) {
						t.Parallel()
						newKillWorker(t, program, fmt.Sprintf("%s%d", program[:1], i)).carryOut(plan)
					})
				}
			})
			for _, kind := range plan.missedKinds() {
				t.Errorf("no kill of the %s at %s", program, kind)
			}
			for _, kind := range plan.missedRestores() {
				t.Errorf("no kill of a process that restores sizes after the %s, at %s", program, kind)
			}
			t.Logf("without a kill: %s", strings.Join(plan.openKills(), "; "))
			outcome := "no violation"
			if t.Failed() {
				outcome = "FAILED"
			}
			testbed.AddSummaryNote(t, fmt.Sprintf("surge: %s on a control plane, drains of %d Deployments: %s; %s after %s",
				program, *realSurges, plan.progress(), outcome, time.Since(began).Round(time.Second)))
		})
	}
}

// formatKinds returns text with the number of requests of each kind in all surges.
func formatKinds(requests []faultproxy.Request) string {
	all := slices.Clone(requests)
	for i := range all {
		all[i].Kind, _ = splitSurge(all[i].Kind)
	}
	return faultproxy.FormatKinds(all)
}

// keepCommon returns the requests of one drain up to the end of its surges, without those that another drain did not have.
func keepCommon(seen, again []faultproxy.Request) (common []faultproxy.Request) {
	last := 0
	for n, r := range seen {
		if _, deployment := splitSurge(r.Kind); deployment != "" {
			last = n
		}
	}
	for _, r := range seen[:min(last+1, len(seen))] {
		if slices.ContainsFunc(again, func(o faultproxy.Request) bool { return o.RequestID == r.RequestID }) {
			common = append(common, r)
		}
	}
	return common
}

// killWorker drains nodes one after the other, with kills of the draining program. The same pods move from node to node. Each node is
// in its own pool. The records of the surges are in the worker's own namespace. So no process restores the sizes of another worker, and
// the kill of one does not delay the other's.
type killWorker struct {
	*fixture
	program     string
	sizes       *sizeChecker
	want        map[string]int32
	deployments map[string]string // by the UID in the name of their records
	drains      int
}

func newKillWorker(t *testing.T, program, name string) *killWorker {
	t.Helper()
	f := newFixture(t, name)
	f.ctx = t.Context() // a worker takes longer than other tests
	f.recordNamespace = f.ns
	roles := []string{"slipway-agent-surge"}
	if program == managerProgram {
		f.installManager()
		roles = append(roles, "slipway-manager-surge")
	}
	for _, role := range roles {
		f.check(f.CopyRoleAndBinding(f.ctx, testbed.AgentNamespace, role, f.ns))
	}
	w := &killWorker{fixture: f, program: program, sizes: f.checkSizes(), deployments: map[string]string{}}
	all, want := f.singles(*realSurges, "web", "")
	w.want = want
	f.run(all...)
	list, err := f.Client().AppsV1().Deployments(f.ns).List(f.ctx, metav1.ListOptions{})
	f.check(err)
	for _, d := range list.Items {
		w.deployments[string(d.UID)] = d.Name
	}
	// This agent restores the sizes while the killed program does not run.
	other := controlplane.AKSPool{Name: name + "-other"}
	f.Azure.EnsureScaleSet(other.ScaleSetName())
	f.check(f.AddNodes(f.ctx, other.Node(0)))
	f.StartAgentForTest(f.ctx, t, other, 0, f.surgeFlags()...)
	return w
}

// carryOut drains nodes until the plan has no kills left.
func (w *killWorker) carryOut(plan *killPlan) {
	for b := plan.next(); b != nil; b = plan.next() {
		began := time.Now()
		_, c := w.drainNext(b)
		plan.record(b, len(c.crashes), c.killed, c.restoring)
		w.t.Logf("drain %d took %s, %d of %d requests were interrupted, %s. All: %s", w.drains, time.Since(began).Round(time.Second),
			len(c.killed), len(b.points), b.then, plan.progress())
	}
}

var (
	deploymentName = regexp.MustCompile(`\bweb-[0-9]+\b`)
	recordUID      = regexp.MustCompile(`/leases/slipway-surge-([0-9a-f-]+)`)
)

// kindOfSurge returns the kind of a request. If the request is of one surge, the kind contains the Deployment.
func (w *killWorker) kindOfSurge(r faultproxy.Request) string {
	query, err := url.QueryUnescape(r.Query)
	if err != nil {
		query = r.Query
	}
	deployment := deploymentName.FindString(r.Path + "?" + query)
	if record := recordUID.FindStringSubmatch(r.Path); record != nil {
		deployment = w.deployments[record[1]]
	}
	if deployment == "" {
		return kindOf(r)
	}
	return kindOf(r) + surgeSeparator + deployment
}

// killCourse is what happens to the program while it drains one node.
type killCourse struct {
	process *controlplane.Process
	proxy   *faultproxy.Proxy

	mu        sync.Mutex
	isOver    bool
	crashes   []time.Time            // by life
	killed    []faultproxy.RequestID // as in the batch
	restoring int                    // interrupted requests of a later process that may restore sizes
}

// kill kills the process, calls prepare, and may start the process again. It does nothing after the end of the course.
func (c *killCourse) kill(ctx context.Context, then afterKill, prepare func()) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.isOver {
		return nil
	}
	if err := c.process.Kill(); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return err
	}
	c.crashes = append(c.crashes, time.Now())
	c.proxy.StartNextLife()
	prepare()
	if then == restarted {
		return c.process.Restart(ctx)
	}
	return nil
}

// restartIfDead starts the process again if it was killed.
func (c *killCourse) restartIfDead(ctx context.Context) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.process.IsAlive() {
		return nil
	}
	return c.process.Restart(ctx)
}

// end kills the process and prevents further kills.
func (c *killCourse) end() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.isOver = true
	if err := c.process.Kill(); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return err
	}
	return c.proxy.Close()
}

// describeCrashes returns the crashes with the Deployments that each process has tried to resize, and with the records that it has
// tried to take over or to renew.
func (c *killCourse) describeCrashes() (all []crash) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, at := range c.crashes {
		all = append(all, crash{at: at, raised: map[string]bool{}, held: map[string]bool{}})
	}
	for _, r := range c.proxy.Requests() {
		kind, deployment := splitSurge(r.Kind)
		if r.Method != http.MethodPut || deployment == "" || r.Life >= len(all) {
			continue
		}
		if strings.HasSuffix(kind, "/scale") {
			all[r.Life].raised[deployment] = true
		} else if strings.HasSuffix(kind, "/leases/*") {
			all[r.Life].held[deployment] = true
		}
	}
	return all
}

// drainNext drains the node of the pods, so that they move to a new one. It kills the program at the requests of the batch. It checks
// that no size was below its user's wish, that each was right within restoreTime after each kill, and that surges have left nothing
// (I11). It returns the requests of the program. The batch may have several kills, each of another life of the program.
func (w *killWorker) drainNext(b *killBatch) (all []faultproxy.Request, c *killCourse) {
	w.t.Helper()
	ctx, cancel := context.WithTimeout(w.t.Context(), killedDrainTimeout)
	defer cancel()
	w.ctx = ctx
	w.drains++
	next := controlplane.AKSPool{Name: fmt.Sprintf("%s-%d", w.ns, w.drains)}
	w.addInstances(next, home+1)
	w.gaps.Reset()

	c = &killCourse{proxy: faultproxy.New(w.kindOfSurge)}
	started, interrupted := make(chan struct{}), make(chan struct{})
	var interruptNext func(points map[faultproxy.RequestID]faultproxy.Moment, lives int)
	interruptNext = func(points map[faultproxy.RequestID]faultproxy.Moment, lives int) {
		sent := countKinds(c.proxy.Requests())
		shifted := map[faultproxy.RequestID]faultproxy.Moment{}
		for id, moment := range points {
			shifted[faultproxy.RequestID{Kind: id.Kind, Nth: sent[id.Kind] + id.Nth}] = moment
		}
		c.proxy.InterruptTogether(shifted, stopTime, func(stopped []faultproxy.Request) {
			<-started
			left := maps.Clone(points)
			var killed []faultproxy.RequestID
			for _, r := range stopped {
				killed = append(killed, faultproxy.RequestID{Kind: r.Kind, Nth: r.Nth - sent[r.Kind]})
				delete(left, killed[len(killed)-1])
			}
			w.checkNow(c.kill(context.WithoutCancel(ctx), b.then, func() {
				c.killed = append(c.killed, killed...)
				switch {
				case b.restore.kind != "":
					w.interruptRestore(ctx, c, b.restore)
				case lives > 1 && len(left) > 0:
					interruptNext(left, lives-1)
				}
			}))
			if lives == b.lives {
				close(interrupted)
			}
		})
	}
	interruptNext(b.points, b.lives)
	c.process = w.startProgram(w.program, c.proxy)
	close(started)
	emptied := make(chan error, 1)
	go func() { emptied <- w.awaitEmpty(ctx) }()
	select {
	case err := <-emptied:
		w.check(err)
	case <-interrupted:
		if b.then == dead {
			w.awaitNoTraces(restoreTime, w.want)
			w.check(c.restartIfDead(ctx))
		}
		w.check(<-emptied)
	}
	w.awaitNoTraces(restoreTime, w.want)
	w.checkNoGaps()
	for _, late := range w.sizes.describeLateRestores(c.describeCrashes()) {
		w.t.Error(late)
	}
	all = c.proxy.Requests()
	w.deleteDrained(c)
	w.pool = next
	return all, c
}

// countKinds returns the number of requests of each kind.
func countKinds(requests []faultproxy.Request) map[string]int {
	count := map[string]int{}
	for _, r := range requests {
		count[r.Kind]++
	}
	return count
}

// interruptRestore lets the next process be killed too, at its first request of a kind for each Deployment.
func (w *killWorker) interruptRestore(ctx context.Context, c *killCourse, at killedRestore) {
	sent := countKinds(c.proxy.Requests())
	points := map[faultproxy.RequestID]faultproxy.Moment{}
	for name := range w.want {
		kind := at.kind + surgeSeparator + name
		points[faultproxy.RequestID{Kind: kind, Nth: sent[kind] + 1}] = at.moment
	}
	c.proxy.InterruptTogether(points, stopTime, func(stopped []faultproxy.Request) {
		w.checkNow(c.kill(context.WithoutCancel(ctx), restarted, func() { c.restoring = len(stopped) }))
	})
}

// checkNow reports an error outside the goroutine of the test.
func (w *killWorker) checkNow(err error) {
	if err != nil {
		w.t.Error(err)
	}
}

// deleteDrained ends the program after the drain, and deletes the drained node.
func (w *killWorker) deleteDrained(c *killCourse) {
	w.t.Helper()
	if w.program != managerProgram {
		w.check(c.end())
		for _, e := range w.Azure.State().Events {
			if e.ScaleSet == w.pool.ScaleSetName() && e.IsListed() {
				w.check(w.Azure.CancelEvent(e.EventID))
			}
		}
		w.check(w.Client().CoreV1().Nodes().Delete(w.ctx, w.node(home), metav1.DeleteOptions{}))
		return
	}
	retirements := w.resource("noderetirements")
	w.check(testbed.PollUntil(w.ctx, "NodeRetirement "+w.node(home)+" has succeeded", func() bool {
		if err := c.restartIfDead(w.ctx); err != nil {
			w.t.Error(err)
		}
		retirement, err := retirements.Get(w.ctx, w.node(home), metav1.GetOptions{})
		if err != nil {
			return apierrors.IsNotFound(err)
		}
		phase, _, err := unstructured.NestedString(retirement.Object, "status", "phase")
		return err == nil && phase == string(v1alpha1.Succeeded)
	}))
	w.check(c.end())
	if err := retirements.Delete(w.ctx, w.node(home), metav1.DeleteOptions{}); !apierrors.IsNotFound(err) {
		w.check(err)
	}
	w.check(w.resource("nodegroups").Delete(w.ctx, w.pool.Name, metav1.DeleteOptions{}))
}
