package guard_test

import (
	"context"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	"github.com/slipway-dev/slipway/dev/controlplane"
	"github.com/slipway-dev/slipway/dev/testbed"
)

// parts lists the manifests of the other parts, with all of their possible rights.
var parts = map[string][]string{
	"manager":   append([]string{"manager/bootstrap.yaml"}, testbed.ManagerManifests...),
	"cloudpool": {"cloudpool/rbac.yaml", "cloudpool/admission.yaml", "cloudpool/native.yaml", "cloudpool/bootstrap.yaml", "cloudpool/authorize.yaml"},
}

// installed lists the installed parts. The tests of the package are not parallel.
var installed []string

// part returns a client with the token of a part's account. It first waits for the account's rights and their limits.
func (f *fixture) part(name string) kubernetes.Interface {
	f.t.Helper()
	if !slices.Contains(installed, name) {
		f.check(f.InstallCRDs(f.ctx))
		f.check(f.ApplyManifests(f.ctx, parts[name]...))
		installed = append(installed, name)
	}
	account := "slipway-" + name
	client := f.clientOf(testbed.ManagerNamespace, account, controlplane.TokenOptions{})
	f.check(f.AwaitPermissions(f.ctx, testbed.ManagerNamespace, account, account))
	return client
}

// request is one request with a stolen token.
type request struct {
	method, path string
	body         string
	impersonates string
	manager      string // of the changed fields; empty is the API server's default
	strategic    bool   // the body is a strategic merge patch
	persist      bool   // not a dry run
}

// send makes a request, as a dry run unless the request says otherwise.
func send(r request) attempt {
	return func(ctx context.Context, c kubernetes.Interface) error {
		q := c.Discovery().RESTClient().Verb(r.method).AbsPath(r.path)
		if !r.persist {
			q = q.Param("dryRun", metav1.DryRunAll)
		}
		if r.manager != "" {
			q = q.Param("fieldManager", r.manager)
		}
		switch {
		case r.method == http.MethodPatch && strings.Contains(r.body, "apiVersion"):
			q = q.SetHeader("Content-Type", "application/apply-patch+yaml").Param("fieldManager", "stolen-token").Param("force", "true")
		case r.method == http.MethodPatch && r.strategic:
			q = q.SetHeader("Content-Type", "application/strategic-merge-patch+json")
		case r.method == http.MethodPatch:
			q = q.SetHeader("Content-Type", "application/merge-patch+json")
		case r.body != "":
			q = q.SetHeader("Content-Type", "application/json")
		}
		if r.impersonates != "" {
			q = q.SetHeader("Impersonate-User", r.impersonates)
		}
		if r.body != "" {
			q = q.Body([]byte(r.body))
		}
		return q.Do(ctx).Error()
	}
}

// policyDelay is the maximum time for the API server to read a new policy.
const policyDelay = time.Minute

// await waits until the policies of a part are in force. For each policy, an attempt must fail with its words.
func (a attempter) await(t *testing.T, attempts map[string]attempt) {
	t.Helper()
	ctx, cancel := context.WithTimeout(a.f.ctx, policyDelay)
	defer cancel()
	for words, try := range attempts {
		var err error
		if testbed.PollUntil(ctx, "a policy is in force", func() bool { err = try(a.f.ctx, a.client); return refused(err, words) }) != nil {
			t.Fatalf("%v, want a refusal with %q", err, words)
		}
	}
}

func TestManagerTokenChangesOnlySlipwayKeysOnNodes(t *testing.T) {
	f := newFixture(t)
	manager := attempter{f, f.part("manager")}
	node := f.node(own)
	manager.await(t, map[string]attempt{
		"changes no labels": patchNode(node, `{"metadata":{"labels":{"example.com/team":"red"}}}`),
	})
	was := f.marks()
	changes := map[string]change{
		"cordon with a claim":   {patch: cordoning},
		"uncordon":              {patch: `{"spec":{"unschedulable":null}}`},
		"annotation of a group": {patch: `{"metadata":{"annotations":{"nodegroup.slipway.dev/idle-since":"2026-01-01T00:00:00Z"}}}`},
		"annotation of cluster-autoscaler": {
			patch: `{"metadata":{"annotations":{"cluster-autoscaler.kubernetes.io/scale-down-disabled":"true"}}}`,
		},
		"out-of-service taint": {
			patch: f.withTaint(corev1.Taint{Key: "node.kubernetes.io/out-of-service", Value: "nodeshutdown", Effect: "NoExecute"}),
		},
		"lifecycle condition": {subresources: status, patch: drainCondition},
		"port of the kubelet": {
			subresources: status, patch: `{"status":{"daemonEndpoints":{"kubeletEndpoint":{"Port":6666}}}}`, refused: "status but conditions",
		},
	}
	maps.Copy(changes, f.foreignChanges())
	for name, c := range changes {
		t.Run(name, func(t *testing.T) { manager.expect(t, patchNode(node, c.patch, c.subresources...), c.refused) })
	}
	for n, mark := range f.marks() {
		if was[n] != mark {
			t.Errorf("node %s changed from %s to %s", n, was[n], mark)
		}
	}
}

