package doctor

import (
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
)

const (
	// firstReadTimeout is how long the first read of the notices may take. Azure needs up to two minutes to enable
	// the service (Scheduled Events, "Endpoint discovery"), and the agent needs some time to become ready.
	firstReadTimeout = 3 * time.Minute
	// maxSilence is the time without a successful read after which an agent counts as disconnected. It reads about
	// every second, so a few lost requests do not matter.
	maxSilence = 2 * time.Minute
)

const metadataRemedy = "read the agent's log on the node; usual causes are a network policy, an egress proxy, or a CNI rule that blocks " +
	"169.254.169.254 for pods; hostNetwork: true with dnsPolicy: ClusterFirstWithHostNet avoids them"

// isAzureNode reports whether the node runs on Azure.
func isAzureNode(n *corev1.Node) bool { return strings.HasPrefix(n.Spec.ProviderID, "azure://") }

// metadataTests maps the scheme of a node's provider ID to a command that tests the cloud's metadata service. Nodes with
// other schemes have no metadata service that the agent reads.
var metadataTests = map[string]string{
	"azure": "curl -H Metadata:true --noproxy '*' 'http://169.254.169.254/metadata/scheduledevents?api-version=2020-07-01'",
	"aws":   "curl -X PUT -H 'X-aws-ec2-metadata-token-ttl-seconds: 60' --noproxy '*' http://169.254.169.254/latest/api/token",
	"gce":   "curl -H Metadata-Flavor:Google --noproxy '*' http://169.254.169.254/computeMetadata/v1/instance/maintenance-event",
}

// findMetadataTest returns the command that tests the metadata service of the node's cloud.
func findMetadataTest(n *corev1.Node) (command string, found bool) {
	scheme, _, _ := strings.Cut(n.Spec.ProviderID, "://")
	command, found = metadataTests[scheme]
	return command, found
}

// checkMetadataEndpoint reports for each node whether its agent can reach the metadata service. Only the agent on the
// node can test this connection. An agent with a readiness probe becomes ready after its first successful read of the
// notices. If the doctor read the agent's metrics, they give the time of the last read.
func checkMetadataEndpoint(f *Facts) []Finding {
	guards := f.agentPodsByNode()
	var found []Finding
	for _, n := range f.Nodes {
		test, hasService := findMetadataTest(n)
		if !hasService || isVirtualNode(n) {
			continue
		}
		if finding, ok := f.checkAgentMetadataAccess(guards[n.Name], test); ok {
			finding.Object = newNodeObject(n)
			found = append(found, finding)
		}
	}
	return found
}

func (f *Facts) checkAgentMetadataAccess(pods []*corev1.Pod, test string) (finding Finding, found bool) {
	pod := findRunningPod(pods)
	if pod == nil {
		return Finding{
			Severity: Note,
			Message:  "it is unknown whether it reaches the metadata service: no agent runs on it",
			Remedy:   "install the agent, or test from a pod on the node: " + test,
		}, true
	}
	told, asked := f.LastReads[Key{pod.Namespace, pod.Name}]
	if asked {
		if told.Err != nil {
			return Finding{
				Severity: Warning, Message: fmt.Sprintf("the metrics of its agent could not be read: %v", told.Err),
				Remedy: "check that the agents listen on the pod's address (--listen=:9818) and that the API server can reach it",
			}, true
		}
		if !told.At.IsZero() {
			return Finding{
				Severity: Problem, Remedy: metadataRemedy,
				Message: fmt.Sprintf("its agent has not read the notices%s since %s", told.ofSource(), told.At.UTC().Format(time.RFC3339)),
			}, f.serverTime().Sub(told.At) > maxSilence
		}
	}
	if !asked && !hasReadinessProbe(pod) {
		return Finding{
			Severity: Note, Message: "it is unknown whether it reaches the metadata service: its agent pod has no readiness probe",
			Remedy: "use --ask-agents, or add a readinessProbe for /readyz to the agent's container",
		}, true
	}
	if isPodReady(pod) && hasReadinessProbe(pod) && told.Source == "" {
		return Finding{}, false
	}
	if pod.Status.StartTime != nil && f.serverTime().Sub(pod.Status.StartTime.Time) < firstReadTimeout {
		return Finding{
			Severity: Note, Message: "its agent has just started and has not read the notices yet; the first read can take 2 minutes",
			Remedy: "run doctor again in 3 minutes",
		}, true
	}
	cause := ": it cannot reach the metadata service or the API server"
	if told.Source != "" {
		cause = ": its log says why"
	}
	return Finding{
		Severity: Problem, Remedy: metadataRemedy,
		Message: "its agent runs and has not read the notices" + told.ofSource() + " since it started" + cause,
	}, true
}

func findRunningPod(pods []*corev1.Pod) *corev1.Pod {
	for _, p := range pods {
		if p.Status.Phase == corev1.PodRunning && p.DeletionTimestamp == nil {
			return p
		}
	}
	return nil
}

// hasReadinessProbe reports whether a pod has a readiness probe. Without a probe, a pod is ready as soon as it runs.
func hasReadinessProbe(p *corev1.Pod) bool {
	return slices.ContainsFunc(p.Spec.Containers, func(c corev1.Container) bool { return c.ReadinessProbe != nil })
}

func isPodReady(p *corev1.Pod) bool {
	for _, c := range p.Status.Conditions {
		if c.Type == corev1.PodReady {
			return c.Status == corev1.ConditionTrue
		}
	}
	return false
}
