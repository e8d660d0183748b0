package chart_test

import (
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/slipway-dev/slipway/dev/azure"
	"github.com/slipway-dev/slipway/dev/controlplane"
	"github.com/slipway-dev/slipway/dev/testbed"
)

// pods waits until the controllers of a release have made n pods with a name, and all are on nodes.
func (b bed) pods(release, name string, n int) []corev1.Pod {
	b.t.Helper()
	var list *corev1.PodList
	b.check(testbed.PollUntil(b.ctx, fmt.Sprintf("%d pods %s of %s are on nodes", n, name, release), func() bool {
		var err error
		list, err = b.Client().CoreV1().Pods(release).List(b.ctx, metav1.ListOptions{
			LabelSelector: "app.kubernetes.io/name=" + name + ",app.kubernetes.io/instance=" + release,
		})
		b.check(err)
		waiting := slices.ContainsFunc(list.Items, func(p corev1.Pod) bool { return p.Spec.NodeName == "" })
		return len(list.Items) == n && !waiting
	}))
	return list.Items
}

// on returns the pod on a node.
func (b bed) on(node string, pods []corev1.Pod) corev1.Pod {
	b.t.Helper()
	i := slices.IndexFunc(pods, func(p corev1.Pod) bool { return p.Spec.NodeName == node })
	if i < 0 {
		b.t.Fatalf("no pod is on node %s", node)
	}
	return pods[i]
}

// container is the container of a controller's pod, and runs on this host. It uses the pod's program, arguments,
// variables, and the files of its ConfigMaps and Secrets. It mounts a token as a kubelet does.
type container struct {
	bed
	corev1.Container
	pod    corev1.Pod
	mounts map[string]string // directories of this host by path in the container
	// programs is the directory of the program; empty means the programs of this checkout.
	programs string
}

const tmp = "/tmp"

func (b bed) newContainer(pod corev1.Pod) container {
	b.t.Helper()
	if len(pod.Spec.Containers) != 1 {
		b.t.Fatalf("pod %s has %d containers, want 1", pod.Name, len(pod.Spec.Containers))
	}
	c := container{bed: b, Container: pod.Spec.Containers[0], pod: pod, mounts: map[string]string{}}
	for _, mount := range c.VolumeMounts {
		c.mounts[mount.MountPath] = b.t.TempDir()
	}
	for _, mount := range c.VolumeMounts {
		i := slices.IndexFunc(pod.Spec.Volumes, func(v corev1.Volume) bool { return v.Name == mount.Name })
		if i < 0 {
			b.t.Fatalf("%s mounts %s, which is not a volume", pod.Name, mount.Name)
		}
		for file, text := range b.volume(pod.Namespace, pod.Spec.Volumes[i]) {
			b.check(os.WriteFile(filepath.Join(c.mounts[mount.MountPath], file), []byte(c.here(text)), 0o600))
		}
	}
	return c
}

// volume returns the contents of a ConfigMap or a Secret by file. The token's volume is empty, because the kubeconfig
// replaces it.
func (b bed) volume(namespace string, v corev1.Volume) map[string]string {
	b.t.Helper()
	files := map[string]string{}
	switch {
	case v.ConfigMap != nil:
		from, err := b.Client().CoreV1().ConfigMaps(namespace).Get(b.ctx, v.ConfigMap.Name, metav1.GetOptions{})
		b.check(err)
		maps.Copy(files, from.Data)
	case v.Secret != nil:
		from, err := b.Client().CoreV1().Secrets(namespace).Get(b.ctx, v.Secret.SecretName, metav1.GetOptions{})
		if err != nil && v.Secret.Optional != nil && *v.Secret.Optional {
			break
		}
		b.check(err)
		for file, text := range from.Data {
			files[file] = string(text)
		}
	}
	return files
}

// here replaces the container's paths in a text with the paths of this host. It replaces each path once, because a
// directory of this host may begin like a mount.
func (c container) here(text string) string {
	var pairs []string
	for _, mount := range slices.Sorted(maps.Keys(c.mounts)) {
		pairs = append(pairs, mount+"/", c.mounts[mount]+"/")
	}
	return strings.NewReplacer(pairs...).Replace(text)
}

// env returns the variables of the container.
func (c container) env() []string {
	var env []string
	for _, v := range c.Env {
		value := v.Value
		if v.ValueFrom != nil && v.ValueFrom.FieldRef != nil {
			switch v.ValueFrom.FieldRef.FieldPath {
			case "spec.nodeName":
				value = c.pod.Spec.NodeName
			case "metadata.namespace":
				value = c.pod.Namespace
			default:
				c.t.Fatalf("%s: variable %s uses the unknown field %s", c.pod.Name, v.Name, v.ValueFrom.FieldRef.FieldPath)
			}
		}
		env = append(env, v.Name+"="+c.here(value))
	}
	return env
}

// tmp returns the mounted directory for temporary files. Without a mount, the directory is on a read-only root file
// system. A missing directory represents that case.
func (c container) tmp() string {
	if at, ok := c.mounts[tmp]; ok {
		return at
	}
	return filepath.Join(c.t.TempDir(), "read-only")
}

