// Package placement_test carries out a plan on a real control plane. It requests the plan as a user would, with only the
// permissions of the shipped manifest.
package placement_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
	watchtools "k8s.io/client-go/tools/watch"

	"github.com/slipway-dev/slipway/dev/controlplane"
	"github.com/slipway-dev/slipway/dev/testbed"
	"github.com/slipway-dev/slipway/dev/workload"
	"github.com/slipway-dev/slipway/internal/drain"
	"github.com/slipway-dev/slipway/internal/kubeapi"
	"github.com/slipway-dev/slipway/internal/placement/live"
	"github.com/slipway-dev/slipway/internal/placement/planner"
)

const (
	namespace = "plan"
	nodes     = 12
	victims   = 4
	viewer    = "viewer"
	stranger  = "stranger"
)

// workloads returns about sixty pods. Each kind has its own placement constraints, and half of the pods have PDBs.
func workloads() (objects []runtime.Object, pods int) {
	app := func(name string, replicas int32, cpu string) workload.App {
		pods += int(replicas)
		return workload.App{
			Namespace: namespace, Name: name, Replicas: replicas, CPU: resource.MustParse(cpu), StopSeconds: "0.5",
			StartSeconds: "0.2",
		}
	}
	zonal, hosts := app("zonal", 12, "300m"), app("hosts", 8, "200m")
	apart, near := app("apart", 5, "200m"), app("near", 6, "250m")
	store, plain := app("store", 5, "400m"), app("plain", 24, "200m")
	zonal.MaxUnavailable, hosts.MaxUnavailable, apart.MaxUnavailable, store.MaxUnavailable = "6", "5", "3", "3"
	spread := func(d *appsv1.Deployment, key string) *appsv1.Deployment {
		d.Spec.Template.Spec.TopologySpreadConstraints = []corev1.TopologySpreadConstraint{{
			MaxSkew: 1, TopologyKey: key,
			WhenUnsatisfiable: corev1.DoNotSchedule, LabelSelector: d.Spec.Selector,
		}}
		return d
	}
	term := func(d *appsv1.Deployment, key string) []corev1.PodAffinityTerm {
		return []corev1.PodAffinityTerm{{LabelSelector: d.Spec.Selector, TopologyKey: key}}
	}
	alone, together := apart.Deployment(), near.Deployment()
	alone.Spec.Template.Spec.Affinity = &corev1.Affinity{PodAntiAffinity: &corev1.PodAntiAffinity{
		RequiredDuringSchedulingIgnoredDuringExecution: term(alone, corev1.LabelHostname),
	}}
	together.Spec.Template.Spec.Affinity = &corev1.Affinity{PodAffinity: &corev1.PodAffinity{
		RequiredDuringSchedulingIgnoredDuringExecution: term(together, corev1.LabelTopologyZone),
	}}
	return []runtime.Object{
		workload.NewNamespace(namespace), spread(zonal.Deployment(), corev1.LabelTopologyZone), zonal.PodDisruptionBudget(),
		spread(hosts.Deployment(), corev1.LabelHostname), hosts.PodDisruptionBudget(), alone, apart.PodDisruptionBudget(), together,
		store.StatefulSet(), store.PodDisruptionBudget(), plain.Deployment(),
	}, pods
}

func TestExecutedPlanLeavesNoPodPending(t *testing.T) {
	bed := testbed.StartForTest(t, testbed.Options{}) // the plan covers all nodes of a cluster
	ctx, cancel := context.WithTimeout(t.Context(), 8*time.Minute)
	defer cancel()
	specs := make([]controlplane.NodeSpec, nodes)
	for i := range specs {
		specs[i] = controlplane.NodeSpec{
			Name: fmt.Sprintf("plan-%02d", i), CPU: "4", Memory: "16Gi",
			Labels: map[string]string{corev1.LabelTopologyZone: fmt.Sprintf("zone-%d", i%3)},
		}
	}
	begun := time.Now()
	step := func(what string) { t.Logf("%5.1f s: %s", time.Since(begun).Seconds(), what) }
	if err := bed.AddNodes(ctx, specs...); err != nil {
		t.Fatal(err)
	}
	step("nodes added")
	objects, pods := workloads()
	if err := workload.CreateAndAwait(ctx, bed.Client(), objects...); err != nil {
		t.Fatal(err)
	}
	awaitPDBCounts(ctx, t, bed)
	step(fmt.Sprintf("%d pods ready", pods))
	selection := makePlan(ctx, t, bed)
	if got := planAsViewer(ctx, t, bed); !slices.EqualFunc(got, selection.Victims, func(a, b planner.Evacuation) bool {
		return a.Node == b.Node && slices.Equal(a.Moves, b.Moves)
	}) {
		t.Errorf("slipway plan -o json removes %v, the planner %v", names(got), names(selection.Victims))
	}
	checkViewerRights(t, bed)
	step(fmt.Sprintf("planned to remove %v", names(selection.Victims)))
	executePlan(ctx, t, bed, selection)
	step("plan executed")
	awaitPodsReady(ctx, t, bed, names(selection.Victims), pods)
	step("all pods run")
}

