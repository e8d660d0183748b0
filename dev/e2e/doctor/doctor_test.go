// Package doctor_test runs slipway doctor on a real control plane. It covers no problems, prepared problems, and
// credentials without permissions.
package doctor_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/slipway-dev/slipway/dev/controlplane"
	"github.com/slipway-dev/slipway/dev/testbed"
	"github.com/slipway-dev/slipway/dev/workload"
	"github.com/slipway-dev/slipway/internal/doctor"
)

func TestMain(m *testing.M) { os.Exit(testbed.RunTestsAndStopShared(m)) }

// namespace contains the prepared problems.
const namespace = "shop"

type fixture struct {
	*testbed.Testbed
	t   *testing.T
	ctx context.Context
}

func (f *fixture) check(err error) {
	f.t.Helper()
	if err != nil {
		f.t.Fatal(err)
	}
}

// runDoctor runs slipway doctor. It returns the findings and the exit code.
func (f *fixture) runDoctor(kubeconfig string) (doctor.Report, int) {
	f.t.Helper()
	cmd := testbed.NewCommand(f.ctx, f.t, "slipway", "doctor", "-o", "json", "--kubeconfig", kubeconfig)
	var out, said bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &said
	err := cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		f.t.Fatal(err)
	}
	var r doctor.Report
	if err := json.Unmarshal(out.Bytes(), &r); err != nil {
		f.t.Fatalf("%v\n%s\n%s", err, out.Bytes(), said.Bytes())
	}
	return r, cmd.ProcessState.ExitCode()
}

func line(found doctor.Finding) string {
	return fmt.Sprintf("%s %s %s: %s", found.Severity, found.Rule, found.Object, found.Message)
}

// expect checks that each text is the beginning of a finding.
func (f *fixture) expect(r doctor.Report, want ...string) {
	f.t.Helper()
	var lines []string
	for _, found := range r.Findings {
		lines = append(lines, line(found))
	}
	for _, w := range want {
		if !slices.ContainsFunc(lines, func(l string) bool { return strings.HasPrefix(l, w) }) {
			f.t.Errorf("no finding begins with %q in\n%s", w, strings.Join(lines, "\n"))
		}
	}
}

// account creates a ServiceAccount, with or without a ClusterRole. It returns a kubeconfig for the account.
func (f *fixture) account(name, role string) string {
	f.t.Helper()
	_, err := f.Client().CoreV1().ServiceAccounts(namespace).Create(f.ctx,
		&corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{})
	f.check(err)
	if role != "" {
		_, err := f.Client().RbacV1().ClusterRoleBindings().Create(f.ctx, &rbacv1.ClusterRoleBinding{
			ObjectMeta: metav1.ObjectMeta{Name: name},
			RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: role},
			Subjects:   []rbacv1.Subject{{Kind: "ServiceAccount", Namespace: namespace, Name: name}},
		}, metav1.CreateOptions{})
		f.check(err)
		f.check(f.AwaitPermissions(f.ctx, namespace, name, role))
	}
	path, err := f.ServiceAccountKubeconfig(f.ctx, namespace, name, controlplane.TokenOptions{})
	f.check(err)
	return path
}

func (f *fixture) install(files ...string) {
	f.t.Helper()
	root, err := testbed.RepositoryRoot()
	f.check(err)
	for _, file := range files {
		f.check(f.ApplyFile(f.ctx, filepath.Join(root, "deploy", file)))
	}
}

// addSkewedNode adds a node with a kubelet clock one hour ahead. The testbed does not emulate its kubelet.
func (f *fixture) addSkewedNode(name string) {
	f.t.Helper()
	_, err := f.Client().CoreV1().Nodes().Create(f.ctx, &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{corev1.LabelOSStable: "windows"}},
	}, metav1.CreateOptions{})
	f.check(err)
	_, err = f.Client().CoordinationV1().Leases(corev1.NamespaceNodeLease).Create(f.ctx, &coordinationv1.Lease{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec:       coordinationv1.LeaseSpec{HolderIdentity: &name, RenewTime: &metav1.MicroTime{Time: time.Now().Add(time.Hour)}},
	}, metav1.CreateOptions{})
	f.check(err)
}

