// Package node decides whether a node may be retired, whether it counts as available, and whether it can receive pods.
// Its rules are pure functions of facts. Adapters in other packages read the facts from the Node.
package node

import (
	"strings"
	"time"

	"github.com/slipway-dev/slipway/internal/drainability"
)

// Facts holds everything that the rules of this package read about a node.
type Facts struct {
	// RemovedBy names the other tools that are removing the node. Taints set by Slipway do not count.
	RemovedBy []string
	// BeingRemovedMark is why the node is being removed, by its annotation in a snapshot; empty for none.
	BeingRemovedMark string
	// ControlPlane is the label, taint or pod that makes the node part of the control plane; empty for none.
	ControlPlane string
	Protections  []drainability.Protection
	ReadyStatus  ReadyStatus
	// Deleting is true if the Node has a deletion time, which a retirement sets too. Virtual is true if no instance is
	// behind the node.
	Deleting, Unschedulable, Virtual bool
}

// ReadyStatus is the status of the condition Ready. A missing condition is Unknown.
type ReadyStatus uint8

const (
	ReadyUnknown ReadyStatus = iota
	ReadyFalse
	ReadyTrue
)

// APIServerMark is the value of Facts.ControlPlane for a node with a static API server pod. Some distributions set no
// label on control plane nodes.
const APIServerMark = "pod kube-apiserver"

var controlPlaneMarks = [...]string{"node-role.kubernetes.io/control-plane", "node-role.kubernetes.io/master"}

// Input has the values that an adapter reads from a Node.
type Input struct {
	Labels, Annotations map[string]string
	Created             time.Time
	RemovedBy           []string
	// HasTaint reports whether the node has a taint with this key.
	HasTaint func(key string) bool
	// ReadyStatus is the status string of the condition Ready.
	ReadyStatus             string
	Deleting, Unschedulable bool
}

// NewFacts derives the facts from the input.
func NewFacts(in Input) Facts {
	f := Facts{
		RemovedBy: in.RemovedBy, Deleting: in.Deleting, Unschedulable: in.Unschedulable,
		ControlPlane:     FindControlPlaneMark(in.Labels, in.HasTaint),
		Virtual:          in.Labels["type"] == "virtual-kubelet" || in.Labels["eks.amazonaws.com/compute-type"] == "fargate",
		Protections:      drainability.NodeProtections(in.Annotations, in.Created),
		BeingRemovedMark: in.Annotations[drainability.BeingRemovedMark],
	}
	switch in.ReadyStatus {
	case "True":
		f.ReadyStatus = ReadyTrue
	case "False":
		f.ReadyStatus = ReadyFalse
	}
	return f
}

// FindControlPlaneMark returns the label or taint that makes a node part of the control plane, for example "taint
// node-role.kubernetes.io/control-plane", or "" for none.
func FindControlPlaneMark(labels map[string]string, hasTaint func(key string) bool) string {
	for _, mark := range controlPlaneMarks {
		if _, ok := labels[mark]; ok {
			return "label " + mark
		} else if hasTaint(mark) {
			return "taint " + mark
		}
	}
	return ""
}

// IsAPIServerPod reports whether the pod is a static API server pod. A node with such a pod belongs to the control
// plane, even without a label.
func IsAPIServerPod(namespace, name, nodeName string, labels map[string]string) bool {
	return namespace == "kube-system" && nodeName != "" &&
		(labels["component"] == "kube-apiserver" || name == "kube-apiserver-"+nodeName)
}

// CanReceivePods reports whether pods may be placed on the node. A cordon alone does not make it false.
func (f *Facts) CanReceivePods() bool {
	return f.ReadyStatus == ReadyTrue && len(f.RemovedBy) == 0 && !f.Deleting && f.BeingRemovedMark == "" && f.ControlPlane == "" && !f.Virtual
}

// UnavailableReason returns why a disruption budget counts the node as unavailable, or "" if the node is available. The
// result leaving is true if the node is being removed. Such a node also does not count towards the minimum size of its
// group.
func (f *Facts) UnavailableReason(retiring bool) (reason string, leaving bool) {
	switch {
	case retiring:
		return "is being retired", true
	case f.Deleting:
		return "is being deleted", true
	case len(f.RemovedBy) > 0:
		return "is being removed by " + strings.Join(f.RemovedBy, ", "), true
	case f.ReadyStatus != ReadyTrue:
		return "is not Ready", false
	case f.Unschedulable:
		return "is cordoned", false
	}
	return "", false
}
