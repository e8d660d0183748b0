package nodegroup_test

import (
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/slipway-dev/slipway/api/v1alpha1"
	"github.com/slipway-dev/slipway/dev/testbed"
	"github.com/slipway-dev/slipway/dev/workload"
)

func TestAGroupIdlesOutToItsMinimum(t *testing.T) {
	t.Parallel()
	f := newFixture(t, "out", 4)
	f.run(f.app("job", 3).Deployment())
	f.group("out", "minSize: 2\ndisruptionBudgets: [{nodes: 100%}]\n"+f.idle("1s", ""))
	f.manage()
	g := f.awaitGroup("out", "at its minimum", func(g *v1alpha1.NodeGroup) bool {
		return g.Status.Nodes == 2 && g.Status.LastScaleDown != nil && g.Status.CloudSize != nil && *g.Status.CloudSize == 2 &&
			g.Status.Retiring == 0
	})
	if ready := meta.FindStatusCondition(g.Status.Conditions, v1alpha1.GroupReady); ready == nil || ready.Status != metav1.ConditionTrue ||
		ready.ObservedGeneration != g.Generation {
		t.Errorf("the condition Ready is %+v", ready)
	}
	if g.Status.Ready != 2 || g.Status.LastScaleUp == nil || g.Status.AllowedDisruptions != 0 {
		t.Errorf("%+v", g.Status)
	}
	f.here(3)
	stays := ""
	for i := range 3 {
		if _, there := f.ARM.VM(f.pool.ResourceName(i)); there {
			stays = f.node(i)
		} else {
			f.awaitEvent("Node", f.node(i), "IdleNodeRetiring", "CooldownPassed: idle since")
		}
	}
	f.awaitEvent("Node", stays, "IdleNodeKept", "MinSize: the group's minimum is 2")
	f.awaitEvent("NodeGroup", "out", "IdleNodeKept", stays)
	s := f.status("out")
	if s.Accepted != "True" || len(s.Idle) != 1 || s.Idle[0].Node != stays || s.Idle[0].Verdict != "Blocked" ||
		s.Idle[0].Reasons[0].Rule != "MinSize" {
		t.Errorf("%+v", s)
	}
	if table := f.slipway("status"); !strings.Contains(table, "MinSize: the group's minimum is 2") {
		t.Errorf("%s", table)
	}
}

// stuck starts to retire the pool's first node. The PDB of an application blocks its drain.
func stuck(t *testing.T, name string) *fixture {
	f := newFixture(t, name, 1)
	held := workload.App{Namespace: name, Name: "held", Node: f.node(0), MinAvailable: "1"}
	f.run(held.Deployment(), held.PodDisruptionBudget())
	f.group(name, f.idle("0s", ""))
	f.manage()
	f.awaitPhase(0, v1alpha1.Draining)
	f.awaitNode(0, "cordoned", func(n *corev1.Node) bool { return n.Spec.Unschedulable })
	return f
}

func TestAPodThatComesDuringTheRetirementRescuesTheNode(t *testing.T) {
	t.Parallel()
	f := stuck(t, "late")
	f.bind("job", 0)
	n := f.awaitNode(0, "restored", func(n *corev1.Node) bool { return !n.Spec.Unschedulable })
	f.check(testbed.PollUntil(f.ctx, "the retirement is cancelled", func() bool {
		rt := f.record(0)
		return rt == nil || rt.Status.Phase == v1alpha1.Aborted
	}))
	for key := range n.Annotations {
		if strings.HasPrefix(key, "cordon.slipway.dev/") {
			t.Errorf("I3: the node has the annotation %s", key)
		}
	}
	f.here(0)
	pods, err := f.Client().CoreV1().Pods(f.name).List(f.ctx, metav1.ListOptions{LabelSelector: work})
	f.check(err)
	if len(pods.Items) != 1 || pods.Items[0].DeletionTimestamp != nil {
		t.Errorf("the pod that rescued the node was evicted: %+v", pods.Items)
	}
}

