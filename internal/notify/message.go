package notify

import (
	"net/http"
	"strconv"
	"time"
)

// Moment is a stage in the handling of a notice. A receiver can get a message for each moment.
type Moment string

// The moments, in the order in which they can occur. Each is sent at most once per notice.
const (
	// Detected: a notice with an action was read for the first time.
	Detected Moment = "detected"
	// Blocked: pods cannot be evicted, for example because of a PodDisruptionBudget. It is sent for the first time
	// only.
	Blocked Moment = "blocked"
	// Drained: all pods that had to leave have left.
	Drained Moment = "drained"
	// DeadlinePassed: the deadline passed before the node was drained. If the notice has no deadline, its drain has timed out.
	DeadlinePassed Moment = "deadline-passed"
	// Ended: the notice has ended or was cancelled, and the instance still runs.
	Ended Moment = "over"
)

// Moments returns all moments.
func Moments() []Moment { return []Moment{Detected, Blocked, Drained, DeadlinePassed, Ended} }

// defaultMoments returns the moments for a receiver that configures none. It excludes Blocked, because many drains are
// blocked for some seconds. A PodDisruptionBudget that allows one eviction at a time is enough.
func defaultMoments() []Moment { return []Moment{Detected, Drained, DeadlinePassed, Ended} }

// Message is the content of a notification. Templates use its fields. A webhook without a template sends it as JSON.
// Its slices and maps must not change after Message was passed to another function.
type Message struct {
	Moment Moment `json:"moment"`
	// Time is when the moment came.
	Time time.Time `json:"time"`
	// Test is true for the sample that `slipway notify test` sends.
	Test bool `json:"test,omitempty"`
	// Source is the source of the notice, such as azure.
	Source string `json:"source"`
	Event  Event  `json:"event"`

	NodeName   string            `json:"nodeName"`
	NodeLabels map[string]string `json:"nodeLabels,omitempty"`
	// Labels of the node under shorter names; empty if the node has no such label.
	ClusterName  string `json:"clusterName,omitempty"`  // kubernetes.azure.com/cluster
	InstanceType string `json:"instanceType,omitempty"` // node.kubernetes.io/instance-type
	NodeArch     string `json:"nodeArch,omitempty"`     // kubernetes.io/arch
	NodeOS       string `json:"nodeOS,omitempty"`       // kubernetes.io/os
	NodeRole     string `json:"nodeRole,omitempty"`     // kubernetes.io/role
	NodeRegion   string `json:"nodeRegion,omitempty"`   // topology.kubernetes.io/region
	NodeZone     string `json:"nodeZone,omitempty"`     // topology.kubernetes.io/zone

	// NodePods holds the names of Pods, without namespaces.
	NodePods []string `json:"nodePods"`
	// Pods holds the pods on the node, except DaemonSet pods. After a drain it holds the pods that had to leave.
	Pods []Pod `json:"pods"`
	// Blocked says for each blocked pod what prevents its eviction.
	Blocked []BlockedPod `json:"blocked"`

	// Action is the action for the notice: drain or cordon. Reason explains it, and the deadline.
	Action string `json:"action"`
	Reason string `json:"reason"`
	// Forced is true if the instance's processes end at the deadline, with all pods still on it.
	Forced bool `json:"forced"`
	// Deadline is when the interruption is due; zero for a condition and a Rebalance.
	Deadline time.Time `json:"deadline,omitzero"`
	// SecondsLeft is the whole seconds from Time to Deadline; negative after it, and 0 without a deadline.
	SecondsLeft int `json:"secondsLeft"`
	// Summary describes the moment in one line, for people.
	Summary string `json:"summary"`
}

// Event is a notice in the format of Azure's Scheduled Events, for templates
// (https://learn.microsoft.com/azure/virtual-machines/linux/scheduled-events#event-properties).
type Event struct {
	EventId           string   `json:"eventId"`
	EventType         string   `json:"eventType"`
	ResourceType      string   `json:"resourceType"`
	Resources         []string `json:"resources"`
	EventStatus       string   `json:"eventStatus"`
	NotBefore         string   `json:"notBefore"` // in Azure's format: Mon, 19 Sep 2016 18:29:47 GMT; empty once started
	Description       string   `json:"description"`
	EventSource       string   `json:"eventSource"` // Platform or User
	DurationInSeconds int      `json:"durationInSeconds"`
}

