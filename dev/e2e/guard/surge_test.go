package guard_test

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/slipway-dev/slipway/dev/controlplane"
	"github.com/slipway-dev/slipway/dev/testbed"
	"github.com/slipway-dev/slipway/dev/workload"
)

// surger is the field manager of surges.
const surger = "slipway-surge"

// foreignTypes are the types of Argo Rollouts, OpenKruise and KEDA, as far as a surge uses them.
var foreignTypes = []string{
	`{"apiVersion":"apiextensions.k8s.io/v1","kind":"CustomResourceDefinition","metadata":{"name":"rollouts.argoproj.io"},"spec":{"group":"argoproj.io",` +
		`"names":{"plural":"rollouts","singular":"rollout","kind":"Rollout","listKind":"RolloutList"},"scope":"Namespaced","versions":[{"name":"v1alpha1",` +
		`"served":true,"storage":true,"schema":{"openAPIV3Schema":{"type":"object","x-kubernetes-preserve-unknown-fields":true}},"subresources":{"status":{},` +
		`"scale":{"specReplicasPath":".spec.replicas","statusReplicasPath":".status.replicas"}}}]}}`,
	`{"apiVersion":"apiextensions.k8s.io/v1","kind":"CustomResourceDefinition","metadata":{"name":"clonesets.apps.kruise.io"},"spec":{"group":"apps.kruise.io",` +
		`"names":{"plural":"clonesets","singular":"cloneset","kind":"CloneSet","listKind":"CloneSetList"},"scope":"Namespaced","versions":[{"name":"v1alpha1",` +
		`"served":true,"storage":true,"schema":{"openAPIV3Schema":{"type":"object","x-kubernetes-preserve-unknown-fields":true}},"subresources":{"status":{},` +
		`"scale":{"specReplicasPath":".spec.replicas","statusReplicasPath":".status.replicas"}}}]}}`,
	`{"apiVersion":"apiextensions.k8s.io/v1","kind":"CustomResourceDefinition","metadata":{"name":"scaledobjects.keda.sh"},"spec":{"group":"keda.sh",` +
		`"names":{"plural":"scaledobjects","singular":"scaledobject","kind":"ScaledObject","listKind":"ScaledObjectList"},"scope":"Namespaced","versions":[{` +
		`"name":"v1alpha1","served":true,"storage":true,"schema":{"openAPIV3Schema":{"type":"object","x-kubernetes-preserve-unknown-fields":true}},` +
		`"subresources":{"status":{}}}]}}`,
}

const (
	rollouts      = "/apis/argoproj.io/v1alpha1/namespaces/guard/rollouts"
	cloneSets     = "/apis/apps.kruise.io/v1alpha1/namespaces/guard/clonesets"
	scaledObjects = "/apis/keda.sh/v1alpha1/namespaces/guard/scaledobjects"
	deployments   = "/apis/apps/v1/namespaces/guard/deployments"
	autoscalers   = "/apis/autoscaling/v2/namespaces/guard/horizontalpodautoscalers"
	slipwayLeases = "/apis/coordination.k8s.io/v1/namespaces/slipway/leases"
)

// allowSurges applies the rights of surges to the agents or the manager until the test ends.
func (f *fixture) allowSurges(part string) {
	f.t.Helper()
	for _, crd := range foreignTypes {
		f.createForSurge("/apis/apiextensions.k8s.io/v1/customresourcedefinitions", crd)
	}
	files := []string{part + "/surge/rbac.yaml", part + "/surge/admission.yaml"}
	if part == "agent" {
		files = append(files, "agent/surge/lease-policy.yaml")
	}
	f.check(f.ApplyManifests(f.ctx, files...))
	account := "slipway-" + part
	f.check(f.AwaitPermissions(f.ctx, testbed.AgentNamespace, account, account+"-surge"))
	f.t.Cleanup(func() {
		ctx := context.WithoutCancel(f.ctx)
		rbac := f.Client().RbacV1()
		f.check(rbac.ClusterRoleBindings().Delete(ctx, account+"-surge", metav1.DeleteOptions{}))
		f.check(rbac.RoleBindings(testbed.AgentNamespace).Delete(ctx, account+"-surge", metav1.DeleteOptions{}))
		f.check(f.ApplyManifests(ctx, part+"/admission.yaml"))
	})
}