// createProblems creates workloads with problems.
func (f *fixture) createProblems() {
	f.t.Helper()
	web := workload.App{Namespace: namespace, Name: "web", Replicas: 2, MaxUnavailable: "0"}
	db := workload.App{Namespace: namespace, Name: "db", Replicas: 2, MinAvailable: "2"}
	twice := workload.App{Namespace: namespace, Name: "db"}.PodDisruptionBudget()
	twice.Name = "db-too"
	kured := workload.App{Namespace: namespace, Name: "reboots"}.DaemonSet()
	kured.Spec.Template.Spec.Containers[0].Image = "ghcr.io/kubereboot/kured:1.20.0"
	client := f.Client()
	f.check(workload.CreateAndAwait(f.ctx, client, web.Deployment(), web.PodDisruptionBudget(), db.Deployment(), db.PodDisruptionBudget(),
		workload.App{Namespace: namespace, Name: "lonely"}.Deployment(), workload.App{Namespace: namespace, Name: "debug"}.Pod()))
	// The disruption controller reports a pod's changes to only one of its PDBs. The second PDB reads the pods at its
	// creation.
	f.check(workload.CreateAndAwait(f.ctx, client, twice))
	f.check(workload.Create(f.ctx, client, kured, workload.App{Namespace: namespace, Name: "gone"}.PodDisruptionBudget()))
}

func TestDoctorFindsPreparedProblems(t *testing.T) {
	ctx := testbed.TestContext(t)
	f := &fixture{testbed.StartForTest(t, testbed.Options{}), t, ctx}

	r, code := f.runDoctor(f.Kubeconfig())
	if code != 0 || r.CountFindings(doctor.Problem) > 0 || len(r.Unchecked) > 0 {
		t.Errorf("an empty cluster: exit code %d, %+v", code, r)
	}
	f.expect(r, "note installation the cluster: no part of Slipway was found")

	pool := controlplane.AKSPool{Name: "work"}
	f.check(f.AddPool(ctx, pool, 2))
	f.check(workload.Create(ctx, f.Client(), workload.NewNamespace(namespace)))
	f.awaitAccounts()
	f.addSkewedNode("skewed")
	f.createProblems()
	f.install("agent/daemonset.yaml", "manager/rbac.yaml", "manager/deployment.yaml", "viewer/doctor.yaml")
	// The manager's account loses its binding, and with it every right outside its own namespace.
	f.check(f.Client().RbacV1().ClusterRoleBindings().Delete(ctx, "slipway-manager", metav1.DeleteOptions{}))
	slipway := func(name string) metav1.ObjectMeta { return metav1.ObjectMeta{Namespace: "slipway", Name: name} }
	f.check(workload.AwaitSettled(ctx, f.Client(), &appsv1.DaemonSet{ObjectMeta: slipway("slipway-agent")},
		&appsv1.Deployment{ObjectMeta: slipway("slipway-manager")}))
	f.awaitRoles()

	r, code = f.runDoctor(f.Kubeconfig())
	if code != 2 || len(r.Unchecked) > 0 {
		t.Errorf("exit code %d, not checked: %v", code, r.Unchecked)
	}
	f.expect(
		r, "problem part-rights ServiceAccount slipway/slipway-manager: the manager may not create pods/eviction: to drain",
		"problem crds CustomResourceDefinition nodegroups.slipway.dev: it is missing",
		"problem leader Lease slipway/slipway-manager: the Lease does not exist",
		"problem agent-coverage Node skewed: no agent can run on it",
		"problem clock-node Node skewed: its clock is ",
		"problem pdb-never-allows PodDisruptionBudget shop/web: maxUnavailable is 0",
		"problem pdb-never-allows PodDisruptionBudget shop/db: 2 pods must be healthy, and 2 are expected",
		"problem pdb-overlap Deployment shop/db: its pods are selected by 2 disruption budgets (db, db-too)",
		"warning pdb-matches-nothing PodDisruptionBudget shop/gone: its selector (app.kubernetes.io/name=gone) matches no pod",
		"warning single-replica Deployment shop/lonely: it has one replica",
		"warning pod-without-controller Pod shop/debug: no controller",
		"warning other-tool DaemonSet shop/reboots: kured, by its image ghcr.io/kubereboot/kured:1.20.0",
	)
	for _, found := range r.Findings {
		switch l := line(found); {
		case found.Rule == "part-rights" && found.Object.Name == "slipway-agent",
			found.Rule == "agent-down", found.Rule == "caller-rights", found.Rule == "unreadable":
			t.Errorf("unexpected finding: %s", l)
		case strings.Contains(found.Message, "leases slipway-manager in namespace slipway"):
			t.Errorf("a finding about the bound Role in the manager's namespace: %s", l)
		}
	}
	f.checkShippedRole(r)
	f.checkWithoutPermissions()
}

