// Package top_test runs the real slipway top in a terminal, on a real control plane with a real manager and a real agent.
package top_test

import (
	"bytes"
	"context"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/slipway-dev/slipway/dev/azure"
	"github.com/slipway-dev/slipway/dev/controlplane"
	"github.com/slipway-dev/slipway/dev/testbed"
	"github.com/slipway-dev/slipway/dev/workload"
)

func TestMain(m *testing.M) { os.Exit(testbed.RunTestsAndStopShared(m)) }

var update = flag.Bool("update", false, "write the golden files anew")

// ns is the namespace of the workload and of the accounts.
const ns = "top"

var workers = controlplane.AKSPool{Name: "workers"}

// fixture is a cluster with one node that cannot be drained, and another node with a notice.
type fixture struct {
	*testbed.Testbed
	t    *testing.T
	ctx  context.Context
	path string // path to the slipway binary
	root string
}

func (f *fixture) check(err error) {
	f.t.Helper()
	if err != nil {
		f.t.Fatal(err)
	}
}

func newFixture(t *testing.T) *fixture {
	t.Helper()
	bed := testbed.StartShared(t)
	path, err := testbed.EnsureBinary("slipway")
	if err != nil {
		t.Fatal(err)
	}
	root, err := testbed.RepositoryRoot()
	if err != nil {
		t.Fatal(err)
	}
	ctx := testbed.TestContext(t)
	f := &fixture{Testbed: bed, t: t, ctx: ctx, path: path, root: root}
	f.check(f.ApplyManifests(ctx, append(testbed.ManagerManifests, "viewer/rbac.yaml", "viewer/top.yaml")...))
	f.check(f.InstallCRDs(ctx))
	f.check(f.AddPool(ctx, workers, 3))
	f.check(workload.Create(ctx, f.Client(), workload.NewNamespace(ns)))
	return f
}

// account creates a ServiceAccount with some ClusterRoles, and returns its kubeconfig.
func (f *fixture) account(name string, roles ...string) string {
	f.t.Helper()
	_, err := f.Client().CoreV1().ServiceAccounts(ns).Create(f.ctx, &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{})
	f.check(err)
	for _, role := range roles {
		_, err := f.Client().RbacV1().ClusterRoleBindings().Create(f.ctx, &rbacv1.ClusterRoleBinding{
			ObjectMeta: metav1.ObjectMeta{Name: name + "-" + role},
			RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: role},
			Subjects:   []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: ns, Name: name}},
		}, metav1.CreateOptions{})
		f.check(err)
		f.check(f.AwaitPermissions(f.ctx, ns, name, role))
	}
	kubeconfig, err := f.ServiceAccountKubeconfig(f.ctx, ns, name, controlplane.TokenOptions{})
	f.check(err)
	return kubeconfig
}

// prepareCluster prepares the cluster for the screens. The first node is being drained and waits for a PDB. The second
// node's agent handles a notice.
func (f *fixture) prepareCluster() {
	f.t.Helper()
	f.check(f.CreateNodeGroup(f.ctx, "workers", nil, testbed.ScaleSetNodeGroupSpec(workers.Name, workers.ScaleSetName())+
		"minSize: 1\nmaxSize: 5\nreplacement: Never\ndisruptionBudgets: [{nodes: 2}]\n"))
	for i, name := range []string{"web", "db"} {
		app := workload.App{Namespace: ns, Name: name, Replicas: int32(2 - i), CPU: resource.MustParse("4"), Node: workers.NodeName(i), MaxUnavailable: "0"}
		f.check(workload.CreateAndAwait(f.ctx, f.Client(), app.Deployment(), app.PodDisruptionBudget()))
	}
	f.manager()
	_, err := f.RunSlipway(f.ctx, f.t, "retire", workers.NodeName(0), "--requested-by", "ann")
	f.check(err)
	agent, err := f.StartAgent(f.ctx, workers, 1, "--poll-interval=200ms")
	f.check(err)
	f.t.Cleanup(func() { _ = agent.KillIfAlive() })
	_, err = f.Azure.Announce(azure.Announcement{
		ScaleSet: workers.ScaleSetName(), Resources: []string{workers.ResourceName(1)}, Type: azure.Redeploy, Notice: 90 * time.Minute,
	})
	f.check(err)
}