// createForSurge creates an object, unless an earlier test has, and waits until the API server serves its type.
func (f *fixture) createForSurge(path, body string) {
	f.t.Helper()
	var err error
	created := testbed.PollUntil(f.ctx, "create "+path, func() bool {
		err = f.Client().Discovery().RESTClient().Post().AbsPath(path).Body([]byte(body)).Do(f.ctx).Error()
		return err == nil || apierrors.IsAlreadyExists(err)
	})
	if created != nil {
		f.t.Fatalf("%v: %v", created, err)
	}
}

// scale returns a request that sets a size.
func scale(path, name, manager string, replicas int) attempt {
	return send(request{method: http.MethodPut, path: path + "/" + name + "/scale", manager: manager, body: fmt.Sprintf(
		`{"apiVersion":"autoscaling/v1","kind":"Scale","metadata":{"namespace":"guard","name":%q},"spec":{"replicas":%d}}`, name, replicas)})
}

// patch returns a merge patch as a dry run, with the field manager of surges.
func patch(path, body string) attempt {
	return send(request{method: http.MethodPatch, path: path, manager: surger, body: body})
}

// scalable creates an object with the given size for each kind that surges scale, and returns their collections.
func (f *fixture) scalable(size int) (name string, collections []string) {
	f.t.Helper()
	name = fmt.Sprintf("size-%d", size)
	app := workload.App{Namespace: namespace, Name: name, NodeSelector: map[string]string{"example.com/nowhere": ""}}
	d := app.Deployment()
	d.Spec.Replicas = new(int32(size))
	set := &appsv1.ReplicaSet{ObjectMeta: d.ObjectMeta, Spec: appsv1.ReplicaSetSpec{Replicas: d.Spec.Replicas, Selector: d.Spec.Selector.DeepCopy(), Template: *d.Spec.Template.DeepCopy()}}
	set.Spec.Selector.MatchLabels["bare"], set.Spec.Template.Labels["bare"] = "true", "true"
	_, err := f.Client().AppsV1().Deployments(namespace).Create(f.ctx, d, metav1.CreateOptions{})
	f.checkCreated(err)
	_, err = f.Client().AppsV1().ReplicaSets(namespace).Create(f.ctx, set, metav1.CreateOptions{})
	f.checkCreated(err)
	rc := app.ReplicationController()
	rc.Spec.Replicas = d.Spec.Replicas
	_, err = f.Client().CoreV1().ReplicationControllers(namespace).Create(f.ctx, rc, metav1.CreateOptions{})
	f.checkCreated(err)
	f.createForSurge(rollouts, fmt.Sprintf(`{"apiVersion":"argoproj.io/v1alpha1","kind":"Rollout","metadata":{"name":%q},"spec":{"replicas":%d}}`, name, size))
	f.createForSurge(cloneSets, fmt.Sprintf(`{"apiVersion":"apps.kruise.io/v1alpha1","kind":"CloneSet","metadata":{"name":%q},"spec":{"replicas":%d}}`, name, size))
	return name, []string{
		deployments, "/apis/apps/v1/namespaces/guard/replicasets", "/api/v1/namespaces/guard/replicationcontrollers", rollouts, cloneSets,
	}
}

func (f *fixture) checkCreated(err error) {
	f.t.Helper()
	if !apierrors.IsAlreadyExists(err) {
		f.check(err)
	}
}

// TestSurgeTokenScalesByOneAndNeverToZero tries the agents' token and the manager's.
func TestSurgeTokenScalesByOneAndNeverToZero(t *testing.T) {
	f := newFixture(t)
	for part, client := range f.surgeTokens() {
		zero, _ := f.scalable(0)
		one, _ := f.scalable(1)
		three, collections := f.scalable(3)
		for _, collection := range collections {
			client.await(t, map[string]attempt{"by exactly one": scale(collection, three, surger, 5)})
			for _, c := range []struct {
				name, manager string
				replicas      int
				refused       string
			}{
				{three, surger, 4, ""},
				{three, surger, 2, ""},
				{three, surger, 3, "by exactly one"},
				{three, surger, 1, "by exactly one"},
				{three, surger, 0, "by exactly one"},
				{three, "kubectl", 4, "field manager slipway-surge alone"},
				{one, surger, 2, ""},
				{one, surger, 0, "lowers no size to 0"},
				{zero, surger, 1, "raises none from 0"},
			} {
				t.Run(fmt.Sprintf("%s: %s %s by %s to %d", part, collection, c.name, c.manager, c.replicas), func(t *testing.T) {
					client.expect(t, scale(collection, c.name, c.manager, c.replicas), c.refused)
				})
			}
			if err := patch(collection+"/"+three, `{"spec":{"replicas":4}}`)(f.ctx, client.client); !apierrors.IsForbidden(err) || strings.Contains(err.Error(), "ValidatingAdmissionPolicy") {
				t.Errorf("%s: patch of %s: %v, want RBAC to refuse it", part, collection, err)
			}
		}
	}
	unboundAgent := attempter{f, f.as(controlplane.TokenOptions{})}
	unboundAgent.expect(t, scale(deployments, "size-3", surger, 4), unbound)
}