// crd returns a request that creates a CustomResourceDefinition.
func crd(plural, group, conversion string) request {
	return request{method: http.MethodPost, path: "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", body: fmt.Sprintf(
		`{"apiVersion":"apiextensions.k8s.io/v1","kind":"CustomResourceDefinition","metadata":{"name":"%s.%s"},"spec":{"group":%q,`+
			`"names":{"plural":%q,"singular":%q,"kind":"Stolen","listKind":"StolenList"},"scope":"Cluster"%s,"versions":[{"name":"v1",`+
			`"served":true,"storage":true,"schema":{"openAPIV3Schema":{"type":"object"}}}]}}`,
		plural, group, group, plural, strings.TrimSuffix(plural, "s"), conversion)}
}

// TestManagerTokenInstallsOnlySlipwayTypes protects against conversion webhooks. A type may name a webhook. The
// API server then sends all objects of the type there, and uses the answers.
func TestManagerTokenInstallsOnlySlipwayTypes(t *testing.T) {
	f := newFixture(t)
	manager := attempter{f, f.part("manager")}
	foreign := crd("secrets", "example.com", "")
	const types, webhook = "installs no types but", "installs no type with a conversion webhook"
	manager.await(t, map[string]attempt{types: send(foreign)})
	manager.expect(t, send(crd("nodes", "slipway.dev", "")), types)
	change := request{
		method: http.MethodPatch, path: "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/nodegroups.slipway.dev",
		body: `{"spec":{"conversion":{"strategy":"Webhook","webhook":{"conversionReviewVersions":["v1"],"clientConfig":{"url":"https://webhook.example.com/"}}}}}`,
	}
	manager.expect(t, send(change), webhook)
	change.body = `{"metadata":{"annotations":{"slipway.dev/schema-generation":"1"}}}`
	manager.expect(t, send(change), "")
}

// writeConfigMaps allows a part's account to create and update every ConfigMap of its namespace.
func (f *fixture) writeConfigMaps(account string) {
	f.t.Helper()
	const name = "guard-configmaps"
	rules := []rbacv1.PolicyRule{{APIGroups: []string{""}, Resources: []string{"configmaps"}, Verbs: []string{"create", "update"}}}
	role := &rbacv1.Role{ObjectMeta: metav1.ObjectMeta{Namespace: testbed.ManagerNamespace, Name: name}, Rules: rules}
	binding := &rbacv1.RoleBinding{
		ObjectMeta: role.ObjectMeta,
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: name},
		Subjects:   []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: testbed.ManagerNamespace, Name: account}},
	}
	rbac := f.Client().RbacV1()
	_, err := rbac.Roles(testbed.ManagerNamespace).Create(f.ctx, role, metav1.CreateOptions{})
	f.check(err)
	_, err = rbac.RoleBindings(testbed.ManagerNamespace).Create(f.ctx, binding, metav1.CreateOptions{})
	f.check(err)
	f.t.Cleanup(func() {
		ctx := context.WithoutCancel(f.ctx)
		_ = rbac.RoleBindings(testbed.ManagerNamespace).Delete(ctx, name, metav1.DeleteOptions{})
		_ = rbac.Roles(testbed.ManagerNamespace).Delete(ctx, name, metav1.DeleteOptions{})
	})
}

