package chart_test

import (
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
)

// TestAgentNetworkPolicySelectsPodNetworkOnly checks each DaemonSet. Either the policy selects it, or it is on its
// nodes' network.
func TestAgentNetworkPolicySelectsPodNetworkOnly(t *testing.T) {
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
			registry+"networkPolicy: {enabled: true}\nagent: "+values))
		var isRefusedByPolicy []string
		for _, o := range all {
			if o.GetKind() == "DaemonSet" && isSelectedByPolicy(t, all, o.GetName()) {
				isRefusedByPolicy = append(isRefusedByPolicy, o.GetName())
			}
		}
		slices.Sort(isRefusedByPolicy)
		if !slices.Equal(isRefusedByPolicy, want) {
			t.Errorf("agent: %s: the policy selects the pods of %q, want %q", values, isRefusedByPolicy, want)
		}
	}
}

// isSelectedByPolicy reports whether the agents' policy exists and selects the pods of a DaemonSet.
func isSelectedByPolicy(t *testing.T, all []*unstructured.Unstructured, set string) bool {
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

// TestDocumentedNetworkPolicyReachesOpenStack checks the default ports of OpenStack's services.
func TestDocumentedNetworkPolicyReachesOpenStack(t *testing.T) {
	t.Parallel()
	text := documentedValues(t, "openstack.md", "### NetworkPolicy")
	all := objects(t, manifest(t, slipwayChart, release(slipwayChart, namespace), registry+cloudpoolValues+"}\n"+text))
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

// TestHandlerPolicyAllowsOneAddressOfTheControlPlane checks the prefix of the address. A /32 of IPv6 has 2^96 addresses.
func TestHandlerPolicyAllowsOneAddressOfTheControlPlane(t *testing.T) {
	t.Parallel()
	for address, want := range map[string]string{"203.0.113.7": "203.0.113.7/32", "2001:db8::7": "2001:db8::7/128"} {
		all := objects(t, manifest(t, handlerChart, release(handlerChart, "kube-system"), handlerImage+"networkPolicy: {enabled: true, controlPlaneIP: '"+address+"'}"))
		var got []string
		for _, rule := range find[networkingv1.NetworkPolicy](t, all, "NetworkPolicy", handlerChart).Spec.Egress {
			for _, to := range rule.To {
				if rule.Ports[0].Port.IntValue() == 443 {
					got = append(got, to.IPBlock.CIDR)
				}
			}
		}
		if !slices.Equal(got, []string{want}) {
			t.Errorf("%s: port 443 of %q is allowed, want %s", address, got, want)
		}
	}
}

// TestHandlerNotesDescribeNetworkPolicy checks the notes about a policy in force. The policy may block a webhook.
func TestHandlerNotesDescribeNetworkPolicy(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"": "",
		"networkPolicy: {enabled: true}\nhostNetwork: true":                                "",
		"networkPolicy: {enabled: true, additionalEgressRules: [{ports: [{port: 9093}]}]}": "",
		"networkPolicy: {enabled: true}":                                                   "handlers reach port 443 alone, and no webhook on another",
		"networkPolicy: {enabled: true, controlPlaneIP: 203.0.113.7}":                      "handlers reach 203.0.113.7 on port 443 alone, and no webhook",
		"networkPolicy: {enabled: true}\nnodeSelector: {kubernetes.io/os: windows}":        "",
	} {
		files, err := templates(t, load(t, handlerChart), release(handlerChart, "kube-system"), values(t, handlerImage+text))
		if err != nil {
			t.Fatal(err)
		}
		notes := files[handlerChart+"/templates/NOTES.txt"]
		if told := strings.Contains(notes, "handlers reach"); told != (want != "") || !strings.Contains(notes, want) {
			t.Errorf("%q: the notes are %q, want %q", text, notes, want)
		}
	}
}