// surgeTokens returns clients with the rights of surges.
func (f *fixture) surgeTokens() map[string]attempter {
	f.t.Helper()
	manager := f.part("manager")
	f.allowSurges("agent")
	f.allowSurges("manager")
	return map[string]attempter{"agent": {f, f.agent()}, "manager": {f, manager}}
}

// TestSurgeTokenLowersOnlyMinimumsItRaised uses an autoscaler with a minimum of 2 and a present size of 5, and a
// ScaledObject with a minimum of 2 and a maximum of 9.
func TestSurgeTokenLowersOnlyMinimumsItRaised(t *testing.T) {
	f := newFixture(t)
	hpa := &autoscalingv2.HorizontalPodAutoscaler{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "minimum", Labels: map[string]string{"example.com/team": "blue"}},
		Spec: autoscalingv2.HorizontalPodAutoscalerSpec{
			ScaleTargetRef: autoscalingv2.CrossVersionObjectReference{APIVersion: "apps/v1", Kind: "Deployment", Name: "missing"},
			MinReplicas:    new(int32(2)), MaxReplicas: 9,
		},
	}
	api := f.Client().AutoscalingV2().HorizontalPodAutoscalers(namespace)
	for part, client := range f.surgeTokens() {
		_ = api.Delete(f.ctx, hpa.Name, metav1.DeleteOptions{})
		made, err := api.Create(f.ctx, hpa.DeepCopy(), metav1.CreateOptions{FieldManager: "kubectl"})
		f.check(err)
		f.check(testbed.PollUntil(f.ctx, "the status is written", func() bool {
			made, err = api.Get(f.ctx, hpa.Name, metav1.GetOptions{})
			f.check(err)
			made.Status.CurrentReplicas, made.Status.DesiredReplicas = 5, 5
			_, err = api.UpdateStatus(f.ctx, made, metav1.UpdateOptions{})
			return err == nil
		}))
		_ = f.Client().Discovery().RESTClient().Delete().AbsPath(scaledObjects + "/minimum").Do(f.ctx).Error()
		f.createForSurge(scaledObjects, `{"apiVersion":"keda.sh/v1alpha1","kind":"ScaledObject","metadata":{"name":"minimum","labels":{"example.com/team":"blue"}},`+
			`"spec":{"minReplicaCount":2,"maxReplicaCount":9,"triggers":[{"type":"cpu"}]}}`)
		for _, c := range []struct {
			path, field, tooHigh, foreign string
			raised, above                 int
		}{
			{autoscalers + "/minimum", "minReplicas", "one above the present size at most", `{"spec":{"maxReplicas":90}}`, 6, 7},
			{scaledObjects + "/minimum", "minReplicaCount", "raises no minimum above the maximum", `{"spec":{"triggers":[]}}`, 6, 10},
		} {
			set := func(value any) string { return fmt.Sprintf(`{"spec":{%q:%v}}`, c.field, value) }
			client.await(t, map[string]attempt{c.tooHigh: patch(c.path, set(c.above))})
			t.Run(part+": "+c.field, func(t *testing.T) {
				const notRaised, nothingElse = "lowers no minimum that it has not raised itself", "changes nothing of a"
				client.expect(t, patch(c.path, set(1)), notRaised)
				client.expect(t, patch(c.path, set("null")), notRaised)
				client.expect(t, patch(c.path, c.foreign), nothingElse)
				client.expect(t, patch(c.path, `{"metadata":{"labels":{"example.com/team":"red"}}}`), nothingElse)
				client.expect(t, patch(c.path, `{"metadata":{"annotations":{"example.com/note":"x"}}}`), nothingElse)
				version := map[string]string{"minReplicas": "autoscaling/v2", "minReplicaCount": "keda.sh/v1alpha1"}[c.field]
				entry := func(field string) string { // send would make an apply patch of a body with a plain apiVersion
					return fmt.Sprintf(`{"metadata":{"managedFields":[{"manager":"slipway-surge","operation":"Update","\u0061piVersion":%q,"fieldsType":"FieldsV1","fieldsV1":{"f:spec":{%q:{}}}}]}}`, version, field)
				}
				client.expect(t, patch(c.path, entry("f:"+c.field)), "becomes the manager of")
				client.expect(t, patch(c.path, entry("f:other")), "becomes the manager of")
				client.expect(t, patch(c.path, `{"metadata":{"managedFields":[{}]}}`), "changes no entry of another client")
				client.expect(t, send(request{method: http.MethodPatch, path: c.path, manager: "kubectl", body: set(c.raised)}), "field manager slipway-surge alone")
				client.expect(t, send(request{method: http.MethodPatch, path: c.path, manager: surger, body: set(c.raised), persist: true}), "")
				client.expect(t, patch(c.path, set(2)), "")
				client.expect(t, patch(c.path, set("null")), "")
				f.check(send(request{method: http.MethodPatch, path: c.path, manager: "kubectl", body: set(4), persist: true})(f.ctx, f.Client()))
				client.expect(t, patch(c.path, set(2)), notRaised)
			})
		}
	}
}

