package nodegroup

import (
	"encoding/json"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"github.com/slipway-dev/slipway/internal/placement"
	"github.com/slipway-dev/slipway/internal/placement/snapshot"
)

// Waiting is a Pending pod that only one group could run.
type Waiting struct {
	Pod string `json:"pod"` // namespace/name
	Why string `json:"why"`
	// Unschedulable says that the scheduler has looked for a node and found none.
	Unschedulable bool `json:"unschedulable,omitempty"`
}

// pendingPodSearch finds the Pending pods that only a group could run: those that would fit an empty node of the group, and that
// no node outside of it would take as it is now. That is read simply, and in favour of the nodes:
//
//   - One such pod keeps all the group's idle nodes; how many it takes to run them all is not asked.
//   - An empty node is one of the group's as its labels, its capacity and its own taints make it: a cordon, the taints of
//     the node lifecycle controller and the pods on it do not count.
//   - Of a pod whose place hangs on more than one node's own state (a claim on a volume or a device, affinity to other
//     pods, spread) it is not said that another group could run it.
type pendingPodSearch struct {
	own, others []corev1.Node
	// podsOn gives the pods on a node that hold room there.
	podsOn func(node string) ([]*corev1.Pod, error)

	empty, full *snapshot.Snapshot
	loadedNodes map[string]bool // nodes whose pods are in full
	results     map[string]string
}

// findFirst finds one such pod, the first of them, or none.
func (s *pendingPodSearch) findFirst(pods []*corev1.Pod) ([]Waiting, error) {
	s.results, s.loadedNodes = map[string]string{}, map[string]bool{}
	for _, p := range pods {
		why, err := s.whyOnlyGroup(p)
		if err != nil {
			return nil, err
		}
		if why != "" {
			return []Waiting{{Pod: p.Namespace + "/" + p.Name, Why: why, Unschedulable: isUnschedulable(p)}}, nil
		}
	}
	return nil, nil
}

// isUnschedulable reports a pod for which the scheduler has found no node.
func isUnschedulable(p *corev1.Pod) bool {
	for i := range p.Status.Conditions {
		if c := &p.Status.Conditions[i]; c.Type == corev1.PodScheduled {
			return c.Status == corev1.ConditionFalse && c.Reason == corev1.PodReasonUnschedulable
		}
	}
	return false
}

// whyOnlyGroup says why a pod is one that only the group could run; empty is that it is not.
func (s *pendingPodSearch) whyOnlyGroup(p *corev1.Pod) (string, error) {
	bare, open := toStandalonePod(p)
	raw, err := json.Marshal(struct {
		Spec   corev1.PodSpec
		Open   string
		Labels map[string]string
	}{bare.Spec, open, bare.Labels})
	if err != nil {
		return "", fmt.Errorf("pod %s/%s: %w", p.Namespace, p.Name, err)
	}
	if why, known := s.results[string(raw)]; known {
		return why, nil
	}
	why, err := s.explainFit(bare, open)
	s.results[string(raw)] = why
	return why, err
}

func (s *pendingPodSearch) explainFit(p *corev1.Pod, open string) (string, error) {
	if err := s.buildSnapshots(); err != nil {
		return "", err
	}
	fits := func(among *snapshot.Snapshot, nodes []corev1.Node) (int, error) {
		for i := range nodes {
			v, err := among.Judge(p, nodes[i].Name)
			if err != nil || v.Outcome != placement.Blocked {
				return i, err
			}
		}
		return -1, nil
	}
	if at, err := fits(s.empty, s.own); err != nil || at < 0 {
		return "", err
	}
	if open != "" {
		return open + ", so that no other node is known to take it", nil
	}
	for rest := s.others; ; {
		at, err := fits(s.empty, rest)
		if err != nil {
			return "", err
		}
		if at < 0 {
			return "no other node takes it now", nil
		}
		node := &rest[at]
		v, err := s.checkFullNode(p, node)
		if err != nil || v.Outcome == placement.Fits {
			return "", err
		}
		rest = rest[at+1:]
	}
}

