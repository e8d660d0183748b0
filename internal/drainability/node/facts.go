// Package node has the rules that decide whether a node may be retired, whether it counts as available, and whether pods may
// be sent to it. They are pure functions of what adapters read from the Node.
package node

import (
	"strings"
	"time"

	"github.com/slipway-dev/slipway/internal/drainability"
)

// Facts is what the rules read of a node.
type Facts struct {
	// RemovedBy names the other tools that are removing the node. Taints that Slipway set do not count.
	RemovedBy []string
	// ControlPlane is the mark that makes the node part of the control plane; empty for none.
	ControlPlane string
	Protections  []drainability.Protection
	Ready        Ready
	// Deleting is that the Node has a deletion time, which a retirement sets too. Virtual is that no instance is behind it.
	Deleting, Unschedulable, Virtual bool
}

// Ready is the status of the condition Ready; a missing one is Unknown.
type Ready uint8

// The statuses.
const (
	Unknown Ready = iota
	False
	True
)

// APIServer is the mark of a node on which a static API server pod runs: some distributions set no label.
const APIServer = "pod kube-apiserver"

var controlPlaneMarks = [...]string{"node-role.kubernetes.io/control-plane", "node-role.kubernetes.io/master"}

// Input is what adapters read from a Node.
type Input struct {
	Labels, Annotations map[string]string
	Created             time.Time
	RemovedBy           []string
	// Tainted reports whether the node has a taint of this key.
	Tainted func(key string) bool
	// Ready is the status of the condition Ready as it is written.
	Ready                   string
	Deleting, Unschedulable bool
}

// FactsOf derives the facts from what was read.
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

// IsAPIServer recognises a static API server pod. Its node is part of the control plane, also without a label.
func IsAPIServer(namespace, name, nodeName string, labels map[string]string) bool {
	return namespace == "kube-system" && nodeName != "" &&
		(labels["component"] == "kube-apiserver" || name == "kube-apiserver-"+nodeName)
}

// ReceivesPods reports whether pods may be sent to the node, as far as it says so itself.
func (f *Facts) ReceivesPods() bool {
	return f.Ready == True && len(f.RemovedBy) == 0 && !f.Deleting && f.ControlPlane == "" && !f.Virtual
}

// Unavailable says why a disruption budget counts the node as unavailable; empty if it is available. A node that is leaving
// does not count towards a minimum either.
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
