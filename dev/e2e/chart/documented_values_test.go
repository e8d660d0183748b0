package chart_test

import (
	"maps"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/slipway-dev/slipway/dev/testbed"
	"github.com/slipway-dev/slipway/internal/manager"
)

// documentedValues returns the first YAML block below a heading of a page.
func documentedValues(t *testing.T, page, heading string) string {
	t.Helper()
	raw, err := os.ReadFile(filepath.Join(root(t), "docs", page))
	if err != nil {
		t.Fatal(err)
	}
	_, after, _ := strings.Cut(string(raw), heading+"\n")
	_, after, _ = strings.Cut(after, "```yaml\n")
	text, _, found := strings.Cut(after, "```")
	if !found {
		t.Fatalf("docs/%s has no YAML below %s", page, heading)
	}
	return text
}

// readRenderedClouds reads the file of clouds as the manager does, and returns its text.
func readRenderedClouds(t *testing.T, all []*unstructured.Unstructured) string {
	t.Helper()
	text := find[corev1.ConfigMap](t, all, "ConfigMap", "slipway-clouds").Data["clouds.yaml"]
	if _, err := manager.ReadClouds(testbed.WriteTempFile(t, "clouds.yaml", text)); err != nil {
		t.Error(err)
	}
	return text
}

// TestDocumentedOpenStackValuesMountTheirFiles checks that each path in the documented file of clouds is a file of the manager's pod.
func TestDocumentedOpenStackValuesMountTheirFiles(t *testing.T) {
	t.Parallel()
	all := objects(t, manifest(t, slipwayChart, release(slipwayChart, namespace), registry+documentedValues(t, "openstack.md", "### Install it with the chart")))
	if n := kinds(all)["DaemonSet"]; n != 0 {
		t.Errorf("%d DaemonSets of agents, which exit on OpenStack", n)
	}
	spec := find[appsv1.Deployment](t, all, "Deployment", "slipway-manager").Spec.Template.Spec
	folders := map[string]corev1.VolumeSource{}
	for _, m := range spec.Containers[0].VolumeMounts {
		i := slices.IndexFunc(spec.Volumes, func(v corev1.Volume) bool { return v.Name == m.Name })
		folders[m.MountPath] = spec.Volumes[i].VolumeSource
	}
	paths := regexp.MustCompile(`File: (/\S+)`).FindAllStringSubmatch(readRenderedClouds(t, all), -1)
	if len(paths) != 2 {
		t.Errorf("the files are %q, want two", paths)
	}
	for _, match := range paths {
		folder, file := path.Split(match[1])
		source := folders[strings.TrimSuffix(folder, "/")]
		switch {
		case source.Secret != nil && source.Secret.SecretName == "slipway-openstack" && file == "clouds.yaml": // of --from-file
		case source.ConfigMap != nil && find[corev1.ConfigMap](t, all, "ConfigMap", source.ConfigMap.Name).Data[file] != "":
		default:
			t.Errorf("%s is no file of the manager, whose pod has the folders %q", match[1], slices.Sorted(maps.Keys(folders)))
		}
	}
}

// TestDocumentedAzureIdentityReachesTheManager checks what the webhook of workload identity reads: the annotation of the account, the
// label of the pods, and the name of the account, which the federated credential has (https://azure.github.io/azure-workload-identity).
func TestDocumentedAzureIdentityReachesTheManager(t *testing.T) {
	t.Parallel()
	all := objects(t, manifest(t, slipwayChart, release(slipwayChart, namespace), registry+documentedValues(t, "retirement-howto.md", "## Log in to Azure")))
	if text := readRenderedClouds(t, all); !strings.Contains(text, "method: workloadIdentity") {
		t.Errorf("the manager tries other credentials with\n%s", text)
	}
	page, err := os.ReadFile(filepath.Join(root(t), "docs", "retirement-howto.md"))
	if err != nil {
		t.Fatal(err)
	}
	for name, o := range map[string][]*unstructured.Unstructured{"chart": all, "deploy/manager": kustomize(t, "manager")} {
		pod := find[appsv1.Deployment](t, o, "Deployment", "slipway-manager").Spec.Template
		account := find[corev1.ServiceAccount](t, o, "ServiceAccount", pod.Spec.ServiceAccountName)
		if pod.Labels["azure.workload.identity/use"] != "true" {
			t.Errorf("%s: the labels of the pods are %v", name, pod.Labels)
		}
		if want := "--subject system:serviceaccount:" + account.Namespace + ":" + account.Name + " "; !strings.Contains(string(page), want) {
			t.Errorf("%s: the page does not have %s", name, want)
		}
		if id := account.Annotations["azure.workload.identity/client-id"]; name == "chart" && id == "" {
			t.Errorf("the annotations of the account are %v", account.Annotations)
		}
	}
}
