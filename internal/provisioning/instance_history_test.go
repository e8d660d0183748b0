package provisioning

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/slipway-dev/slipway/api/v1alpha1"
	"github.com/slipway-dev/slipway/internal/cloud"
	"github.com/slipway-dev/slipway/internal/provisioning/launch"
	"github.com/slipway-dev/slipway/internal/provisioning/plan"
	"github.com/slipway-dev/slipway/internal/retirement/disruptionbudget"
	"github.com/slipway-dev/slipway/internal/testing/check"
	"github.com/slipway-dev/slipway/internal/testing/must"
	"github.com/slipway-dev/slipway/internal/testing/virtual"
)

// courseLength is the simulated time, and courseJoin is the group's join timeout.
const (
	courseLength = 3 * time.Hour
	courseJoin   = 15 * time.Minute
)

// instanceHistory has one unschedulable pod. Each instance that is launched for it is unusable in random ways, one
// after the other.
type instanceHistory struct {
	*fixture
	dice     *rand.Rand
	launched map[string]time.Time // by provider ID
	usable   map[string]bool      // instances with a Node that was usable in a reconcile
	log      []string
}

func (c *instanceHistory) logf(format string, a ...any) {
	c.log = append(c.log, time.Now().Format("15:04 ")+fmt.Sprintf(format, a...))
}

// ways are the faults of a Node.
var ways = []string{
	"usable", "not ready", "unlabelled", "cordoned", "startup taint", "no device", "not ready, unlabelled", "not ready, cordoned",
	"cordoned, unlabelled", "not initialized", "another tool", "no node", "no node", "claimed by an agent",
}

// makeUnusable sets a fault of an instance's Node. A deleted Node gets a new UID.
func (c *instanceHistory) makeUnusable(i cloud.Instance, way string) {
	c.t.Helper()
	c.logf("%s: %s", i.Name, way)
	nodes := c.kube.CoreV1().Nodes()
	was, err := nodes.Get(c.t.Context(), i.Name, metav1.GetOptions{})
	if err != nil && !apierrors.IsNotFound(err) {
		c.t.Fatal(err)
	}
	there := err == nil
	if way == "no node" {
		if there {
			must.NoError(c.t, nodes.Delete(c.t.Context(), i.Name, metav1.DeleteOptions{}))
		}
		return
	}
	n := newIdleNode(i.Name, "")
	n.Spec.ProviderID, n.CreationTimestamp, n.UID = i.ProviderID, metav1.Now(), types.UID(fmt.Sprint(i.Name, time.Now().Unix()))
	if there {
		n.CreationTimestamp, n.UID = was.CreationTimestamp, was.UID
	}
	n.Status.Allocatable[gpu] = resource.MustParse("1")
	n.Status.Capacity = n.Status.Allocatable
	taint := func(key string) {
		n.Spec.Taints = append(n.Spec.Taints, corev1.Taint{Key: key, Effect: corev1.TaintEffectNoSchedule})
	}
	has := func(what string) bool { return slices.Contains(splitFaults(way), what) }
	if has("not ready") {
		n.Status.Conditions[0].Status = corev1.ConditionFalse
	}
	if has("unlabelled") {
		n.Labels = nil
	}
	n.Spec.Unschedulable = has("cordoned") || has("claimed by an agent")
	if has("startup taint") {
		taint(startupTaint)
	}
	if has("not initialized") {
		taint("node.cloudprovider.kubernetes.io/uninitialized")
	}
	if has("another tool") {
		taint("ToBeDeletedByClusterAutoscaler")
	}
	if has("no device") {
		delete(n.Status.Allocatable, gpu)
	}
	if has("claimed by an agent") {
		n.Annotations = map[string]string{"cordon.slipway.dev/azure-e": `{"owner":"azure-e","since":"2026-01-01T00:00:00Z"}`}
	}
	if there {
		_, err = nodes.Update(c.t.Context(), n, metav1.UpdateOptions{})
	} else {
		_, err = nodes.Create(c.t.Context(), n, metav1.CreateOptions{})
	}
	must.NoError(c.t, err)
}

func splitFaults(way string) (all []string) {
	for _, one := range []string{"not ready", "unlabelled", "cordoned", "startup taint", "no device", "not initialized", "another tool", "claimed by an agent"} {
		if len(way) >= len(one) && (way == one || way[:len(one)] == one || way[len(way)-len(one):] == one) {
			all = append(all, one)
		}
	}
	return all
}

// explainSecondInstance returns why another instance may be launched. It returns "" if none may.
func (c *instanceHistory) explainSecondInstance(i cloud.Instance) string {
	n, err := c.kube.CoreV1().Nodes().Get(c.t.Context(), i.Name, metav1.GetOptions{})
	late := time.Since(c.launched[i.ProviderID]) >= courseJoin
	switch {
	case i.State == cloud.Deleting:
		return "it is being deleted"
	case c.usable[i.ProviderID]:
		return "it was usable"
	case err != nil && late:
		return "it did not join in time"
	case err != nil:
		return ""
	case disruptionbudget.IsBeingRemoved(n) && n.Labels != nil:
		return "its Node is being retired"
	case !disruptionbudget.IsReady(n) && late:
		return "its Node was not Ready in time"
	case n.Status.Allocatable[gpu] == resource.Quantity{} && !time.Now().Before(n.CreationTimestamp.Add(courseJoin)):
		return "its device did not register in time"
	}
	return ""
}