func (f *fixture) manager() {
	f.t.Helper()
	p, err := f.StartManager(f.ctx, "manager-top", map[string]any{"azure": f.AzureProviderConfig()},
		"--poll-interval", "500ms", "--cloud-poll-interval", "500ms", "--retry-interval", "500ms", "--group-poll-interval", "500ms")
	f.check(err)
	testbed.KillAfterTest(f.t, p.Process)
}

// terminal is tmux with one window, on its own socket.
type terminal struct {
	*fixture
	program, socket string
}

// terminal runs slipway top in a terminal of 80 columns by 24 rows.
func (f *fixture) terminal(program, kubeconfig string) *terminal {
	f.t.Helper()
	term := &terminal{f, program, filepath.Join(f.t.TempDir(), "tmux")}
	command := fmt.Sprintf("env NO_COLOR=1 LC_ALL=C.UTF-8 %s top --kubeconfig %s; cat", f.path, kubeconfig)
	term.tmux("-f", "/dev/null", "-u", "new-session", "-d", "-x", "80", "-y", "24", command)
	f.t.Cleanup(func() { // the test's context has ended
		_ = exec.CommandContext(context.Background(), program, "-S", term.socket, "kill-server").Run()
	})
	term.tmux("set-option", "status", "off")
	term.resize(80, 24)
	return term
}

func (term *terminal) tmux(args ...string) string {
	term.t.Helper()
	cmd := exec.CommandContext(term.ctx, term.program, append([]string{"-S", term.socket}, args...)...)
	var problems bytes.Buffer
	cmd.Stderr = &problems
	out, err := cmd.Output()
	if err != nil {
		term.t.Fatalf("tmux %v: %v: %s", args, err, problems.String())
	}
	return string(out)
}

func (term *terminal) resize(width, height int) {
	term.t.Helper()
	term.tmux("resize-window", "-x", fmt.Sprint(width), "-y", fmt.Sprint(height))
}

func (term *terminal) press(keys ...string) {
	term.t.Helper()
	term.tmux(append([]string{"send-keys"}, keys...)...)
}

// awaitText waits until a text is on the screen.
func (term *terminal) awaitText(text string) {
	term.t.Helper()
	var screen string
	err := testbed.PollUntil(term.ctx, fmt.Sprintf("%q is on the screen", text), func() bool {
		screen = term.tmux("capture-pane", "-p")
		return strings.Contains(screen, text)
	})
	if err != nil {
		term.t.Fatalf("%v:\n%s", err, screen)
	}
}

// masks replace what differs between runs. A countdown keeps its width.
var masks = []struct {
	what *regexp.Regexp
	with string
}{
	{regexp.MustCompile(`https://127\.0\.0\.1:\d+ `), "https://SERVER "},
	{regexp.MustCompile(`\d\d:\d\d:\d\dZ`), "HH:MM:SSZ"},
	{regexp.MustCompile(`due in 1:\d\d:\d\d`), "due in H:MM:SS"},
	{regexp.MustCompile(` +(HH:MM:SSZ)`), " $1"},
	{regexp.MustCompile(`AGE +`), "AGE "},
	{regexp.MustCompile(`\b(\d+m)?\d+s +`), "AGE "},
}

// maskScreen returns a screen without what differs between runs.
func maskScreen(screen string) string {
	for _, m := range masks {
		screen = m.what.ReplaceAllString(screen, m.with)
	}
	lines := strings.Split(screen, "\n")
	for i := range lines {
		lines[i] = strings.TrimRight(lines[i], " ")
	}
	return strings.TrimRight(strings.Join(lines, "\n"), "\n") + "\n"
}

