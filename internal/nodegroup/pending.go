package nodegroup

import (
	"encoding/json"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"github.com/slipway-dev/slipway/internal/placement"
	"github.com/slipway-dev/slipway/internal/placement/snapshot"
)

// GroupOnlyPod is a pending pod that only nodes of one group can run.
type GroupOnlyPod struct {
	Pod    string `json:"pod"` // namespace/name
	Reason string `json:"reason"`
	// Unschedulable means that the scheduler has found no node for it.
	Unschedulable bool `json:"unschedulable,omitempty"`
}

// pendingPodSearch finds the Pending pods that only this group could run. They would fit on an empty node of the group,
// and on no current node outside of it. The check is simple, and prefers to keep nodes:
//
//   - One such pod keeps all idle nodes of the group, however few of them would be enough.
//   - An empty node of the group has the group's labels, capacity and own taints. Cordons, taints of the node lifecycle
//     controller and pods on the node do not count.
//   - If the placement of a pod depends on more than one node, no other group is assumed to be able to run it. Examples are a
//     volume claim, a device claim, affinity to other pods, and spread constraints.
type pendingPodSearch struct {
	own, others []corev1.Node
	// podsOn returns the pods that use resources on a node.
	podsOn func(node string) ([]*corev1.Pod, error)

	empty, full *snapshot.Snapshot
	loadedNodes map[string]bool // nodes with their pods in full
	results     map[string]string
}

// findFirstGroupOnlyPod returns the first of the pods that only nodes of this group can run. The result is empty if
// there is none.
func (s *pendingPodSearch) findFirstGroupOnlyPod(pods []*corev1.Pod) ([]GroupOnlyPod, error) {
	s.results, s.loadedNodes = map[string]string{}, map[string]bool{}
	for _, p := range pods {
		why, err := s.whyOnlyGroup(p)
		if err != nil {
			return nil, err
		}
		if why != "" {
			return []GroupOnlyPod{{Pod: p.Namespace + "/" + p.Name, Reason: why, Unschedulable: isUnschedulable(p)}}, nil
		}
	}
	return nil, nil
}

// isUnschedulable reports whether the scheduler has tried to place the pod and found no node.
func isUnschedulable(p *corev1.Pod) bool {
	for i := range p.Status.Conditions {
		if c := &p.Status.Conditions[i]; c.Type == corev1.PodScheduled {
			return c.Status == corev1.ConditionFalse && c.Reason == corev1.PodReasonUnschedulable
		}
	}
	return false
}

// whyOnlyGroup returns why only nodes of this group can run the pod. It returns "" if other nodes can run it, or if
// none of the group can.
func (s *pendingPodSearch) whyOnlyGroup(p *corev1.Pod) (why string, err error) {
	bare, open := toStandalonePod(p)
	raw, err := json.Marshal(struct {
		Spec   corev1.PodSpec
		Open   string
		Labels map[string]string
	}{bare.Spec, open, bare.Labels})
	if err != nil {
		return "", fmt.Errorf("pod %s/%s: %w", p.Namespace, p.Name, err)
	}
	if earlier, known := s.results[string(raw)]; known {
		return earlier, nil
	}
	why, err = s.explainOnlyGroupFits(bare, open)
	s.results[string(raw)] = why
	return why, err
}

func (s *pendingPodSearch) explainOnlyGroupFits(p *corev1.Pod, droppedDependency string) (string, error) {
	if err := s.buildSnapshotsOnce(); err != nil {
		return "", err
	}
	fits := func(among *snapshot.Snapshot, nodes []corev1.Node) (int, error) {
		for i := range nodes {
			v, err := among.JudgeNewPod(p, nodes[i].Name)
			if err != nil || v.Outcome != placement.Blocked {
				return i, err
			}
		}
		return -1, nil
	}
	if at, err := fits(s.empty, s.own); err != nil || at < 0 {
		return "", err
	}
	if droppedDependency != "" {
		return droppedDependency + ": whether another node would take it is unknown", nil
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
		v, err := s.judgeOnOccupiedNode(p, node)
		if err != nil || v.Outcome == placement.Fits {
			return "", err
		}
		rest = rest[at+1:]
	}
}

// judgeOnOccupiedNode checks whether a pod fits on a node, beside the pods that run there now.
func (s *pendingPodSearch) judgeOnOccupiedNode(p *corev1.Pod, n *corev1.Node) (placement.Verdict, error) {
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
	return s.full.JudgeNewPod(p, n.Name)
}

// buildSnapshotsOnce builds a snapshot of all nodes without their pods, unless that was done before. The group's nodes
// are in it without their temporary state, as if they were new.
func (s *pendingPodSearch) buildSnapshotsOnce() error {
	if s.empty != nil {
		return nil
	}
	s.empty, s.full = snapshot.New(), snapshot.New()
	for i := range s.own {
		if err := s.empty.SetNode(withoutTemporaryState(&s.own[i])); err != nil {
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

// withoutTemporaryState returns a copy of the node without its cordon and without taints for its current condition,
// such as not-ready.
func withoutTemporaryState(n *corev1.Node) *corev1.Node {
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

// toStandalonePod returns a copy of the pod without requirements that depend on other objects, such as volumes. The
// text open names such a requirement; it is "" if there was none.
func toStandalonePod(p *corev1.Pod) (bare *corev1.Pod, droppedDependency string) {
	bare = &corev1.Pod{Spec: *p.Spec.DeepCopy()}
	bare.Name, bare.Namespace, bare.Labels = "pod", p.Namespace, p.Labels
	if a := bare.Spec.Affinity; a != nil && (a.PodAffinity != nil || a.PodAntiAffinity != nil) {
		a.PodAffinity, a.PodAntiAffinity = nil, nil
		droppedDependency = "its placement depends on other pods"
	}
	if len(bare.Spec.TopologySpreadConstraints) > 0 {
		bare.Spec.TopologySpreadConstraints = nil
		droppedDependency = "its placement depends on other pods"
	}
	if len(bare.Spec.ResourceClaims) > 0 {
		bare.Spec.ResourceClaims = nil
		for _, containers := range [][]corev1.Container{bare.Spec.InitContainers, bare.Spec.Containers} {
			for i := range containers {
				containers[i].Resources.Claims = nil
			}
		}
		droppedDependency = "it claims a device"
	}
	if slices.ContainsFunc(bare.Spec.Volumes, func(v corev1.Volume) bool { return v.PersistentVolumeClaim != nil || v.Ephemeral != nil }) {
		droppedDependency = "it claims a volume"
	}
	bare.Spec.Volumes = nil
	return bare, droppedDependency
}