func TestSurgeTokenSetsOnlyThePodDeletionCost(t *testing.T) {
	f := newFixture(t)
	here, there := f.pod(own, "cost-here", withLabels(map[string]string{"example.com/team": "blue"})), f.pod(other, "cost-there", nil)
	marked := f.pod(other, "cost-marked", func(p *corev1.Pod) {
		p.Annotations = map[string]string{"controller.kubernetes.io/pod-deletion-cost": "-2147483648"}
	})
	path := func(name string) string { return "/api/v1/namespaces/guard/pods/" + name }
	const (
		lowest  = `{"metadata":{"annotations":{"controller.kubernetes.io/pod-deletion-cost":"-2147483648"}}}`
		removed = `{"metadata":{"annotations":{"controller.kubernetes.io/pod-deletion-cost":null}}}`
	)
	for part, client := range f.surgeTokens() {
		client.await(t, map[string]attempt{"no annotation of a pod but": patch(path(here.Name), `{"metadata":{"annotations":{"example.com/note":"x"}}}`)})
		elsewhere := ""
		if part == "agent" {
			elsewhere = "sets no deletion cost of pods elsewhere"
		}
		for body, words := range map[string]string{
			lowest:  "",
			removed: "",
			`{"metadata":{"labels":{"example.com/team":"red"}}}`: "nothing of a pod's metadata",
			`{"metadata":{"labels":null}}`:                       "nothing of a pod's metadata",
			`{"metadata":{"finalizers":["example.com/x"]}}`:      "nothing of a pod's metadata",
			`{"metadata":{"ownerReferences":null}}`:              "",
			fmt.Sprintf(`{"spec":{"containers":[{"name":%q,"image":"registry.example.com/evil"}]}}`, here.Spec.Containers[0].Name): "nothing of a pod's spec",
			`{"spec":{"activeDeadlineSeconds":1}}`: "nothing of a pod's spec",
		} {
			t.Run(part+": "+body, func(t *testing.T) {
				client.expect(t, send(request{method: http.MethodPatch, path: path(here.Name), manager: surger, body: body, strategic: true}), words)
			})
		}
		client.expect(t, patch(path(there.Name), lowest), elsewhere)
		client.expect(t, patch(path(marked.Name), removed), "")
		client.expect(t, patch(path(marked.Name), `{"metadata":{"annotations":{"controller.kubernetes.io/pod-deletion-cost":"5"}}}`), "")
		client.expect(t, patch(path(marked.Name), `{"metadata":{"labels":{"example.com/team":"red"},"annotations":{"controller.kubernetes.io/pod-deletion-cost":null}}}`), "nothing of a pod's metadata")
	}
}

// lease returns a Lease as JSON.
func lease(name, holder, label string, seconds int) string {
	return fmt.Sprintf(`{"apiVersion":"coordination.k8s.io/v1","kind":"Lease","metadata":{"namespace":"slipway","name":%q,"labels":{"slipway.dev/surge":%q}},`+
		`"spec":{"holderIdentity":%q,"leaseDurationSeconds":%d}}`, name, label, holder, seconds)
}

