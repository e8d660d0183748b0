package chart_test

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
)

// TestTheAgentsPolicyIsOfThoseOnThePodNetwork checks each DaemonSet. Either the policy selects it, or it is on its
// nodes' network.
func TestTheAgentsPolicyIsOfThoseOnThePodNetwork(t *testing.T) {
	t.Parallel()
	for values, want := range map[string][]string{
		"{}":                         {"slipway-agent"},
		"{hostNetwork: true}":        nil,
		"{windows: {enabled: true}}": {"slipway-agent"},
		"{linux: {enabled: false}, windows: {enabled: true}}":                     nil,
		"{hostNetwork: true, windows: {enabled: true}}":                           nil,
		"{hostNetwork: true, windows: {enabled: true, hostProcess: false}}":       {"slipway-agent-windows"},
		"{windows: {enabled: true, hostProcess: false}}":                          {"slipway-agent", "slipway-agent-windows"},
		"{linux: {enabled: false}, windows: {enabled: true, hostProcess: false}}": {"slipway-agent-windows"},
	} {
		all := objects(t, manifest(t, slipwayChart, release(slipwayChart, namespace),
			"image: {registry: registry.example.com/slipway}\nnetworkPolicy: {enabled: true}\nagent: "+values))
		var kept []string
		for _, o := range all {
			if o.GetKind() == "DaemonSet" && keptByPolicy(t, all, o.GetName()) {
				kept = append(kept, o.GetName())
			}
		}
		slices.Sort(kept)
		if !slices.Equal(kept, want) {
			t.Errorf("agent: %s: the policy is of the pods of %q, want %q", values, kept, want)
		}
	}
}

// keptByPolicy reports whether the agents' policy exists and selects the pods of a DaemonSet.
func keptByPolicy(t *testing.T, all []*unstructured.Unstructured, set string) bool {
	t.Helper()
	if !slices.Contains(names(all), "NetworkPolicy/slipway-agent") {
		return false
	}
	policy := find[networkingv1.NetworkPolicy](t, all, "NetworkPolicy", "slipway-agent")
	selector, err := metav1.LabelSelectorAsSelector(&policy.Spec.PodSelector)
	if err != nil {
		t.Fatal(err)
	}
	return selector.Matches(labels.Set(find[appsv1.DaemonSet](t, all, "DaemonSet", set).Spec.Template.Labels))
}

// TestTheDocumentedPolicyReachesOpenStack checks the default ports of OpenStack's services.
func TestTheDocumentedPolicyReachesOpenStack(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile(filepath.Join(root(t), "docs", "openstack.md"))
	if err != nil {
		t.Fatal(err)
	}
	_, after, _ := strings.Cut(string(page), "### NetworkPolicy\n")
	_, after, _ = strings.Cut(after, "```yaml\n")
	text, _, found := strings.Cut(after, "```")
	if !found {
		t.Fatal("the page has no values of a NetworkPolicy")
	}
	all := objects(t, manifest(t, slipwayChart, release(slipwayChart, namespace), "image: {registry: registry.example.com/slipway}\n"+frontOf+"}\n"+text))
	for _, part := range []string{"manager", "cloudpool"} {
		reached := map[int]bool{}
		for _, rule := range find[networkingv1.NetworkPolicy](t, all, "NetworkPolicy", "slipway-"+part).Spec.Egress {
			for _, port := range rule.Ports {
				reached[port.Port.IntValue()] = true
			}
		}
		for _, port := range []int{443, 5000, 8774, 9292, 9696} {
			if !reached[port] {
				t.Errorf("%s: port %d is not among %v", part, port, reached)
			}
		}
	}
}

// TestTheHandlersNotesTellOfAPolicyThatHolds checks the notes about a policy in force. The policy may block a webhook.
func TestTheHandlersNotesTellOfAPolicyThatHolds(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"": "",
		"networkPolicy: {enabled: true}\nhostNetwork: true":                                "",
		"networkPolicy: {enabled: true, additionalEgressRules: [{ports: [{port: 9093}]}]}": "",
		"networkPolicy: {enabled: true}":                                                   "handlers reach port 443 alone, and no webhook on another",
		"networkPolicy: {enabled: true, controlPlaneIP: 203.0.113.7}":                      "handlers reach 203.0.113.7 on port 443 alone, and no webhook",
		"networkPolicy: {enabled: true}\nnodeSelector: {kubernetes.io/os: windows}":        "",
	} {
		files, err := templates(t, load(t, handlerChart), release(handlerChart, "kube-system"), values(t, image+text))
		if err != nil {
			t.Fatal(err)
		}
		notes := files[handlerChart+"/templates/NOTES.txt"]
		if told := strings.Contains(notes, "handlers reach"); told != (want != "") || !strings.Contains(notes, want) {
			t.Errorf("%q: the notes are %q, want %q among them", text, notes, want)
		}
	}
}
