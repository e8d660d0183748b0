// Package node decides whether a node may be retired, whether it counts as available, and whether pods may be placed on
// it. Its rules are pure functions of facts that adapters read from the Node.
package node

import (
	"strings"
	"time"

	"github.com/slipway-dev/slipway/internal/drainability"
)

// Facts is the input of the rules.
type Facts struct {
	// RemovedBy names the other tools that are removing the node. Taints set by Slipway do not count.
	RemovedBy []string
	// ControlPlane is the label, taint or pod that makes the node part of the control plane; empty for none.
	ControlPlane string
	Protections  []drainability.Protection
	Ready        Ready
	// Deleting is true if the Node has a deletion time, which a retirement sets too. Virtual is true if no instance is
	// behind the node.
	Deleting, Unschedulable, Virtual bool
}

// Ready is the status of the condition Ready. A missing condition is Unknown.
type Ready uint8

const (
	Unknown Ready = iota
	False
	True
)

// APIServer is the ControlPlane mark of a node with a static API server pod. Some distributions set no label.
const APIServer = "pod kube-apiserver"

var controlPlaneMarks = [...]string{"node-role.kubernetes.io/control-plane", "node-role.kubernetes.io/master"}

// Input is what adapters read from a Node.
type Input struct {
	Labels, Annotations map[string]string
	Created             time.Time
	RemovedBy           []string
	// Tainted reports whether the node has a taint with this key.
	Tainted func(key string) bool
	// Ready is the status string of the condition Ready.
	Ready                   string
	Deleting, Unschedulable bool
}

// FactsOf derives the facts from the input.
func FactsOf(in Input) Facts {
	f := Facts{
		RemovedBy: in.RemovedBy, Deleting: in.Deleting, Unschedulable: in.Unschedulable,
		Virtual:     in.Labels["type"] == "virtual-kubelet",
		Protections: drainability.OfNode(in.Annotations, in.Created),
	}
	for _, mark := range controlPlaneMarks {
		if _, ok := in.Labels[mark]; ok {
			f.ControlPlane = "label " + mark
			break
		} else if in.Tainted(mark) {
			f.ControlPlane = "taint " + mark
			break
		}
	}
	switch in.Ready {
	case "True":
		f.Ready = True
	case "False":
		f.Ready = False
	}
	return f
}

// IsAPIServer reports whether the pod is a static API server pod. Its node is part of the control plane, even without a
// label.
func IsAPIServer(namespace, name, nodeName string, labels map[string]string) bool {
	return namespace == "kube-system" && nodeName != "" &&
		(labels["component"] == "kube-apiserver" || name == "kube-apiserver-"+nodeName)
}

// ReceivesPods reports whether pods may be placed on the node. A cordon does not count.
func (f *Facts) ReceivesPods() bool {
	return f.Ready == True && len(f.RemovedBy) == 0 && !f.Deleting && f.ControlPlane == "" && !f.Virtual
}

// Unavailable returns why a disruption budget counts the node as unavailable; empty if it is available. The result
// leaving is true if the node is being removed, so that it does not count towards a minimum size either.
func (f *Facts) Unavailable(retiring bool) (reason string, leaving bool) {
	switch {
	case retiring:
		return "is being retired", true
	case f.Deleting:
		return "is being deleted", true
	case len(f.RemovedBy) > 0:
		return "is being removed by " + strings.Join(f.RemovedBy, ", "), true
	case f.Ready != True:
		return "is not Ready", false
	case f.Unschedulable:
		return "is cordoned", false
	}
	return "", false
}
