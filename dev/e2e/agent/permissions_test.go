package agent_test

import (
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/slipway-dev/slipway/dev/azure"
	"github.com/slipway-dev/slipway/dev/controlplane"
	"github.com/slipway-dev/slipway/dev/testbed"
)

// account creates a ServiceAccount with the agent's rights, except some. It returns a kubeconfig for the account.
func (f *fixture) account(without func(rbacv1.PolicyRule) bool) string {
	f.t.Helper()
	rules := slices.DeleteFunc(f.shippedRules(), without)
	client := f.Client()
	_, err := client.CoreV1().ServiceAccounts(f.ns).Create(f.ctx, &corev1.ServiceAccount{
		ObjectMeta: metav1.ObjectMeta{Name: "limited"},
	}, metav1.CreateOptions{})
	f.check(err)
	_, err = client.RbacV1().ClusterRoles().Create(f.ctx, &rbacv1.ClusterRole{
		ObjectMeta: metav1.ObjectMeta{Name: f.ns}, Rules: rules,
	}, metav1.CreateOptions{})
	f.check(err)
	_, err = client.RbacV1().ClusterRoleBindings().Create(f.ctx, &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: f.ns},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: f.ns},
		Subjects:   []rbacv1.Subject{{Kind: "ServiceAccount", Namespace: f.ns, Name: "limited"}},
	}, metav1.CreateOptions{})
	f.check(err)
	f.check(f.AwaitPermissions(f.ctx, f.ns, "limited", f.ns))
	path, err := f.ServiceAccountKubeconfig(f.ctx, f.ns, "limited", controlplane.TokenOptions{})
	f.check(err)
	return path
}

// shippedRules returns the applied ClusterRole rules of deploy/agent/rbac.yaml.
func (f *fixture) shippedRules() []rbacv1.PolicyRule {
	f.t.Helper()
	role, err := f.Client().RbacV1().ClusterRoles().Get(f.ctx, testbed.AgentAccount, metav1.GetOptions{})
	f.check(err)
	return role.Rules
}

// namespaceRules returns the rules for the agents' own namespace.
func (f *fixture) namespaceRules() []rbacv1.PolicyRule {
	f.t.Helper()
	role, err := f.Client().RbacV1().Roles(testbed.AgentNamespace).Get(f.ctx, testbed.AgentAccount, metav1.GetOptions{})
	f.check(err)
	return role.Rules
}

func grants(verb, resource string) func(rbacv1.PolicyRule) bool {
	return func(r rbacv1.PolicyRule) bool {
		return slices.Contains(r.Verbs, verb) && slices.Contains(r.Resources, resource)
	}
}

// TestI3DrainNeedsNeitherConditionsNorEvents checks that nothing waits for what only informs.
func TestI3DrainNeedsNeitherConditionsNorEvents(t *testing.T) {
	t.Parallel()
	f := newFixture(t, "no-status", 1)
	f.run(f.app("web", 2).Deployment())
	was := f.marksOf(0)
	status, events := grants("patch", "nodes/status"), grants("create", "events")
	a := f.agent(0, shortPolls, "--kubeconfig", f.account(func(r rbacv1.PolicyRule) bool { return status(r) || events(r) }))
	e := f.announce(azure.Announcement{Type: azure.Freeze, DurationSeconds: new(60), Notice: 5 * time.Minute, Outage: time.Second})
	const failed = "cannot write the node's conditions"
	f.awaitLog(a, failed, "forbidden", "nodes/status")
	f.checkApproved(f.awaitEnd(e.EventID))
	f.awaitRestored(0, was)
	f.awaitMetric(a, "slipway_agent_failed_conditions_total", atLeast(2))
	f.awaitMetric(a, "slipway_agent_failed_kubernetes_events_total", atLeast(5))
	f.awaitMetric(a, "slipway_agent_failed_steps_total", func(n float64) bool { return n == 0 })
	logged := 0
	for _, l := range a.ReadLog() {
		if msg, _ := l["msg"].(string); strings.HasPrefix(msg, failed) {
			logged++
		}
	}
	if logged != 1 {
		t.Errorf("the failed conditions were logged %d times, want once", logged)
	}
}

// usedRights returns what the agents have requested from the API server so far, as verb and resource.
func (f *fixture) usedRights() map[string]bool {
	f.t.Helper()
	events, err := f.ReadAuditLog(controlplane.AuditFilter{User: agentUser})
	f.check(err)
	used := map[string]bool{}
	for _, e := range events {
		if e.ResponseStatus != nil && e.ResponseStatus.Code == http.StatusForbidden {
			f.t.Errorf("forbidden: %s %s", e.Verb, e.RequestURI)
		}
		if e.ObjectRef == nil {
			f.t.Errorf("not about an object: %s %s", e.Verb, e.RequestURI)
			continue
		}
		everywhere := e.ObjectRef.Resource == "pods" && e.ObjectRef.Name == "" && !strings.Contains(e.RequestURI, "spec.nodeName")
		if everywhere {
			f.t.Errorf("a request for the pods of all nodes: %s", e.RequestURI)
		}
		used[e.Verb+" "+strings.TrimSuffix(e.ObjectRef.Resource+"/"+e.ObjectRef.Subresource, "/")] = true
	}
	return used
}