// checkFullNode judges a pod on a node with the pods that are on it.
func (s *pendingPodSearch) checkFullNode(p *corev1.Pod, n *corev1.Node) (placement.Verdict, error) {
	if !s.loadedNodes[n.Name] {
		pods, err := s.podsOn(n.Name)
		if err != nil {
			return placement.Verdict{}, err
		}
		if err := s.full.SetNode(n); err != nil {
			return placement.Verdict{}, fmt.Errorf("node %s: %w", n.Name, err)
		}
		for _, p := range pods {
			if err := s.full.SetPod(p); err != nil {
				return placement.Verdict{}, fmt.Errorf("pod %s/%s: %w", p.Namespace, p.Name, err)
			}
		}
		s.loadedNodes[n.Name] = true
	}
	return s.full.Judge(p, n.Name)
}

// buildSnapshots makes the snapshot of all nodes without a pod on them: the group's as they would be new, the others as they
// are.
func (s *pendingPodSearch) buildSnapshots() error {
	if s.empty != nil {
		return nil
	}
	s.empty, s.full = snapshot.New(), snapshot.New()
	for i := range s.own {
		if err := s.empty.SetNode(toNewNode(&s.own[i])); err != nil {
			return fmt.Errorf("node %s: %w", s.own[i].Name, err)
		}
	}
	for i := range s.others {
		if err := s.empty.SetNode(&s.others[i]); err != nil {
			return fmt.Errorf("node %s: %w", s.others[i].Name, err)
		}
	}
	return nil
}

// toNewNode is a node without what passes: the cordon, and the taints that say how it is just now.
func toNewNode(n *corev1.Node) *corev1.Node {
	fresh := n.DeepCopy()
	fresh.Spec.Unschedulable = false
	fresh.Spec.Taints = slices.DeleteFunc(fresh.Spec.Taints, func(t corev1.Taint) bool {
		return slices.Contains([]string{
			corev1.TaintNodeUnschedulable, corev1.TaintNodeNotReady, corev1.TaintNodeUnreachable, corev1.TaintNodeOutOfService,
			corev1.TaintNodeMemoryPressure, corev1.TaintNodeDiskPressure, corev1.TaintNodePIDPressure,
			corev1.TaintNodeNetworkUnavailable, "node.cloudprovider.kubernetes.io/uninitialized",
		}, t.Key)
	})
	return fresh
}

// toStandalonePod is a pod without what can only be judged with other objects at hand, and what that was.
func toStandalonePod(p *corev1.Pod) (bare *corev1.Pod, open string) {
	bare = &corev1.Pod{Spec: *p.Spec.DeepCopy()}
	bare.Name, bare.Namespace, bare.Labels = "pod", p.Namespace, p.Labels
	if a := bare.Spec.Affinity; a != nil && (a.PodAffinity != nil || a.PodAntiAffinity != nil) {
		a.PodAffinity, a.PodAntiAffinity = nil, nil
		open = "its place hangs on other pods"
	}
	if len(bare.Spec.TopologySpreadConstraints) > 0 {
		bare.Spec.TopologySpreadConstraints = nil
		open = "its place hangs on other pods"
	}
	if len(bare.Spec.ResourceClaims) > 0 {
		bare.Spec.ResourceClaims = nil
		for _, containers := range [][]corev1.Container{bare.Spec.InitContainers, bare.Spec.Containers} {
			for i := range containers {
				containers[i].Resources.Claims = nil
			}
		}
		open = "it claims a device"
	}
	if slices.ContainsFunc(bare.Spec.Volumes, func(v corev1.Volume) bool { return v.PersistentVolumeClaim != nil || v.Ephemeral != nil }) {
		open = "it claims a volume"
	}
	bare.Spec.Volumes = nil
	return bare, open
}
