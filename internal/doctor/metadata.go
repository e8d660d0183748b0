package doctor

import (
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
)

const (
	// firstAnswer is how long Azure may take to answer the first question for notices, while it turns the service on
	// (Scheduled Events, "Endpoint discovery": up to two minutes), and some more for the agent to get ready.
	firstAnswer = 3 * time.Minute
	// silence is after how long without an answer an agent is cut off: it asks every second or so, and a few lost
	// requests mean nothing.
	silence = 2 * time.Minute
)

const metadataRemedy = "see the agent's log on the node; a network policy, an egress proxy, or a rule of the CNI that keeps pods from " +
	"169.254.169.254 is the usual cause, and hostNetwork: true with dnsPolicy: ClusterFirstWithHostNet a way round it"

// onAzure tells the nodes whose machines have a metadata service that the agent asks.
func onAzure(n *corev1.Node) bool { return strings.HasPrefix(n.Spec.ProviderID, "azure://") }

// metadataEndpoint says of each node what can be known of its way to the metadata service. Nobody outside the node can
// try: what counts is what the agent there says. It is ready from when it has read the notices once since it started, so
// that readiness says that there was a way then, where a probe asks for it; its metrics, where they were asked for, say when
// it last had one.
func metadataEndpoint(f *Facts) []Finding {
	guards := f.guards()
	var found []Finding
	for _, n := range f.Nodes {
		if !onAzure(n) || machineless(n) {
			continue
		}
		if finding, ok := f.wayFrom(guards[n.Name]); ok {
			finding.Object = nodeObject(n)
			found = append(found, finding)
		}
	}
	return found
}

func (f *Facts) wayFrom(pods []*corev1.Pod) (Finding, bool) {
	pod := runningOf(pods)
	if pod == nil {
		return Finding{
			Severity: Note,
			Message:  "whether it reaches the metadata service cannot be seen from outside: no agent runs on it that could tell",
			Remedy: "install the agent, or ask from a pod on the node: curl -H Metadata:true --noproxy '*' " +
				"'http://169.254.169.254/metadata/scheduledevents?api-version=2020-07-01'",
		}, true
	}
	told, asked := f.LastRead[Key{pod.Namespace, pod.Name}]
	if asked {
		if told.Err != nil {
			return Finding{
				Severity: Warning, Message: fmt.Sprintf("its agent could not be asked for its metrics: %v", told.Err),
				Remedy: "see that the agents listen on the pod's address (--listen=:9818) and that the API server may reach pods there",
			}, true
		}
		if !told.At.IsZero() {
			return Finding{
				Severity: Problem, Remedy: metadataRemedy,
				Message: fmt.Sprintf("its agent has not been able to read the notices since %s", told.At.UTC().Format(time.RFC3339)),
			}, f.now().Sub(told.At) > silence
		}
	}
	if !asked && !probed(pod) {
		return Finding{
			Severity: Note, Message: "whether it reaches the metadata service cannot be seen: its agent's pod has no readiness probe",
			Remedy: "ask the agents with --ask-agents, or give their container a readinessProbe for /readyz",
		}, true
	}
	if podReady(pod) && probed(pod) {
		return Finding{}, false
	}
	if pod.Status.StartTime != nil && f.now().Sub(pod.Status.StartTime.Time) < firstAnswer {
		return Finding{
			Severity: Note, Message: "its agent has just started and not read the notices yet; the first answer may take two minutes",
			Remedy: "look again in three minutes",
		}, true
	}
	return Finding{
		Severity: Problem, Remedy: metadataRemedy,
		Message: "its agent runs and has not read the notices since it started: the metadata service is out of its reach, or the API server",
	}, true
}

func runningOf(pods []*corev1.Pod) *corev1.Pod {
	for _, p := range pods {
		if p.Status.Phase == corev1.PodRunning && p.DeletionTimestamp == nil {
			return p
		}
	}
	return nil
}

// probed reports that the pod is ready when the process in it says so, and not as soon as that runs.
func probed(p *corev1.Pod) bool {
	return slices.ContainsFunc(p.Spec.Containers, func(c corev1.Container) bool { return c.ReadinessProbe != nil })
}

func podReady(p *corev1.Pod) bool {
	for _, c := range p.Status.Conditions {
		if c.Type == corev1.PodReady {
			return c.Status == corev1.ConditionTrue
		}
	}
	return false
}