// Pod is one pod of the node in a message.
type Pod struct {
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	// Owner is the controller as Kind/name; empty if there is none.
	Owner string `json:"owner,omitempty"`
	// State is running, stopping, gone, or left: still there after its drain.
	State string `json:"state"`
}

// BlockedPod is a pod of the node that cannot be evicted now, and the reason.
type BlockedPod struct {
	Namespace string    `json:"namespace"`
	Pod       string    `json:"pod"`
	Reason    string    `json:"reason"`           // such as disruption-budget
	Budget    string    `json:"budget,omitempty"` // namespace/name
	Detail    string    `json:"detail"`
	Since     time.Time `json:"since"`
}

// SetLabels sets the node's labels, and the message's fields for single labels.
func (m *Message) SetLabels(labels map[string]string) {
	m.NodeLabels = labels
	m.ClusterName = labels["kubernetes.azure.com/cluster"]
	m.InstanceType = labels["node.kubernetes.io/instance-type"]
	m.NodeArch = labels["kubernetes.io/arch"]
	m.NodeOS = labels["kubernetes.io/os"]
	m.NodeRole = labels["kubernetes.io/role"]
	m.NodeRegion = labels["topology.kubernetes.io/region"]
	m.NodeZone = labels["topology.kubernetes.io/zone"]
}

// SetPods sets the pods of the message and the list of their names.
func (m *Message) SetPods(pods []Pod) {
	m.Pods = pods
	m.NodePods = make([]string, len(pods))
	for i, p := range pods {
		m.NodePods[i] = p.Name
	}
}

// SetTime sets the time of the moment, and the deadline of the notice.
func (m *Message) SetTime(at, deadline time.Time) {
	m.Time, m.Deadline = at.UTC(), deadline.UTC()
	if !deadline.IsZero() {
		m.SecondsLeft = int(deadline.Sub(at).Truncate(time.Second) / time.Second)
	}
}

// sampleDeadline is the time until the deadline in a sample message. Azure gives a Spot instance the same time.
const sampleDeadline = 30 * time.Second

// NewSampleMessage returns a message about a Spot eviction with every field set. It serves to check templates and
// receivers.
func NewSampleMessage(moment Moment, now time.Time) Message {
	due := now.Add(sampleDeadline)
	m := Message{
		Moment: moment, Test: true, Source: "azure", NodeName: "aks-spot-12345678-vmss000000",
		Event: Event{
			EventId: "602d9444-d2cd-49c7-8624-8643e7171297", EventType: "Preempt", ResourceType: "VirtualMachine",
			Resources: []string{"aks-spot-12345678-vmss_0"}, EventStatus: "Scheduled",
			NotBefore: due.UTC().Format(http.TimeFormat), Description: "This is a test. Nothing happens to the machine.",
			EventSource: "Platform", DurationInSeconds: -1,
		},
		Action: "drain", Forced: true, Reason: "Preempt asks for drain; NotBefore " + due.UTC().Format(time.RFC3339),
		Blocked: []BlockedPod{},
	}
	m.SetTime(now, due)
	m.SetLabels(map[string]string{
		"kubernetes.azure.com/cluster": "MC_group_cluster_westeurope", "node.kubernetes.io/instance-type": "Standard_D4s_v5",
		"kubernetes.io/arch": "amd64", "kubernetes.io/os": "linux", "kubernetes.io/role": "agent",
		"kubernetes.io/hostname": m.NodeName, "topology.kubernetes.io/region": "westeurope",
		"topology.kubernetes.io/zone": "westeurope-1",
	})
	state := map[Moment]string{Drained: "gone", DeadlinePassed: "left"}[moment]
	if state == "" {
		state = "running"
	}
	m.SetPods([]Pod{
		{Namespace: "shop", Name: "web-7d9c5b8f6d-x2x4z", Owner: "ReplicaSet/web-7d9c5b8f6d", State: state},
		{Namespace: "shop", Name: "orders-db-0", Owner: "StatefulSet/orders-db", State: state},
	})
	if moment == Blocked || moment == DeadlinePassed {
		m.Blocked = []BlockedPod{{
			Namespace: "shop", Pod: "orders-db-0", Reason: "disruption-budget", Budget: "shop/orders-db",
			Detail: "the budget allows no disruption: 1 of 1 wanted are healthy", Since: now.UTC(),
		}}
	}
	m.Summary = "test: node " + m.NodeName + ": " + string(moment) + ": Preempt in " + strconv.Itoa(m.SecondsLeft) + " s"
	return m
}