func (c *instanceHistory) step() {
	c.t.Helper()
	var all []cloud.Instance
	c.pool.change(func() { all = slices.Clone(c.pool.machines) })
	for _, i := range all {
		switch roll := c.dice.IntN(100); {
		case roll < 12:
			c.makeUnusable(i, ways[c.dice.IntN(len(ways))])
		case roll == 12: // it vanishes
			c.logf("%s vanishes", i.Name)
			c.pool.change(func() {
				c.pool.machines = slices.DeleteFunc(c.pool.machines, func(o cloud.Instance) bool { return o.ProviderID == i.ProviderID })
			})
			if c.dice.IntN(2) == 0 {
				c.makeUnusable(i, "no node")
			}
		}
	}
	switch c.dice.IntN(40) {
	case 0:
		c.logf("restart")
		c.states = map[string]*groupState{}
	case 1:
		c.logf("the cloud is away")
		c.pool.change(func() { c.pool.unread = errors.New("503") })
	case 2, 3, 4:
		c.pool.change(func() { c.pool.unread = nil })
	}
	synctest.Wait()
	c.runRetirements()
	before := len(c.pool.launches())
	c.pool.change(func() { all = slices.Clone(c.pool.machines) })
	excuses := map[string]string{}
	for _, i := range all {
		excuses[i.Name] = c.explainSecondInstance(i)
		n, err := c.sources.nodes.Get(i.Name)
		if err == nil && plan.FindJoinState(&v1alpha1.NodeGroup{Spec: c.spec()}, n) == launch.NodeUsable || err == nil && disruptionbudget.IsBeingRemoved(n) && n.Labels != nil {
			c.usable[i.ProviderID] = true
		}
	}
	c.reconcile()
	c.calls.Wait()
	synctest.Wait()
	now := c.pool.launches()
	c.pool.change(func() {
		for _, i := range c.pool.machines {
			if c.launched[i.ProviderID].IsZero() {
				c.launched[i.ProviderID] = time.Now()
			}
		}
	})
	if len(now) == before {
		return
	}
	c.logf("launch %v, excuses %v", now[before:], excuses)
	for name, why := range excuses {
		check.Not(c.t, why == "", "an instance was launched while %s is there", name)
	}
	if len(now) > before+1 || now[before].Count != 1 {
		c.t.Errorf("launches are %v for one pod", now[before:])
	}
}

func (c *instanceHistory) spec() v1alpha1.NodeGroupSpec {
	return v1alpha1.NodeGroupSpec{
		NodeSelector: metav1.LabelSelector{MatchLabels: map[string]string{"pool": "web"}}, ScaleUp: &v1alpha1.ScaleUp{StartupTaints: []string{startupTaint}},
	}
}

// runRetirements finishes the retirements, or does not.
func (c *instanceHistory) runRetirements() {
	for _, rt := range c.listRetirements() {
		if rt.Status.Phase.IsFinal() || c.dice.IntN(5) > 0 {
			continue
		}
		phase := v1alpha1.Succeeded
		if c.dice.IntN(3) == 0 {
			phase = v1alpha1.Aborted
		}
		c.logf("retirement of %s: %s", rt.Spec.NodeName, phase)
		rt.Status.Phase = phase
		rt.Status.Times.Finished = new(metav1.Now())
		must.NoError(c.t, c.client.Update(c.t.Context(), &rt))
		if phase == v1alpha1.Succeeded {
			_ = c.kube.CoreV1().Nodes().Delete(c.t.Context(), rt.Spec.NodeName, metav1.DeleteOptions{})
			c.pool.change(func() {
				c.pool.machines = slices.DeleteFunc(c.pool.machines, func(o cloud.Instance) bool { return o.Name == rt.Spec.NodeName })
			})
		}
	}
	synctest.Wait()
}

func TestI5OnePodGetsOneInstanceHoweverUnusable(t *testing.T) {
	for seed := range 12 {
		t.Run(fmt.Sprint(seed), virtual.InVirtualTime(func(t *testing.T) {
			f := newFixture(t, func(g *v1alpha1.NodeGroup) {
				withStartupTaint(g)
				g.Spec.ScaleUp.Templates = []v1alpha1.InstanceTemplate{{Name: "m4", Allocatable: corev1.ResourceList{
					corev1.ResourceCPU: resource.MustParse("4"), corev1.ResourceMemory: resource.MustParse("16Gi"), gpu: resource.MustParse("1"),
				}}}
			})
			c := &instanceHistory{fixture: f, dice: rand.New(rand.NewPCG(uint64(seed), 7)), launched: map[string]time.Time{}, usable: map[string]bool{}}
			defer func() {
				if t.Failed() {
					for _, line := range c.log {
						t.Log(line)
					}
				}
			}()
			p := newUnschedulablePod("apps", "a")
			p.Spec.NodeSelector = map[string]string{"pool": "web"}
			p.Spec.Containers[0].Resources.Requests[gpu] = resource.MustParse("1")
			p.Spec.Containers[0].Resources.Limits = corev1.ResourceList{gpu: resource.MustParse("1")}
			f.addUnschedulablePod(p)
			for range courseLength / time.Minute {
				c.step()
				if t.Failed() {
					return
				}
				time.Sleep(time.Minute)
			}
		}))
	}
}