// TestSurgeTokenWritesOnlyItsOwnRecords tries the records of surges. A forged record would make another process change a size.
func TestSurgeTokenWritesOnlyItsOwnRecords(t *testing.T) {
	f := newFixture(t)
	const mine, theirs, fresh = "slipway-surge-00000000-0000-4000-8000-00000000000a", "slipway-surge-00000000-0000-4000-8000-00000000000b", "slipway-surge-00000000-0000-4000-8000-00000000000c"
	create := func(body string) attempt {
		return send(request{method: http.MethodPost, path: slipwayLeases, body: body})
	}
	update := func(name, body string) attempt {
		return func(ctx context.Context, c kubernetes.Interface) error {
			is, err := f.Client().CoordinationV1().Leases(testbed.AgentNamespace).Get(ctx, name, metav1.GetOptions{})
			f.check(err)
			body := strings.Replace(body, `"metadata":{`, `"metadata":{"resourceVersion":"`+is.ResourceVersion+`",`, 1)
			return send(request{method: http.MethodPut, path: slipwayLeases + "/" + name, body: body})(ctx, c)
		}
	}
	remove := func(name string) attempt {
		return send(request{method: http.MethodDelete, path: slipwayLeases + "/" + name})
	}
	agent := attempter{f, f.agent()}
	agent.await(t, map[string]attempt{ // without the rights of surges
		"writes no Leases but those of drain slots": create(lease(fresh, f.node(own)+"/1", "true", 20)),
	})
	for part, client := range f.surgeTokens() {
		holder, stranger := f.node(own)+"/1", f.node(other)+"/1"
		if part == "manager" {
			holder = "manager/1"
		}
		for _, l := range []string{lease(mine, holder, "true", 20), lease(theirs, stranger, "true", 20), lease("slipway-manager", "x", "", 20), lease("slipway-drain-0", "", "", 20)} {
			f.createForSurge(slipwayLeases, l)
		}
		t.Cleanup(func() {
			for _, name := range []string{mine, theirs, "slipway-manager", "slipway-drain-0"} {
				_ = f.Client().CoordinationV1().Leases(testbed.AgentNamespace).Delete(context.WithoutCancel(f.ctx), name, metav1.DeleteOptions{})
			}
		})
		const records, held = "no Leases but records of surges", "only records of surges that it holds"
		client.await(t, map[string]attempt{"60 s at most": create(lease(fresh, holder, "true", 61))})
		var err error
		if testbed.PollUntil(f.ctx, "the policy of drain slots excludes records", func() bool {
			err = create(lease(fresh, holder, "true", 20))(f.ctx, client.client)
			return err == nil
		}) != nil {
			t.Fatal(err)
		}
		for name, c := range map[string]struct {
			attempt
			refused string
		}{
			"create its own":           {create(lease(fresh, holder, "true", 20)), ""},
			"create another's":         {create(lease(fresh, stranger, "true", 20)), held},
			"create without a holder":  {create(lease(fresh, "", "true", 20)), held},
			"holder with a prefix":     {create(lease(fresh, holder[:len(holder)-2]+"x/1", "true", 20)), held},
			"create without label":     {create(lease(fresh, holder, "false", 20)), "has the label slipway.dev/surge"},
			"create for ever":          {create(lease(fresh, holder, "true", 2147483647)), "60 s at most"},
			"create without UID":       {create(lease("slipway-surge-web", holder, "true", 20)), records},
			"renew its own":            {update(mine, lease(mine, holder, "true", 20)), ""},
			"take over another's":      {update(theirs, lease(theirs, holder, "true", 20)), ""},
			"change another's":         {update(theirs, lease(theirs, stranger, "true", 20)), held},
			"give away its own":        {update(mine, lease(mine, stranger, "true", 20)), held},
			"delete its own":           {remove(mine), ""},
			"delete another's":         {remove(theirs), held},
			"delete the manager's":     {remove("slipway-manager"), records},
			"delete a drain slot":      {remove("slipway-drain-0"), records},
			"update of a foreign name": {update("slipway-drain-0", lease("slipway-drain-0", "stolen-token", "", 20)), map[string]string{"agent": "holds a drain slot for its own node alone", "manager": records}[part]},
		} {
			t.Run(part+": "+name, func(t *testing.T) { client.expect(t, c.attempt, c.refused) })
		}
		f.check(f.Client().CoordinationV1().Leases(testbed.AgentNamespace).Delete(f.ctx, mine, metav1.DeleteOptions{}))
	}
	names := []string{}
	leases, err := f.Client().CoordinationV1().Leases(testbed.AgentNamespace).List(f.ctx, metav1.ListOptions{LabelSelector: "slipway.dev/surge=true"})
	f.check(err)
	for _, l := range leases.Items {
		names = append(names, l.Name)
	}
	if !slices.Equal(names, []string{theirs}) {
		t.Errorf("records %v, want only %s: every attempt is a dry run", names, theirs)
	}
}