// TestManagerTokenWritesOnlyLaunchRecords protects other ConfigMaps of the namespace. Another component
// may read its configuration from one.
func TestManagerTokenWritesOnlyLaunchRecords(t *testing.T) {
	f := newFixture(t)
	manager := attempter{f, f.part("manager")}
	f.writeConfigMaps("slipway-manager")
	const record, words = "slipway-launches-spot", "writes no ConfigMaps but launch records"
	configMap := func(name, key string) *corev1.ConfigMap {
		return &corev1.ConfigMap{
			ObjectMeta: metav1.ObjectMeta{Namespace: testbed.ManagerNamespace, Name: name}, Data: map[string]string{key: "{}"},
		}
	}
	create := func(m *corev1.ConfigMap) attempt {
		return func(ctx context.Context, c kubernetes.Interface) error {
			_, err := c.CoreV1().ConfigMaps(m.Namespace).Create(ctx, m, metav1.CreateOptions{DryRun: try})
			return err
		}
	}
	update := func(m *corev1.ConfigMap) attempt {
		return func(ctx context.Context, c kubernetes.Interface) error {
			_, err := c.CoreV1().ConfigMaps(m.Namespace).Update(ctx, m, metav1.UpdateOptions{DryRun: try})
			return err
		}
	}
	clouds := configMap("slipway-manager", "clouds.yaml")
	manager.await(t, map[string]attempt{words: create(clouds)})
	manager.expect(t, create(configMap(record, "provisioning")), "")
	manager.expect(t, create(configMap("x-"+record, "provisioning")), words)
	manager.expect(t, create(configMap(record, "dashboard.json")), words)
	binary := configMap(record, "provisioning")
	binary.BinaryData = map[string][]byte{"dashboard.json": []byte("{}")}
	manager.expect(t, create(binary), words)
	for _, m := range []*corev1.ConfigMap{clouds, configMap(record, "provisioning")} {
		objects := f.Client().CoreV1().ConfigMaps(m.Namespace)
		_, err := objects.Create(f.ctx, m, metav1.CreateOptions{})
		f.check(err)
		f.t.Cleanup(func() { _ = objects.Delete(context.WithoutCancel(f.ctx), m.Name, metav1.DeleteOptions{}) })
	}
	manager.expect(t, update(clouds), words)
	manager.expect(t, update(configMap(record, "provisioning")), "")
	manager.expect(t, update(configMap(record, "dashboard.json")), words)
}

// retirementOf returns a request that creates a NodeRetirement, with additional metadata.
func retirementOf(metadata, spec string) request {
	return request{method: http.MethodPost, path: "/apis/slipway.dev/v1alpha1/noderetirements", body: fmt.Sprintf(
		`{"apiVersion":"slipway.dev/v1alpha1","kind":"NodeRetirement","metadata":{"name":"r"%s},"spec":{%s}}`, metadata, spec)}
}

// TestCloudpoolTokenCreatesOnlyItsOwnRetirements checks finalizers, owners and fields. A permanent NodeRetirement would
// count in its group's disruption budget forever.
func TestCloudpoolTokenCreatesOnlyItsOwnRetirements(t *testing.T) {
	f := newFixture(t)
	cloudpool := attempter{f, f.part("cloudpool")}
	const words = "neither metadata.finalizers nor metadata.ownerReferences"
	const good = `"nodeName":"n","nodeUID":"u","reason":"Surplus","providerID":"azure:///x","group":"g"`
	withFinalizer := send(retirementOf(`,"finalizers":["example.com/forever"]`, good))
	cloudpool.await(t, map[string]attempt{words: withFinalizer})
	cloudpool.expect(t, send(retirementOf("", good)), "")
	cloudpool.expect(t, send(retirementOf(`,"ownerReferences":[{"apiVersion":"v1","kind":"Node","name":"n","uid":"u"}]`, good)), words)
	for spec, words := range map[string]string{
		`"nodeName":"n","reason":"Surplus"`:                                                  "spec.nodeUID",
		`"nodeName":"n","nodeUID":"u","reason":"InstanceGone"`:                               "spec.reason",
		`"nodeName":"n","nodeUID":"u","reason":"Idle"`:                                       "spec.reason",
		good + `,"overrideProtection":{"by":"me","why":"so","until":"2030-01-01T00:00:00Z"}`: "overrideProtection",
		good + `,"notice":{"source":"azure","id":"1","type":"Preempt"}`:                      "notice",
		good + `,"ttlAfterFinished":"0s"`:                                                    "ttlAfterFinished",
	} {
		cloudpool.expect(t, send(retirementOf("", spec)), words)
	}
}