// start runs the container's program and waits until its probe succeeds. Each listening flag gets an address of this
// host, and the last address has the probe. It appends the additional arguments.
func (c container) start(listening []string, more ...string) (_ *controlplane.Process, addresses []string) {
	c.t.Helper()
	image, _, _ := strings.Cut(c.Image, "@")
	image, _, _ = strings.Cut(path.Base(image), ":")
	program := filepath.Join(c.programs, image)
	if c.programs == "" {
		var err error
		program, err = testbed.EnsureBinary(image)
		c.check(err)
	}
	kubeconfig, err := c.ServiceAccountKubeconfig(c.ctx, c.pod.Namespace, c.pod.Spec.ServiceAccountName, controlplane.TokenOptions{Pod: c.pod.Name})
	c.check(err)
	var args []string
	for _, arg := range c.Args {
		args = append(args, c.here(arg))
	}
	for _, flag := range listening {
		address, err := controlplane.ReserveFreeAddress(c.ctx)
		c.check(err)
		args = slices.DeleteFunc(args, func(arg string) bool { return strings.HasPrefix(arg, flag+"=") })
		args, addresses = append(args, flag+"="+address), append(addresses, address)
	}
	probe := c.LivenessProbe
	if c.ReadinessProbe != nil {
		probe = c.ReadinessProbe
	}
	args = append(append(args, "--kubeconfig="+kubeconfig), more...)
	p, err := c.StartProcess(c.ctx, controlplane.Command{
		Name: c.pod.Name, Path: program, Args: args, Env: append(c.env(), "TMPDIR="+c.tmp()), ReadyURL: "http://" + addresses[len(addresses)-1] + probe.HTTPGet.Path,
	})
	if err != nil {
		c.t.Fatalf("%v with %q", err, args)
	}
	c.t.Cleanup(func() {
		_ = p.Kill() // it may already have ended
		if raw, err := os.ReadFile(p.LogFile()); c.t.Failed() && err == nil {
			c.t.Logf("log of %s:\n%s", c.pod.Name, raw)
		}
	})
	return p, addresses
}

// installChart applies the rendered chart as a release, in a namespace with the same name.
func (b bed) installChart(chart, name, values string) {
	b.t.Helper()
	b.createRestrictedNamespace(name)
	b.apply(objects(b.t, manifest(b.t, chart, release(name, name), values)))
}

// reservedTaint is a taint that admits only pinned pods and the guarding pod to a node. Other tests' Deployments would wait for
// PDBs during its drain.
var reservedTaint = corev1.Taint{Key: "e2e.slipway.dev/reserved", Effect: corev1.TaintEffectNoSchedule}

// TestInstalledHandlerDrainsAndNotifies uses values from users of the old chart: a taint, a grace period, and a
// custom payload for a Slack webhook.
func TestInstalledHandlerDrainsAndNotifies(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	var received struct {
		sync.Mutex
		bodies []string
	}
	slack := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil || r.Method != http.MethodPost || r.URL.Path != "/services/T0/B0/x" {
			t.Errorf("%s %s: %v", r.Method, r.URL, err)
		}
		received.Lock()
		defer received.Unlock()
		received.bodies = append(received.bodies, string(body))
	}))
	t.Cleanup(slack.Close)
	pool := controlplane.AKSPool{Name: "handled"}
	node := pool.Node(0)
	node.Taints = []corev1.Taint{reservedTaint}
	b.Azure.EnsureScaleSet(pool.ScaleSetName())
	b.check(b.AddNodes(b.ctx, node))
	b.installChart(handlerChart, "handled", `
args: [-taint.node, -period=200ms, -podGracePeriodSeconds, "30", -webhook.url=`+slack.URL+`/services/T0/B0/x, -webhook.template-file=/files/slack-payload.json]
configMap:
  data:
    slack-payload.json: |
      {"channel": "#mychannel", "text": "{{ .NodeName }}, {{ .InstanceType }} from {{ .NodeRegion }}"}
nodeSelector: {kubernetes.azure.com/agentpool: handled}
slipway: {image: registry.example.com/slipway/slipway}
`)
	pod := b.on(node.Name, b.pods("handled", handlerChart, 1))
	b.newContainer(pod).start([]string{"-web.address"}, "-endpoint="+b.ScheduledEventsURL(pool, 0))
	e, err := b.Azure.Announce(azure.Announcement{Type: azure.Redeploy, Resources: []string{pool.ResourceName(0)}, Notice: 10 * time.Minute})
	b.check(err)
	_, err = b.AwaitNotice(b.ctx, e.EventID, "allowed to begin", func(r azure.EventRecord) bool { return r.StartedBy == azure.ByApproval })
	b.check(err)
	_, err = b.AwaitEvent(b.ctx, node.Name, "Drained")
	b.check(err)
	// The handler notifies in parallel with the drain. The drain does not wait for it.
	b.check(testbed.PollUntil(b.ctx, "Slack received a message", func() bool {
		received.Lock()
		defer received.Unlock()
		return len(received.bodies) > 0
	}))
	is := node.Labels
	want := fmt.Sprintf("{\"channel\": \"#mychannel\", \"text\": \"%s, %s from %s\"}\n", node.Name, is[corev1.LabelInstanceTypeStable],
		is[corev1.LabelTopologyRegion])
	received.Lock()
	defer received.Unlock()
	if !slices.Equal(received.bodies, []string{want}) {
		t.Errorf("Slack received %q, want %q", received.bodies, want)
	}
}