// awaitPDBCounts waits until the PDBs have counted all of their pods. Before that, the allowed cost of a plan could grow
// between two reads.
func awaitPDBCounts(ctx context.Context, t *testing.T, bed *testbed.Testbed) {
	t.Helper()
	eventually(ctx, t, "the PDBs to have counted their pods", func() bool {
		list, err := bed.Client().PolicyV1().PodDisruptionBudgets(namespace).List(ctx, metav1.ListOptions{})
		return err == nil && !slices.ContainsFunc(list.Items, func(b policyv1.PodDisruptionBudget) bool {
			return b.Status.ExpectedPods == 0 || b.Status.CurrentHealthy != b.Status.ExpectedPods
		})
	})
}

// makePlan makes a plan with the administrator's permissions.
func makePlan(ctx context.Context, t *testing.T, bed *testbed.Testbed) *planner.VictimSelection {
	t.Helper()
	o, err := live.ReadClusterObjects(ctx, bed.Client())
	if err != nil {
		t.Fatal(err)
	}
	p, err := planner.PlanFromObjects(o, planner.PlanOptions{MaxRemovals: victims, Policy: planner.LeastDisruption, Rules: planner.Options{Now: o.Time}})
	if err != nil {
		t.Fatal(err)
	}
	moves := 0
	for _, v := range p.Remove.Victims {
		moves += len(v.Moves)
	}
	if len(p.Remove.Victims) != victims || moves == 0 || p.Launch != nil {
		t.Fatalf("%d victims with %d moves, want %d with some; kept %+v; to launch %+v", len(p.Remove.Victims), moves, victims,
			p.Remove.Skipped, p.Launch)
	}
	return p.Remove
}

// planAsViewer returns the output of slipway plan for an account with only the viewer's permissions. It also checks that
// other accounts get no plan.
func planAsViewer(ctx context.Context, t *testing.T, bed *testbed.Testbed) []planner.Evacuation {
	t.Helper()
	root, err := testbed.RepositoryRoot()
	if err != nil {
		t.Fatal(err)
	}
	if err := bed.ApplyFile(ctx, filepath.Join(root, "deploy", "viewer", "rbac.yaml")); err != nil {
		t.Fatal(err)
	}
	_, err = bed.Client().RbacV1().ClusterRoleBindings().Create(ctx, &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: "slipway-viewers"},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "slipway-viewer"},
		Subjects:   []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: namespace, Name: viewer}},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if err := bed.AwaitPermissions(ctx, namespace, viewer, "slipway-viewer"); err != nil {
		t.Fatal(err)
	}
	if out, err := slipway(ctx, t, bed, stranger, "plan"); err == nil ||
		!strings.Contains(err.Error(), "Error from server (Forbidden): nodes is forbidden") || !strings.Contains(err.Error(), "ClusterRole slipway-viewer") {
		t.Errorf("without rights: printed %q, error %v", out, err)
	}
	out, err := slipway(ctx, t, bed, viewer, "plan", "--max", fmt.Sprint(victims), "-o", "json")
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "plan.json")
	if _, err := slipway(ctx, t, bed, viewer, "snapshot", "save", file); err != nil {
		t.Fatal(err)
	}
	saved, err := slipway(ctx, t, bed, viewer, "plan", "--max", fmt.Sprint(victims), "-o", "json", "--snapshot", file)
	if err != nil || !bytes.Equal(saved, out) {
		t.Errorf("of the saved cluster: %s, %v; of the live one: %s", saved, err, out)
	}
	var p planner.Plan
	if err := json.Unmarshal(out, &p); err != nil {
		t.Fatalf("%v in %s", err, out)
	}
	if len(p.Remove.Victims) == 0 {
		t.Fatalf("no victims in %s", out)
	}
	first := p.Remove.Victims[0].Node
	if out, err := slipway(ctx, t, bed, viewer, "why", first); err != nil || !strings.Contains(string(out), first+" can be removed") {
		t.Errorf("why %s: %s, %v", first, out, err)
	}
	if err := bed.InstallCRDs(ctx); err != nil {
		t.Fatal(err)
	}
	if _, err := slipway(ctx, t, bed, viewer, "status"); err != nil {
		t.Error(err)
	}
	return p.Remove.Victims
}

// slipway runs the command with the token of a ServiceAccount, and creates the account if it does not exist.
func slipway(ctx context.Context, t *testing.T, bed *testbed.Testbed, account string, args ...string) ([]byte, error) {
	t.Helper()
	accounts := bed.Client().CoreV1().ServiceAccounts(namespace)
	if _, err := accounts.Get(ctx, account, metav1.GetOptions{}); err != nil {
		if _, err := accounts.Create(ctx, &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: account}},
			metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	kubeconfig, err := bed.ServiceAccountKubeconfig(ctx, namespace, account, controlplane.TokenOptions{})
	if err != nil {
		t.Fatal(err)
	}
	cmd := testbed.NewCommand(ctx, t, "slipway", append(args, "--kubeconfig", kubeconfig)...)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		err = fmt.Errorf("slipway %v: %w: %s", args, err, stderr.Bytes())
	}
	return out, err
}

