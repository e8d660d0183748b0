package autoscale_test

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/slipway-dev/slipway/dev/testbed"
	"github.com/slipway-dev/slipway/dev/workload"
)

// readDocumentedManifest returns the placeholder manifest of docs/autoscaling-howto.md for the test's pool and namespace.
func (f *fixture) readDocumentedManifest() string {
	f.t.Helper()
	root, err := testbed.RepositoryRoot()
	f.check(err)
	page, err := os.ReadFile(filepath.Join(root, "docs", "autoscaling-howto.md"))
	f.check(err)
	_, rest, begins := strings.Cut(string(page), "## Keep spare capacity")
	_, rest, opens := strings.Cut(rest, "```yaml\n")
	manifest, _, closes := strings.Cut(rest, "```")
	if !begins || !opens || !closes || strings.Count(manifest, "pool: web") != 1 || strings.Count(manifest, "namespace: apps") != 1 {
		f.t.Fatalf("docs/autoscaling-howto.md: no manifest of placeholder pods with pool web in namespace apps: %q", manifest)
	}
	return strings.NewReplacer("pool: web", "kubernetes.azure.com/agentpool: "+f.name, "namespace: apps", "namespace: "+f.name).Replace(manifest)
}

// ready waits until this many pods of a Deployment are ready on this many instances.
func (f *fixture) ready(name string, pods int32, machines int) {
	f.t.Helper()
	f.await(fmt.Sprintf("%d pods of %s are ready on %d instances", pods, name, machines), func() (string, bool) {
		d, err := f.Client().AppsV1().Deployments(f.name).Get(f.ctx, name, metav1.GetOptions{})
		if err != nil {
			return err.Error(), false
		}
		nodes, err := f.nodes()
		n := f.countInstances(f.pool.ScaleSetName())
		return fmt.Sprintf("%d are, on %d instances and %d nodes, %v; %s", d.Status.ReadyReplicas, n, len(nodes), err, f.describeRetirements()),
			err == nil && d.Status.ReadyReplicas == pods && n == machines && len(nodes) == machines
	})
}

// requestedSizes returns the sizes that the manager requested for the scale set.
func (f *fixture) requestedSizes() (grown []int) {
	before := 0
	for _, r := range f.ARM.Requests() {
		if r.Action != "Microsoft.Compute/virtualMachineScaleSets/write" || !strings.HasSuffix(r.Path, f.pool.ScaleSetName()) {
			continue
		}
		_, rest, _ := strings.Cut(r.Body, `"capacity":`)
		capacity := 0
		if _, err := fmt.Sscan(strings.TrimRight(strings.Split(rest, ",")[0], "}"), &capacity); err != nil {
			f.t.Fatalf("cannot parse the requested capacity: %s", r.Body)
		}
		if capacity > before {
			grown = append(grown, capacity)
		}
		before = capacity
	}
	return grown
}

func TestPlaceholderPodsYieldAndLaunchTheNextInstance(t *testing.T) {
	t.Parallel()
	f := newFixture(t, "placeholders")
	f.group(f.name, f.pool.ScaleSetName(), `maxSize: 5
scaleUp: {joinTimeout: 5m}
scaleDown: {underutilized: {cooldown: 2s}}
cooldowns: {afterFailure: 1s}
drain: {placeholderPods: {matchLabels: {app: placeholder}}}
disruptionBudgets: [{nodes: "100%"}]`)
	f.startAzureManager(f.pool.ScaleSetName())
	f.check(f.ApplyFile(f.ctx, testbed.WriteTempFile(t, "placeholder.yaml", f.readDocumentedManifest())))
	f.ready("placeholder", 4, 1)
	// The instance has 16 cores, and the placeholders reserve 12.
	app := workload.App{
		Namespace: f.name, Name: "work", Replicas: 4, CPU: resource.MustParse("3"), StopSeconds: "0.1",
		NodeSelector: map[string]string{"kubernetes.azure.com/agentpool": f.name},
	}
	f.check(workload.Create(f.ctx, f.Client(), app.Deployment()))
	f.ready("work", 4, 2)
	f.ready("placeholder", 4, 2)
	f.event("Pod", "LaunchRequested", "placeholder-")
	_, err := f.Client().AppsV1().Deployments(f.name).Patch(f.ctx, "work", "application/merge-patch+json",
		[]byte(`{"spec":{"replicas":0}}`), metav1.PatchOptions{})
	f.check(err)
	f.ready("placeholder", 4, 1)
	if grown := f.requestedSizes(); !slices.Equal(grown, []int{1, 2}) {
		t.Errorf("the scale set grew to %v, want 1 for the placeholders, and then 2: %s", grown, f.describeRetirements())
	}
}