// TestAgentUsesExactlyItsPermissions makes one agent use all of its rights. It compares the audit log
// with deploy/agent/rbac.yaml.
func TestAgentUsesExactlyItsPermissions(t *testing.T) {
	t.Parallel()
	f := newFixture(t, "rights", 2)
	const grace = 2 * time.Minute // for a busy host: the agent deletes the pod when this much is left, and the pod stops in a second
	f.runBlockedPod(grace)
	f.withVolume("data")
	slots := []string{shortPolls, "--max-concurrent-drains=2", "--namespace=" + testbed.AgentNamespace}
	f.agent(0, append(slots, "--wait-for-detach")...)
	f.agent(1, slots...)
	e := f.announce(azure.Announcement{Type: azure.Redeploy, Resources: f.resources(0, 1), Notice: grace + 14*time.Second})
	f.checkApproved(f.awaitEnd(e.EventID))
	f.awaitEvent(0, "Uncordoned")

	granted := map[string]bool{}
	for _, rule := range append(f.shippedRules(), f.namespaceRules()...) {
		for _, verb := range rule.Verbs {
			for _, resource := range rule.Resources {
				granted[verb+" "+resource] = true
			}
		}
	}
	used := f.usedRights()
	for right := range used {
		if !granted[right] {
			t.Errorf("used and not granted: %s", right)
		}
	}
	for right := range granted {
		// Without the feature gate GenericWorkload, the API server drops spec.schedulingGroup of pods.
		onlyWithGate := right == "get podgroups" || strings.HasSuffix(right, " evictionrequests") || strings.HasSuffix(right, " evictions") // see dev/e2e/drain
		if !used[right] && !onlyWithGate {
			t.Errorf("granted and never used: %s", right)
		}
	}
	f.checkNoOtherRights(granted)
}

// checkNoOtherRights asks the API server for all rights of the agent's account.
func (f *fixture) checkNoOtherRights(granted map[string]bool) {
	f.t.Helper()
	path, err := f.ServiceAccountKubeconfig(f.ctx, testbed.AgentNamespace, testbed.AgentAccount, controlplane.TokenOptions{})
	f.check(err)
	client, err := testbed.NewClient(path)
	f.check(err)
	review, err := client.AuthorizationV1().SelfSubjectRulesReviews().Create(f.ctx,
		&authorizationv1.SelfSubjectRulesReview{Spec: authorizationv1.SelfSubjectRulesReviewSpec{Namespace: f.ns}},
		metav1.CreateOptions{})
	f.check(err)
	for _, rule := range review.Status.ResourceRules {
		for _, verb := range rule.Verbs {
			for _, resource := range rule.Resources {
				// Kubernetes 1.37 lets every ServiceAccount read ClusterTrustBundles.
				everybody := strings.HasPrefix(resource, "selfsubject") || resource == "clustertrustbundles"
				if !granted[verb+" "+resource] && !everybody {
					f.t.Errorf("the account may also %s %s", verb, resource)
				}
			}
		}
	}
}

// withVolume runs a pod with its own PersistentVolume.
func (f *fixture) withVolume(name string) {
	f.t.Helper()
	size := corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")}
	once := []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}
	volume := f.ns + "-" + name
	_, err := f.Client().CoreV1().PersistentVolumes().Create(f.ctx, &corev1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: volume},
		Spec: corev1.PersistentVolumeSpec{
			Capacity: size, AccessModes: once,
			ClaimRef: &corev1.ObjectReference{Namespace: f.ns, Name: name},
			PersistentVolumeSource: corev1.PersistentVolumeSource{
				HostPath: &corev1.HostPathVolumeSource{Path: "/data"},
			},
		},
	}, metav1.CreateOptions{})
	f.check(err)
	_, err = f.Client().CoreV1().PersistentVolumeClaims(f.ns).Create(f.ctx, &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: corev1.PersistentVolumeClaimSpec{
			AccessModes: once, VolumeName: volume, StorageClassName: new(""),
			Resources: corev1.VolumeResourceRequirements{Requests: size},
		},
	}, metav1.CreateOptions{})
	f.check(err)
	set := f.app(name, 1).StatefulSet()
	set.Spec.Template.Spec.Volumes = append(set.Spec.Template.Spec.Volumes, corev1.Volume{
		Name: name, VolumeSource: corev1.VolumeSource{
			PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: name},
		},
	})
	f.run(set)
}