// checkViewerRights checks that the viewer's API requests use exactly the permissions that it has.
func checkViewerRights(t *testing.T, bed *testbed.Testbed) {
	t.Helper()
	events, err := bed.ReadAuditLog(controlplane.AuditFilter{User: "system:serviceaccount:" + namespace + ":" + viewer})
	if err != nil {
		t.Fatal(err)
	}
	used := map[string]bool{}
	for _, e := range events {
		if e.ObjectRef == nil && strings.HasPrefix(e.RequestURI, "/api") {
			continue // every account may discover the types
		}
		if e.ObjectRef == nil {
			t.Errorf("%s %s", e.Verb, e.RequestURI)
			continue
		}
		used[e.Verb+" "+e.ObjectRef.APIGroup+" "+e.ObjectRef.Resource] = true
	}
	role, err := bed.Client().RbacV1().ClusterRoles().Get(t.Context(), "slipway-viewer", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	granted := map[string]bool{}
	for _, rule := range role.Rules {
		for _, verb := range rule.Verbs {
			for _, kind := range rule.Resources {
				granted[verb+" "+rule.APIGroups[0]+" "+kind] = true
			}
		}
	}
	for right := range granted {
		// Without the feature gate GenericWorkload, no pod belongs to a PodGroup.
		if !used[right] && right != "list scheduling.k8s.io podgroups" {
			t.Errorf("%q is granted and not used", right)
		}
	}
	for right := range used {
		if !granted[right] {
			t.Errorf("%q was used and is not granted", right)
		}
	}
}

// executePlan carries out the plan. It cordons all victims, then drains each and removes its node, in order.
func executePlan(ctx context.Context, t *testing.T, bed *testbed.Testbed, selection *planner.VictimSelection) {
	t.Helper()
	config, err := kubeapi.LoadConfig(bed.Kubeconfig())
	if err != nil {
		t.Fatal(err)
	}
	api, err := config.NewClient("placement-test")
	if err != nil {
		t.Fatal(err)
	}
	for _, v := range selection.Victims {
		if _, err := api.PatchNode(ctx, v.Node, []byte(`{"spec":{"unschedulable":true}}`)); err != nil {
			t.Fatal(err)
		}
	}
	for _, v := range selection.Victims {
		report, err := drain.Run(ctx, api, drain.Options{Node: v.Node, TimeLimits: drain.TimeLimits{TimeoutAt: time.Now().Add(5 * time.Minute)}})
		if err != nil {
			t.Fatalf("%s: %v", v.Node, err)
		}
		if len(report.Pods) != len(v.Moves) {
			t.Errorf("%s: %d pods drained, the plan moves %d", v.Node, len(report.Pods), len(v.Moves))
		}
		if err := bed.Client().CoreV1().Nodes().Delete(ctx, v.Node, metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
	}
}

// awaitPodsReady watches until all pods run on the remaining nodes.
func awaitPodsReady(ctx context.Context, t *testing.T, bed *testbed.Testbed, gone []string, want int) {
	t.Helper()
	ctx, cancel := context.WithTimeout(ctx, 5*time.Minute)
	defer cancel()
	seen := map[types.UID]*corev1.Pod{}
	unsettled := func() (list []string) {
		for _, p := range seen {
			if p.DeletionTimestamp != nil || slices.Contains(gone, p.Spec.NodeName) || !ready(p) {
				list = append(list, fmt.Sprintf("%s on %q is %s, %+v", p.Name, p.Spec.NodeName, p.Status.Phase, p.Status.Conditions))
			}
		}
		return list
	}
	lw := cache.NewListWatchFromClient(bed.Client().CoreV1().RESTClient(), "pods", namespace, fields.Everything())
	_, err := watchtools.UntilWithSync(ctx, cache.ToListWatcherWithWatchListSemantics(lw, bed.Client()), &corev1.Pod{}, nil,
		func(e watch.Event) (bool, error) {
			p, ok := e.Object.(*corev1.Pod)
			if !ok {
				return false, fmt.Errorf("a %T among the pods", e.Object)
			}
			if seen[p.UID] = p; e.Type == watch.Deleted {
				delete(seen, p.UID)
			}
			return len(seen) == want && len(unsettled()) == 0, nil
		})
	if err != nil {
		t.Errorf("%v: %d pods, want %d; of them have not settled: %s", err, len(seen), want, strings.Join(unsettled(), "\n"))
	}
}

func ready(p *corev1.Pod) bool {
	return slices.ContainsFunc(p.Status.Conditions, func(c corev1.PodCondition) bool {
		return c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue
	})
}

func names(list []planner.Evacuation) []string {
	var all []string
	for _, e := range list {
		all = append(all, e.Node)
	}
	return all
}