func TestI8TheCooldownGoesOnOverARestart(t *testing.T) {
	t.Parallel()
	f := newFixture(t, "again", 2)
	f.group("again", f.idle("1h", ""))
	p := f.manage()
	before := f.awaitNode(0, "idle", marked).Annotations[since]
	f.awaitNode(1, "idle", marked)
	f.check(p.Kill())
	// The second node became idle long ago.
	ago := time.Now().Add(-2 * time.Hour).UTC().Format(time.RFC3339)
	_, err := f.Client().CoreV1().Nodes().Patch(f.ctx, f.node(1), types.MergePatchType,
		[]byte(`{"metadata":{"annotations":{"`+since+`":"`+ago+`"}}}`), metav1.PatchOptions{})
	f.check(err)
	f.check(p.Restart(f.ctx))
	f.awaitGone(1)
	f.here(0)
	n := f.awaitNode(0, "idle", marked)
	if n.Annotations[since] != before {
		t.Errorf("idle since %s, and since %s before the restart", n.Annotations[since], before)
	}
	if s := f.status("again"); len(s.Idle) != 1 || s.Idle[0].IdleSince.UTC().Format(time.RFC3339) != before {
		t.Errorf("%+v, want idle since %s", s, before)
	}
}

func TestAPendingPodThatOnlyTheGroupCouldRunKeepsItsNodes(t *testing.T) {
	t.Parallel()
	f := newFixture(t, "wait", 1)
	filler := workload.App{Namespace: f.name, Name: "filler", Node: f.node(0), CPU: resource.MustParse("12"), StopSeconds: "0.1"}
	f.run(filler.Deployment())
	job := f.app("job", 0)
	job.Node, job.NodeSelector = "", map[string]string{"kubernetes.azure.com/agentpool": f.name}
	job.CPU = resource.MustParse("10")
	f.check(workload.Create(f.ctx, f.Client(), job.Pod()))
	f.group("wait", f.idle("0s", ""))
	f.manage()
	f.awaitEvent("Node", f.node(0), "IdleNodeKept", "PendingPod: pod wait/job is Pending and only this group could run it")
	f.here(0)
	if s := f.status("wait"); len(s.Idle) != 1 || s.Idle[0].Reasons[0].Rule != "PendingPod" {
		t.Errorf("%+v", s)
	}
	f.deletePod("job")
	f.awaitGone(0)
}

func TestI3ScaleDownIsDisabledForAsLongAsTheGroupOwnsItsNodes(t *testing.T) {
	t.Parallel()
	f := newFixture(t, "hold", 2)
	_, err := f.Client().CoreV1().Nodes().Patch(f.ctx, f.node(1), types.MergePatchType,
		[]byte(`{"metadata":{"annotations":{"`+disabled+`":"true"}}}`), metav1.PatchOptions{})
	f.check(err)
	f.group("hold", "clusterAutoscalerScaleDownDisabled: true\n"+f.idle("1h", ""))
	p := f.manage()
	f.awaitNode(0, "left alone by the cluster autoscaler", func(n *corev1.Node) bool { return n.Annotations[disabled] == "true" && marked(n) })
	f.awaitNode(1, "idle", marked)
	f.check(p.Kill())
	f.check(f.objects(groups).Delete(f.ctx, "hold", metav1.DeleteOptions{}))
	f.check(p.Restart(f.ctx))
	bare := func(n *corev1.Node) bool {
		for key := range n.Annotations {
			if strings.HasPrefix(key, "nodegroup.slipway.dev/") {
				return false
			}
		}
		return true
	}
	if n := f.awaitNode(0, "restored", bare); n.Annotations[disabled] != "" {
		t.Error("the annotation is left behind")
	}
	if n := f.awaitNode(1, "restored", bare); n.Annotations[disabled] != "true" {
		t.Error("the annotation that somebody else had set is gone")
	}
}

func TestI4ANodeWhoseMachineAzureKnowsByAnotherNameStaysWithTheReason(t *testing.T) {
	t.Parallel()
	f := newFixture(t, "other", 1)
	liar := f.pool.Node(7)
	liar.ProviderID = f.pool.ProviderID(0) // the last six characters of the name encode instance 7
	f.check(f.AddNodes(f.ctx, liar))
	f.run(f.app("job", 0).Pod())
	f.group("other", f.idle("0s", ""))
	f.manage()
	f.awaitPhase(7, v1alpha1.Refused)
	if rt := f.record(7); len(rt.Status.Reasons) == 0 || rt.Status.Reasons[0].Code != "InstanceNotConfirmed" {
		t.Errorf("%+v", rt.Status)
	}
	f.awaitEvent("Node", f.node(7), "IdleNodeKept", "AfterFailure")
	f.here(0)
}
