package main

import (
	"bytes"
	"encoding/json"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"

	"github.com/slipway-dev/slipway/internal/placement/placementtest"
	"github.com/slipway-dev/slipway/internal/placement/saved"
	"github.com/slipway-dev/slipway/internal/testing/golden"
	"github.com/slipway-dev/slipway/internal/testing/must"
)

// newTestCluster returns a small cluster: nodes of two kinds, a DaemonSet, an exhausted PDB, pending pods, and a pod with
// the name of a node.
func newTestCluster() *saved.Objects {
	o := &saved.Objects{Time: time.Date(2026, 11, 1, 12, 0, 0, 0, time.UTC)}
	for _, name := range []string{"node-a", "node-b", "node-c", "node-d"} {
		n := placementtest.NewNode(name, "zone-a", 4, 16, 10)
		n.Labels[corev1.LabelInstanceTypeStable] = "general-4"
		o.Nodes = append(o.Nodes, n)
	}
	gpu := placementtest.NewNode("node-gpu", "zone-b", 8, 32, 10)
	gpu.Labels[corev1.LabelInstanceTypeStable] = "gpu-8"
	gpu.Spec.Taints = []corev1.Taint{{Key: "gpu", Value: "only", Effect: corev1.TaintEffectNoSchedule}}
	o.Nodes = append(o.Nodes, gpu)
	agent := placementtest.NewPod("agent", 0, "node-a", 100, 64)
	agent.OwnerReferences[0].Kind = "DaemonSet"
	scratch := placementtest.NewPod("scratch", 0, "node-c", 100, 64)
	scratch.Spec.Volumes = []corev1.Volume{{Name: "tmp", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}}}
	namesake := placementtest.NewPod("namesake", 0, "node-b", 100, 64)
	namesake.Name = "node-a"
	done := placementtest.NewPod("done", 0, "node-b", 100, 64)
	done.Status.Phase = corev1.PodSucceeded
	o.Pods = []*corev1.Pod{
		agent, scratch, namesake, done,
		placementtest.NewPod("web", 0, "node-a", 500, 512), placementtest.NewPod("web", 1, "node-a", 500, 512),
		placementtest.NewPod("db", 0, "node-b", 2000, 4096), placementtest.NewPod("waiting", 0, "", 3800, 1024),
		placementtest.NewPod("batch", 0, "", 3900, 1024), placementtest.NewPod("batch", 1, "", 3900, 1024), placementtest.NewPod("monster", 0, "", 64000, 1024),
	}
	o.PDBs = []*policyv1.PodDisruptionBudget{placementtest.NewPDB("db", 0), placementtest.NewPDB("web", 2)}
	return o
}

func saveTestCluster(t *testing.T) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "office.json")
	saveSnapshot(t, &snapshotFlags{}, path)
	return path
}

// saveSnapshot saves the test cluster as slipway snapshot save does.
func saveSnapshot(t *testing.T, f *snapshotFlags, path string) {
	t.Helper()
	cmd := &cobra.Command{}
	cmd.SetErr(io.Discard)
	must.NoError(t, f.writeSnapshot(cmd, path, newTestCluster()))
}

func TestHashedSnapshotHidesNames(t *testing.T) {
	dir := t.TempDir()
	plain, file, list := saveTestCluster(t), filepath.Join(dir, "hashed.snapshot"), filepath.Join(dir, "names.json")
	saveSnapshot(t, &snapshotFlags{hashNames: true, names: list}, file)
	raw, err := os.ReadFile(file)
	must.NoError(t, err)
	if i := bytes.Index(raw, []byte("node-gpu")); i >= 0 || !bytes.HasPrefix(raw, []byte("slipway.dev/snapshot v1\n")) {
		t.Errorf("the file begins with %q; it shows a name at %d", raw[:24], i)
	}
	raw, err = os.ReadFile(list)
	must.NoError(t, err)
	var names map[string]string
	must.NoError(t, json.Unmarshal(raw, &names))
	var pairs []string
	for hidden, plain := range names {
		pairs = append(pairs, hidden, plain)
	}
	reveal := strings.NewReplacer(pairs...).Replace
	want, err := runOffline(t, "plan", "-o", "json", "--snapshot", plain)
	must.NoError(t, err)
	got, err := runOffline(t, "plan", "-o", "json", "--snapshot", file)
	must.NoError(t, err)
	if reveal(got) != want || strings.Contains(got, "node-gpu") {
		t.Errorf("of the hashed cluster\n%s\nwith its names\n%s\nof the plain one\n%s", got, reveal(got), want)
	}
}