// nodeGroup creates a NodeGroup with the status of an earlier manager version.
func (f *fixture) nodeGroup(name string) request {
	f.t.Helper()
	const path = "/apis/slipway.dev/v1alpha1/nodegroups"
	body := fmt.Sprintf(`{"apiVersion":"slipway.dev/v1alpha1","kind":"NodeGroup","metadata":{"name":%q,"labels":{"example.com/team":"blue"}},`+
		`"spec":{"nodeSelector":{"matchLabels":{"example.com/pool":"launches"}},"cloud":{"provider":"rack","group":%q}}}`, name, name)
	rest := f.Client().Discovery().RESTClient()
	f.check(rest.Post().AbsPath(path).SetHeader("Content-Type", "application/json").Body([]byte(body)).Do(f.ctx).Error())
	f.t.Cleanup(func() { _ = rest.Delete().AbsPath(path, name).Do(context.WithoutCancel(f.ctx)).Error() })
	status := request{method: http.MethodPatch, path: path + "/" + name + "/status"}
	body = `{"status":{"nodes":2,"ready":2,"retiring":0,"unavailable":0,"allowedDisruptions":0}}`
	f.check(rest.Patch(types.MergePatchType).AbsPath(status.path).Body([]byte(body)).Do(f.ctx).Error())
	return status
}

// TestCloudpoolTokenChangesOnlyTheLaunchRecord protects a NodeGroup's status. A wrong size or condition would
// mislead every reader.
func TestCloudpoolTokenChangesOnlyTheLaunchRecord(t *testing.T) {
	f := newFixture(t)
	cloudpool := attempter{f, f.part("cloudpool")}
	group := f.nodeGroup("launches")
	patch := func(body string) attempt {
		group.body = body
		return send(group)
	}
	const words = "changes nothing of NodeGroups but status.provisioning"
	const launch = `"provisioning":{"provisioning":1,"launches":[{"id":"1","state":"Requested","count":1,"requestedAt":"2026-01-01T00:00:00Z"}]}`
	cloudpool.await(t, map[string]attempt{words: patch(`{"status":{"nodes":9}}`)})
	for body, words := range map[string]string{
		`{"status":{` + launch + `}}`:                       "",
		`{"status":{"lastScaleUp":"2026-01-01T00:00:00Z"}}`: words,
		`{"status":{"nodes":3,` + launch + `}}`:             words,
		`{"status":{"cloudSize":9}}`:                        words,
		`{"status":{"observedGeneration":9}}`:               words,
		`{"status":{"conditions":[{"type":"Ready","status":"True","reason":"R","message":"m","lastTransitionTime":"2026-01-01T00:00:00Z"}]}}`: words,
	} {
		cloudpool.expect(t, patch(body), words)
	}
}

func TestCloudpoolTokenWritesOnlyShortPoolLeases(t *testing.T) {
	f := newFixture(t)
	cloudpool := attempter{f, f.part("cloudpool")}
	const pool, words = "slipway-cloudpool-builders-0", "for 120 s at most"
	cloudpool.await(t, map[string]attempt{words: createLease(pool)})
	cloudpool.expect(t, createLeaseOf(pool, "cloudpool-0", 30), "")
	cloudpool.expect(t, createLease("slipway-manager"), "writes no Leases and ConfigMaps but those of pools")
}

