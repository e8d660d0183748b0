package chart_test

import (
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/slipway-dev/slipway/dev/azure"
	"github.com/slipway-dev/slipway/dev/controlplane"
	"github.com/slipway-dev/slipway/dev/testbed"
)

// fakeProgram is the source of the programs in a release of a test. The release runs them for manual pages and completions.
// Nothing pulls their images.
const fakeProgram = `package main

import "os"

func main() { os.Stdout.WriteString("fake\n") }
`

// publishedRelease is a release in a registry on loopback.
type publishedRelease struct {
	registry       string
	installCommand []string // arguments of helm in the release's INSTALL.md
}

// buildReleasePrograms builds the release program and a registry, and returns their folder. A build without a cache can take
// longer than testbed.TestTimeout, so only the test itself limits it.
func buildReleasePrograms(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	if err := testbed.BuildModulePackages(t.Context(), "tools/release", dir+"/", ".", "github.com/google/go-containerregistry/cmd/registry"); err != nil {
		t.Fatal(err)
	}
	return dir
}

// publishRelease makes and pushes a release, with the programs in a folder and a git repository. The repository has the
// charts and manifests of this one, and fakes of the programs.
func (b bed) publishRelease(programs string) publishedRelease {
	b.t.Helper()
	dir := b.t.TempDir()
	program, dist := filepath.Join(programs, "release"), filepath.Join(dir, "dist")
	address, err := controlplane.ReserveFreeAddress(b.ctx)
	b.check(err)
	_, port, err := net.SplitHostPort(address)
	b.check(err)
	_, err = b.StartProcess(b.ctx, controlplane.Command{
		Name: "registry", Path: filepath.Join(programs, "registry"), Args: []string{"-port=" + port}, ReadyURL: "http://" + address + "/v2/",
	})
	b.check(err)

	source := filepath.Join(dir, "source")
	for _, folder := range []string{"charts", "deploy"} {
		b.check(os.CopyFS(filepath.Join(source, folder), os.DirFS(filepath.Join(root(b.t), folder))))
	}
	for file, text := range map[string]string{
		"go.mod": "module github.com/slipway-dev/slipway\n\ngo 1.26.0\n", "LICENSE": "fake\n",
		"cmd/slipway/main.go": fakeProgram, "cmd/slipway-agent/main.go": fakeProgram,
	} {
		file = filepath.Join(source, file)
		b.check(os.MkdirAll(filepath.Dir(file), 0o700))
		b.check(os.WriteFile(file, []byte(text), 0o600))
	}
	b.runIn(source, "git", "init", "--quiet")
	b.runIn(source, "git", "add", ".")
	b.runIn(source, "git", "-c", "user.name=e2e", "-c", "user.email=e2e@example.com", "-c", "commit.gpgsign=false", "-c", "core.hooksPath=/dev/null",
		"commit", "--quiet", "--message", "release")
	b.runIn(source, "git", "tag", "v0.1.0")
	p := publishedRelease{registry: address + "/slipway"}
	b.runIn(dir, program, "-source="+source, "-out="+dist, "-version=v0.1.0", "-registry="+p.registry, "-targets=linux/"+runtime.GOARCH)
	b.runIn(dir, program, "push", "-dist="+dist, "-version=v0.1.0", "-registry="+p.registry)
	for line := range strings.Lines(b.read(filepath.Join(dist, "INSTALL.md"))) {
		if arguments, ok := strings.CutPrefix(line, "$ helm "); ok {
			p.installCommand = strings.Fields(arguments)
		}
	}
	return p
}

// runIn runs a program in a folder, with the environment of this process, because the program may run the go command.
func (b bed) runIn(dir, name string, args ...string) {
	b.t.Helper()
	cmd := exec.CommandContext(b.ctx, name, args...)
	cmd.Dir = dir
	if out, err := cmd.CombinedOutput(); err != nil {
		b.t.Fatalf("%s %s: %v\n%s", filepath.Base(name), strings.Join(args, " "), err, out)
	}
}

// TestHelmInstallOfAReleaseProtectsNodes types the command of a release's INSTALL.md, with another name and namespace.
// It has no values. An agent of the release drains its node. After helm uninstall, nothing of the release is left.
func TestHelmInstallOfAReleaseProtectsNodes(t *testing.T) {
	t.Parallel()
	programs := buildReleasePrograms(t)
	b := newBed(t)
	const name = "only"
	published := b.publishRelease(programs)
	pool := controlplane.AKSPool{Name: name}
	node := pool.Node(0)
	node.Taints = []corev1.Taint{reservedTaint}
	b.Azure.EnsureScaleSet(pool.ScaleSetName())
	b.check(b.AddNodes(b.ctx, node))
	var install []string
	for _, argument := range published.installCommand {
		if argument == slipwayChart { // the name and the namespace
			argument = name
		}
		install = append(install, argument)
	}
	notes := b.helm(append(install, "--plain-http")...)
	if !strings.Contains(notes, "STATUS: deployed") || !strings.Contains(notes, "is installed as only-slipway in namespace only: agents.") {
		t.Errorf("helm %s prints:\n%s", strings.Join(install, " "), notes)
	}
	var pod corev1.Pod
	b.check(testbed.PollUntil(b.ctx, "the node has an agent", func() bool {
		list, err := b.Client().CoreV1().Pods(name).List(b.ctx, metav1.ListOptions{FieldSelector: "spec.nodeName=" + node.Name})
		b.check(err)
		if len(list.Items) == 1 {
			pod = list.Items[0]
		}
		return len(list.Items) == 1
	}))
	if image := pod.Spec.Containers[0].Image; !strings.HasPrefix(image, published.registry+"/slipway-agent@sha256:") {
		t.Errorf("the agent's image is %s, want the digest of slipway-agent in %s", image, published.registry)
	}
	b.newContainer(pod).start([]string{"--listen"}, "--endpoint="+b.ScheduledEventsURL(pool, 0))
	_, err := b.Azure.Announce(azure.Announcement{Type: azure.Redeploy, Resources: []string{pool.ResourceName(0)}, Notice: 10 * time.Minute})
	b.check(err)
	_, err = b.AwaitEvent(b.ctx, node.Name, "Drained")
	b.check(err)
	b.helm("uninstall", name, "-n", name)
	roles, err := b.Client().RbacV1().ClusterRoles().List(b.ctx, metav1.ListOptions{LabelSelector: "app.kubernetes.io/instance=" + name})
	b.check(err)
	if len(roles.Items) > 0 {
		t.Errorf("%d ClusterRoles are left", len(roles.Items))
	}
}