// runOffline runs the command without a kubeconfig.
func runOffline(t *testing.T, args ...string) (string, error) {
	t.Helper()
	t.Setenv("KUBECONFIG", filepath.Join(t.TempDir(), "none"))
	cmd := newRootCommand()
	var out, errs bytes.Buffer
	cmd.SetOut(&out)
	cmd.SetErr(&errs)
	cmd.SetArgs(args)
	err := cmd.ExecuteContext(t.Context())
	return out.String(), err
}

func TestAnswersForSavedCluster(t *testing.T) {
	file := saveTestCluster(t)
	for name, line := range map[string]string{
		"plan":              "plan",
		"plan-wide":         "plan -o wide",
		"plan-json":         "plan -o json",
		"plan-one":          "plan --max 1 --policy LeastLoaded --delete-emptydir-data",
		"why-node":          "why node-b",
		"why-node-yaml":     "why node/node-a -o yaml",
		"why-node-force":    "why node-c --delete-emptydir-data",
		"why-reserved":      "why node-c",
		"why-pending":       "why batch-0",
		"why-unschedulable": "why pod/monster-0",
		"why-running":       "why default/web-0 -o json",
		"why-namesake":      "why pod/default/node-a",
	} {
		t.Run(name, func(t *testing.T) {
			got, err := runOffline(t, append(strings.Fields(line), "--snapshot", file)...)
			must.NoError(t, err)
			golden.Check(t, filepath.Join("testdata", name+".golden"), got)
		})
	}
}

func TestErrorsNameFaultAndRemedy(t *testing.T) {
	file := saveTestCluster(t)
	other := filepath.Join(t.TempDir(), "other.json")
	must.NoError(t, os.WriteFile(other, []byte(`{"kind":"List","items":[]}`), 0o600))
	broken := filepath.Join(t.TempDir(), "broken.json")
	must.NoError(t, os.WriteFile(broken, []byte(`{"nodes":[`), 0o600))
	for line, want := range map[string]string{
		"why node-a --snapshot " + file:         `"node-a" is both a node and a pod of namespace default: want node/node-a or pod/node-a`,
		"why node-x --snapshot " + file:         `"node-x" is neither a node nor a pod of namespace default: for a pod of another namespace`,
		"why web-0 -n shop --snapshot " + file:  `"web-0" is neither a node nor a pod of namespace shop: did you mean default/web-0?`,
		"why shop/web-0 --snapshot " + file:     `no pod "web-0" in namespace shop: did you mean default/web-0?`,
		"why node/node-x --snapshot " + file:    `"node-x" is none of the 5 nodes of the cluster`,
		"why done-0 --snapshot " + file:         "pod default/done-0 is finished (Succeeded)",
		"why a/b/c/d --snapshot " + file:        `"a/b/c/d": want NAME, NAMESPACE/NAME, node/NAME`,
		"why pod/ --snapshot " + file:           `"pod/": contains an empty name`,
		"snapshot save --names x y":             "--names: has no effect without --hash-names",
		"retire n --timeout 1m":                 "--timeout: has no effect without --wait",
		"plan -o xml --snapshot " + file:        `--output: "xml": want json, yaml, wide, name or nothing`,
		"plan --policy Best --snapshot " + file: `--policy: policy "Best" is not known: use one of [LeastDisruption`,
		"plan --snapshot " + other:              "contains no nodes and no pods: want a file of slipway snapshot save",
		"plan --snapshot " + broken:             "broken.json: read the saved cluster: unexpected EOF (want a file of slipway snapshot save)",
		"plan --snapshot nowhere.json":          "--snapshot: open nowhere.json: no such file",
		"plan":                                  `no kubeconfig with a cluster: KUBECONFIG is "`, // the test sets it to a missing file
	} {
		if out, err := runOffline(t, strings.Fields(line)...); err == nil || !strings.Contains(err.Error(), want) || out != "" {
			t.Errorf("slipway %s: printed %q, error %v, want one with %q", line, out, err, want)
		}
	}
}

func TestSnapshotIsWrittenAtomically(t *testing.T) {
	path := saveTestCluster(t)
	before, err := os.ReadFile(path)
	must.NoError(t, err)
	err = replaceFile(path, func(w io.Writer) error {
		_, _ = w.Write([]byte("half of"))
		return os.ErrDeadlineExceeded
	})
	if err == nil {
		t.Fatal("no error")
	}
	after, err := os.ReadFile(path)
	must.NoError(t, err)
	left, err := os.ReadDir(filepath.Dir(path))
	must.NoError(t, err)
	if !bytes.Equal(before, after) || len(left) != 1 {
		t.Errorf("the file has changed, or there are %d files", len(left))
	}
}