// awaitScreen waits until the screen equals a golden file. With -update it waits for the given texts instead.
func (term *terminal) awaitScreen(name string, texts ...string) {
	term.t.Helper()
	file := filepath.Join("testdata", name)
	if *update {
		for _, text := range texts {
			term.awaitText(text)
		}
		term.check(os.WriteFile(file, []byte(maskScreen(term.tmux("capture-pane", "-p"))), 0o600))
	}
	want, err := os.ReadFile(file)
	term.check(err)
	var got string
	err = testbed.PollUntil(term.ctx, "the screen equals "+file, func() bool {
		got = maskScreen(term.tmux("capture-pane", "-p"))
		return got == string(want)
	})
	if err != nil {
		term.t.Fatalf("%v (-want +got):\n%s", err, cmp.Diff(string(want), got))
	}
}

func TestTopShowsDrainAndNoticeAndCancels(t *testing.T) {
	program := testbed.FindPeer(t, "tmux")
	f := newFixture(t)
	f.prepareCluster()
	term := f.terminal(program, f.account("ann", "slipway-viewer", "slipway-top"))
	term.awaitScreen("80x24.txt", "waiting for PDB top/web", "waiting for PDB top/db")
	term.resize(200, 24)
	term.awaitScreen("200x24.txt", "Standard_")
	term.press("Enter")
	term.awaitText("waits for PDB top/web, which allows no eviction now")
	term.press("e")
	term.awaitText("NoticeReceived")
	term.press("Tab")
	term.awaitText("<tab> nodes")
	term.press("e", "w")
	term.awaitText("PodBlocked pod top/web-")
	term.awaitText("disruption-budget")
	term.press("Escape")
	term.awaitText("<?> help")
	term.press("p")
	term.awaitText("REMOVE")
	term.press("q")
	term.awaitText("<?> help")
	term.press("/", "0", "0", "1", "Enter")
	term.awaitText("filter 001")
	term.press("Escape")
	term.awaitText("slipway top  https://") // no filter; otherwise Escape and the next key are one key, Alt
	term.press("M", "Home")
	term.awaitText("MEM↓")
	term.press("c")
	term.awaitText("Its node will be restored.")
	term.press("y")
	term.awaitText("is cancelled: the node will be restored")
	_, err := f.AwaitNode(f.ctx, workers.NodeName(0), "restored", func(n *corev1.Node) bool { return !n.Spec.Unschedulable })
	f.check(err)
	term.press("q")
	f.checkPlainOutput()
}

// checkPlainOutput checks the output without a terminal, for a user without any permission.
func (f *fixture) checkPlainOutput() {
	f.t.Helper()
	out := f.startPlain(f.account("no-permissions"))
	text := out.awaitText("problem you may not list and watch pods: ") // the last problem in the list
	if strings.Contains(text, "\x1b") || !strings.Contains(text, "you may not list and watch nodes: bind ClusterRole slipway-top") {
		f.t.Errorf("printed %q", text)
	}
}

// output is the output of slipway top without a terminal.
type output struct {
	t    *testing.T
	from io.Reader
	seen strings.Builder
}

// startPlain runs slipway top without a terminal until the test ends.
func (f *fixture) startPlain(kubeconfig string) *output {
	f.t.Helper()
	ctx, stop := context.WithCancel(f.ctx)
	cmd := testbed.NewCommand(ctx, f.t, "slipway", "top", "--kubeconfig", kubeconfig)
	cmd.Stderr = f.t.Output()
	out, err := cmd.StdoutPipe()
	f.check(err)
	f.check(cmd.Start())
	f.t.Cleanup(func() {
		stop()
		_ = cmd.Wait() // it is killed
	})
	return &output{t: f.t, from: out}
}

// awaitText reads until a text has been printed, and returns the whole output.
func (p *output) awaitText(text string) string {
	p.t.Helper()
	buf := make([]byte, 4096)
	for !strings.Contains(p.seen.String(), text) {
		n, err := p.from.Read(buf)
		p.seen.Write(buf[:n])
		if err != nil {
			p.t.Fatalf("%v: printed %q, want %q", err, p.seen.String(), text)
		}
	}
	return p.seen.String()
}