// forbiddenRequests lists requests that RBAC refuses to every part, except to the parts in allowed.
var forbiddenRequests = map[string]struct {
	request
	allowed []string
}{
	"be an administrator":             {request{method: "GET", path: "/api/v1/nodes/n", impersonates: "system:admin"}, nil},
	"a certificate":                   {request{method: "POST", path: "/apis/certificates.k8s.io/v1/certificatesigningrequests", body: "{}"}, nil},
	"approve a certificate":           {request{method: "PUT", path: "/apis/certificates.k8s.io/v1/certificatesigningrequests/c/approval", body: "{}"}, nil},
	"another account's token":         {request{method: "POST", path: "/api/v1/namespaces/kube-system/serviceaccounts/default/token", body: "{}"}, nil},
	"bind cluster-admin":              {request{method: "POST", path: "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings", body: "{}"}, nil},
	"a role":                          {request{method: "POST", path: "/apis/rbac.authorization.k8s.io/v1/namespaces/slipway/roles", body: "{}"}, nil},
	"remove the policies":             {request{method: "DELETE", path: "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicybindings/slipway-agent-node"}, nil},
	"a webhook":                       {request{method: "POST", path: "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations", body: "{}"}, nil},
	"run a pod":                       {request{method: "POST", path: "/api/v1/namespaces/kube-system/pods", body: "{}"}, nil},
	"run a Deployment":                {request{method: "POST", path: "/apis/apps/v1/namespaces/kube-system/deployments", body: "{}"}, nil},
	"a shell in a pod":                {request{method: "POST", path: "/api/v1/namespaces/guard/pods/p/exec"}, nil},
	"a container in a pod":            {request{method: "PATCH", path: "/api/v1/namespaces/guard/pods/p/ephemeralcontainers", body: "{}"}, nil},
	"bind a pod":                      {request{method: "POST", path: "/api/v1/namespaces/guard/pods/p/binding", body: "{}"}, nil},
	"a kubelet's API":                 {request{method: "GET", path: "/api/v1/nodes/n/proxy/pods"}, nil},
	"a new Node":                      {request{method: "POST", path: "/api/v1/nodes", body: "{}"}, nil},
	"a new Node by apply":             {request{method: "PATCH", path: "/api/v1/nodes/new", body: `{"apiVersion":"v1","kind":"Node","metadata":{"name":"new"}}`}, nil},
	"replace a Node":                  {request{method: "PUT", path: "/api/v1/nodes/n", body: "{}"}, nil},
	"delete a Node":                   {request{method: "DELETE", path: "/api/v1/nodes/n"}, []string{"manager"}},
	"delete every Node":               {request{method: "DELETE", path: "/api/v1/nodes"}, nil},
	"delete every pod":                {request{method: "DELETE", path: "/api/v1/namespaces/guard/pods"}, nil},
	"delete a pod":                    {request{method: "DELETE", path: "/api/v1/namespaces/guard/pods/p"}, []string{"agent"}},
	"a pod's status":                  {request{method: "PATCH", path: "/api/v1/namespaces/guard/pods/p/status", body: "{}"}, []string{"agent"}},
	"a pod's labels":                  {request{method: "PATCH", path: "/api/v1/namespaces/guard/pods/p", body: "{}"}, nil},
	"an eviction":                     {request{method: "POST", path: "/api/v1/namespaces/guard/pods/p/eviction", body: "{}"}, []string{"agent", "manager"}},
	"a Node's status":                 {request{method: "PATCH", path: "/api/v1/nodes/n/status", body: "{}"}, []string{"agent", "manager"}},
	"remove a disruption budget":      {request{method: "DELETE", path: "/apis/policy/v1/namespaces/guard/poddisruptionbudgets/p"}, nil},
	"widen a disruption budget":       {request{method: "PATCH", path: "/apis/policy/v1/namespaces/guard/poddisruptionbudgets/p/status", body: "{}"}, nil},
	"list Secrets":                    {request{method: "GET", path: "/api/v1/namespaces/kube-system/secrets"}, tokenParts},
	"read a Secret":                   {request{method: "GET", path: "/api/v1/namespaces/kube-system/secrets/s"}, nil},
	"list Secrets of its namespace":   {request{method: "GET", path: "/api/v1/namespaces/slipway/secrets"}, nil},
	"create a Secret":                 {request{method: "POST", path: "/api/v1/namespaces/kube-system/secrets", body: "{}"}, tokenParts},
	"create a Secret elsewhere":       {request{method: "POST", path: "/api/v1/namespaces/slipway/secrets", body: "{}"}, nil},
	"a ConfigMap of the system":       {request{method: "PATCH", path: "/api/v1/namespaces/kube-system/configmaps/c", body: "{}"}, nil},
	"what machines join by":           {request{method: "PATCH", path: "/api/v1/namespaces/kube-public/configmaps/cluster-info", body: "{}"}, nil},
	"a kubelet's Lease":               {request{method: "PATCH", path: "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/n", body: "{}"}, nil},
	"the Lease of the control plane":  {request{method: "PUT", path: "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases/kube-scheduler", body: "{}"}, nil},
	"update the manager's Lease":      {request{method: "PUT", path: "/apis/coordination.k8s.io/v1/namespaces/slipway/leases/slipway-manager", body: "{}"}, []string{"manager", "cloudpool"}},
	"delete a Lease":                  {request{method: "DELETE", path: "/apis/coordination.k8s.io/v1/namespaces/slipway/leases/slipway-manager"}, nil},
	"a NodeGroup":                     {request{method: "POST", path: "/apis/slipway.dev/v1alpha1/nodegroups", body: "{}"}, nil},
	"change a NodeGroup":              {request{method: "PATCH", path: "/apis/slipway.dev/v1alpha1/nodegroups/g", body: "{}"}, nil},
	"a NodeGroup's status":            {request{method: "PATCH", path: "/apis/slipway.dev/v1alpha1/nodegroups/g/status", body: "{}"}, []string{"manager", "cloudpool"}},
	"scale a NodeGroup":               {request{method: "PUT", path: "/apis/slipway.dev/v1alpha1/nodegroups/g/scale", body: "{}"}, nil},
	"scale a Deployment":              {request{method: "PUT", path: "/apis/apps/v1/namespaces/kube-system/deployments/d/scale", body: "{}"}, nil},
	"a NodeRetirement":                {request{method: "POST", path: "/apis/slipway.dev/v1alpha1/noderetirements", body: "{}"}, []string{"manager", "cloudpool"}},
	"override a Node's protection":    {request{method: "PUT", path: "/apis/slipway.dev/v1alpha1/noderetirements/r", body: "{}"}, []string{"manager"}},
	"override it by a patch":          {request{method: "PATCH", path: "/apis/slipway.dev/v1alpha1/noderetirements/r", body: "{}"}, nil},
	"a NodeRetirement's status":       {request{method: "PUT", path: "/apis/slipway.dev/v1alpha1/noderetirements/r/status", body: "{}"}, []string{"manager"}},
	"delete every NodeRetirement":     {request{method: "DELETE", path: "/apis/slipway.dev/v1alpha1/noderetirements"}, nil},
	"a PoolUpdate":                    {request{method: "POST", path: "/apis/slipway.dev/v1alpha1/namespaces/slipway/poolupdates", body: "{}"}, []string{"cloudpool"}},
	"a PoolUpdate elsewhere":          {request{method: "POST", path: "/apis/slipway.dev/v1alpha1/namespaces/default/poolupdates", body: "{}"}, nil},
	"a PoolUpdate's status":           {request{method: "PUT", path: "/apis/slipway.dev/v1alpha1/namespaces/slipway/poolupdates/p/status", body: "{}"}, []string{"cloudpool"}},
	"a PoolUpdate's status, by patch": {request{method: "PATCH", path: "/apis/slipway.dev/v1alpha1/namespaces/slipway/poolupdates/p/status", body: "{}"}, nil},
	"delete a type":                   {request{method: "DELETE", path: "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/nodegroups.slipway.dev"}, nil},
	"another's type":                  {request{method: "PATCH", path: "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/c.example.com", body: "{}"}, nil},
	"who a token is of":               {request{method: "POST", path: "/apis/authentication.k8s.io/v1/tokenreviews", body: "{}"}, []string{"cloudpool"}},
	"priority over others":            {request{method: "PATCH", path: "/apis/flowcontrol.apiserver.k8s.io/v1/flowschemas/slipway-agent", body: "{}"}, nil},
}

// TestRBACRefusesRequestsNoPartNeeds makes each request with each token. RBAC refuses it before the API server
// reads anything.
func TestRBACRefusesRequestsNoPartNeeds(t *testing.T) {
	f := newFixture(t)
	for part, client := range map[string]kubernetes.Interface{
		"agent": f.agent(), "manager": f.part("manager"), "cloudpool": f.part("cloudpool"),
	} {
		for name, forbidden := range forbiddenRequests {
			if slices.Contains(forbidden.allowed, part) {
				continue
			}
			err := send(forbidden.request)(f.ctx, client)
			if !apierrors.IsForbidden(err) || strings.Contains(err.Error(), "ValidatingAdmissionPolicy") {
				t.Errorf("%s: %s: %v, want RBAC to refuse it", part, name, err)
			}
		}
	}
}