// problems returns the problems of a report, one line each.
func problems(r doctor.Report) (lines []string) {
	for _, found := range r.Findings {
		if found.Severity == doctor.Problem {
			lines = append(lines, line(found))
		}
	}
	return lines
}

// checkShippedRole checks that the shipped role is enough for the same findings.
func (f *fixture) checkShippedRole(want doctor.Report) {
	f.t.Helper()
	r, code := f.runDoctor(f.account("doctor", "slipway-doctor"))
	if diff := cmp.Diff(problems(want), problems(r)); code != 2 || len(r.Unchecked) > 0 || diff != "" {
		f.t.Errorf("with the role slipway-doctor: exit code %d, not checked %v, problems (-want +got):\n%s", code, r.Unchecked, diff)
	}
	f.expect(r, "note caller-rights the cluster: you may not list persistentvolumes: slipway plan and why")
}

// checkStatusError checks that slipway status fails with these texts.
func (f *fixture) checkStatusError(kubeconfig string, want ...string) {
	f.t.Helper()
	said, err := testbed.NewCommand(f.ctx, f.t, "slipway", "status", "--kubeconfig", kubeconfig).CombinedOutput()
	for _, w := range want {
		if err == nil || !strings.Contains(string(said), w) {
			f.t.Errorf("slipway status: %v, want the text %q:\n%s", err, w, said)
		}
	}
}

// checkWithoutPermissions checks the messages to an account without permissions.
func (f *fixture) checkWithoutPermissions() {
	f.t.Helper()
	unprivileged := f.account("unprivileged", "")
	f.check(f.InstallCRDs(f.ctx))
	f.checkStatusError(unprivileged, `cannot list resource "nodegroups" in API group "slipway.dev"`, "ClusterRole slipway-viewer in deploy/viewer")
	r, code := f.runDoctor(unprivileged)
	if code != 2 {
		f.t.Errorf("without permissions: exit code %d", code)
	}
	f.expect(
		r, "problem caller-rights the cluster: you may not list nodes: ",
		"problem caller-rights the cluster: you may not list pods: ",
		"problem caller-rights the cluster: you may not list daemonsets.apps: ",
		"problem caller-rights the cluster: you may not list leases.coordination.k8s.io in namespace kube-node-lease: ",
		"problem caller-rights the cluster: you may not get customresourcedefinitions.apiextensions.k8s.io: ",
	)
	for _, u := range r.Unchecked {
		if u.Reason == "" {
			f.t.Errorf("%s was not checked, and has no reason", u.Rule)
		}
	}
	if !slices.ContainsFunc(r.Unchecked, func(u doctor.UncheckedRule) bool { return u.Rule == "pdb-never-allows" }) {
		f.t.Errorf("not checked: %v", r.Unchecked)
	}
}

// awaitAccounts waits until the namespace accepts pods.
func (f *fixture) awaitAccounts() {
	f.t.Helper()
	f.check(testbed.PollUntil(f.ctx, "the namespace has its ServiceAccount", func() bool {
		_, err := f.Client().CoreV1().ServiceAccounts(namespace).Get(f.ctx, "default", metav1.GetOptions{})
		return err == nil
	}))
}

// awaitRoles waits until the API server's authorizer has observed the new bindings and the deleted binding.
func (f *fixture) awaitRoles() {
	f.t.Helper()
	path, err := f.ServiceAccountKubeconfig(f.ctx, "slipway", "slipway-manager", controlplane.TokenOptions{})
	f.check(err)
	client := f.clientOf(path)
	f.check(testbed.PollUntil(f.ctx, "the manager's permissions are as prepared", func() bool {
		_, cluster := client.CoreV1().Pods("").List(f.ctx, metav1.ListOptions{})
		_, own := client.CoordinationV1().Leases("slipway").Get(f.ctx, "slipway-manager", metav1.GetOptions{})
		return apierrors.IsForbidden(cluster) && !apierrors.IsForbidden(own)
	}))
}

func (f *fixture) clientOf(kubeconfig string) kubernetes.Interface {
	f.t.Helper()
	client, err := testbed.NewClient(kubeconfig)
	f.check(err)
	return client
}
