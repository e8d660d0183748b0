package notify

import (
	"net/http"
	"strconv"
	"time"
)

// Moment is a point in the handling of a notice at which somebody may want to be told.
type Moment string

// The moments, in the order in which they can come. Each is told at most once for a notice.
const (
	// Detected: a notice that something is to be done about was read for the first time.
	Detected Moment = "detected"
	// Blocked: for the first time something other than its own end keeps a pod from leaving, such as a disruption budget.
	Blocked Moment = "blocked"
	// Drained: nothing that had to leave the node is left.
	Drained Moment = "drained"
	// DeadlinePassed: time was over before the node was drained.
	DeadlinePassed Moment = "deadline-passed"
	// Over: the notice is finished or was cancelled, and the machine lives.
	Over Moment = "over"
)

// Moments lists all of them.
func Moments() []Moment { return []Moment{Detected, Blocked, Drained, DeadlinePassed, Over} }

// defaultMoments are told to a receiver that does not choose. Blocked is not among them: a budget that lets pods go one
// by one blocks each drain for some seconds.
func defaultMoments() []Moment { return []Moment{Detected, Drained, DeadlinePassed, Over} }

// Message is what there is to tell at one moment. Its fields are the markers of the templates; as JSON it is the body
// that a webhook without a template gets. Slices and maps in it must not change after it was handed over.
type Message struct {
	Moment Moment `json:"moment"`
	// Time is when it came.
	Time time.Time `json:"time"`
	// Test is true for the sample that `slipway notify test` sends.
	Test bool `json:"test,omitempty"`
	// Source is who announced the interruption, such as azure.
	Source string `json:"source"`
	Event  Event  `json:"event"`

	NodeName   string            `json:"nodeName"`
	NodeLabels map[string]string `json:"nodeLabels,omitempty"`
	// These are labels of the node under shorter names; empty where it has no such label.
	ClusterName  string `json:"clusterName,omitempty"`  // kubernetes.azure.com/cluster
	InstanceType string `json:"instanceType,omitempty"` // node.kubernetes.io/instance-type
	NodeArch     string `json:"nodeArch,omitempty"`     // kubernetes.io/arch
	NodeOS       string `json:"nodeOS,omitempty"`       // kubernetes.io/os
	NodeRole     string `json:"nodeRole,omitempty"`     // kubernetes.io/role
	NodeRegion   string `json:"nodeRegion,omitempty"`   // topology.kubernetes.io/region
	NodeZone     string `json:"nodeZone,omitempty"`     // topology.kubernetes.io/zone

	// NodePods are the names of Pods, without their namespaces.
	NodePods []string `json:"nodePods"`
	// Pods are the pods on the node without those of DaemonSets; once a drain has ended, those that had to leave.
	Pods []Pod `json:"pods"`
	// Blocked says, pod by pod, what keeps it from leaving.
	Blocked []BlockedPod `json:"blocked"`

	// Action is what is done about the notice: drain or cordon. Reason says why, and how the deadline is known.
	Action string `json:"action"`
	Reason string `json:"reason"`
	// Forced is true when the machine's processes end at the deadline, whatever is still on it.
	Forced bool `json:"forced"`
	// Deadline is when the interruption is due.
	Deadline time.Time `json:"deadline,omitzero"`
	// SecondsLeft is the whole seconds from Time to Deadline, negative when it is past.
	SecondsLeft int `json:"secondsLeft"`
	// Summary is the moment in one line, for people.
	Summary string `json:"summary"`
}

// Event is a notice in the words of Azure's Scheduled Events
// (https://learn.microsoft.com/azure/virtual-machines/linux/scheduled-events#event-properties), which templates use.
type Event struct {
	EventId           string   `json:"eventId"`
	EventType         string   `json:"eventType"`
	ResourceType      string   `json:"resourceType"`
	Resources         []string `json:"resources"`
	EventStatus       string   `json:"eventStatus"`
	NotBefore         string   `json:"notBefore"` // as Azure writes it: Mon, 19 Sep 2016 18:29:47 GMT; empty once started
	Description       string   `json:"description"`
	EventSource       string   `json:"eventSource"` // Platform or User
	DurationInSeconds int      `json:"durationInSeconds"`
}

// Pod is one pod of the node.
type Pod struct {
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	// Owner is the controller as Kind/name; empty when there is none.
	Owner string `json:"owner,omitempty"`
	// State is running, stopping, gone, or left: still there after its drain.
	State string `json:"state"`
}

// BlockedPod is a pod that waits to leave.
type BlockedPod struct {
	Namespace string    `json:"namespace"`
	Pod       string    `json:"pod"`
	Reason    string    `json:"reason"`           // such as disruption-budget
	Budget    string    `json:"budget,omitempty"` // namespace/name
	Detail    string    `json:"detail"`
	Since     time.Time `json:"since"`
}

// SetLabels takes in the node's labels.
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

// SetPods takes in the pods.
func (m *Message) SetPods(pods []Pod) {
	m.Pods = pods
	m.NodePods = make([]string, len(pods))
	for i, p := range pods {
		m.NodePods[i] = p.Name
	}
}

// SetTime sets when the moment came and when the interruption is due.
func (m *Message) SetTime(at, deadline time.Time) {
	m.Time, m.Deadline = at.UTC(), deadline.UTC()
	if !deadline.IsZero() {
		m.SecondsLeft = int(deadline.Sub(at).Truncate(time.Second) / time.Second)
	}
}

// sampleDeadline is how much time a Spot machine is given, and so the sample.
const sampleDeadline = 30 * time.Second

// Sample is a message with every field set, for checking templates and receivers: a Spot machine is taken away.
func Sample(moment Moment, now time.Time) Message {
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
