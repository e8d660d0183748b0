package awsnth

import (
	"cmp"
	"log/slog"
	"maps"
	"strings"
	"sync"

	"github.com/slipway-dev/slipway/internal/agent"
	"github.com/slipway-dev/slipway/internal/kubeapi"
	"github.com/slipway-dev/slipway/internal/notice"
)

// The reasons of the tool's Events about an interruption.
var interruptionReasons = map[Kind]string{
	ScheduledEvent: "ScheduledEvent", SpotITN: "SpotInterruption", RebalanceRecommendation: "RebalanceRecommendation",
	StateChange: "StateChange", ASGLifecycle: "ASGLifecycle",
}

// maxNodeEvents limits the last events. In queue mode, most nodes end without an Event that removes theirs.
const maxNodeEvents = 10000

// Reporter writes the tool's Kubernetes Events and counts its metrics. It is safe for concurrent use.
type Reporter struct {
	options  *Options
	metrics  *Metrics
	identity *Identity
	log      *slog.Logger

	mu sync.Mutex
	// events are the last events by node. A drain is for all notices of the node, and its end names none.
	events map[string]InterruptionEvent
}

// NewReporter returns a reporter.
func NewReporter(o *Options, m *Metrics, identity *Identity, log *slog.Logger) *Reporter {
	return &Reporter{options: o, metrics: m, identity: identity, log: log, events: map[string]InterruptionEvent{}}
}

// FormatEvents is an [agent.EventFormatter]. Events without an equivalent in the tool keep the agent's own format. All do
// without -emit-kubernetes-events.
func (r *Reporter) FormatEvents(t agent.EventTrigger) (formatted []agent.FormattedEvent, ok bool) {
	e := r.lastEvent(t)
	all := r.countAndFormat(t, e)
	if !r.options.EmitKubernetesEvents || len(all) == 0 {
		return nil, false
	}
	annotations := r.annotate(t.Node)
	for i := range all {
		all[i].Component, all[i].Annotations = Tool, annotations
	}
	return all, true
}

// lastEvent returns the event that a trigger is about. Without a notice it is the last one of the node.
func (r *Reporter) lastEvent(t agent.EventTrigger) InterruptionEvent {
	node := r.options.NodeName
	if t.Node != nil {
		node = t.Node.Name
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if t.Notice.ID == "" {
		e := r.events[node]
		e.NodeName = node
		if t.Reason == agent.NodeUncordoned {
			delete(r.events, node)
		}
		return e
	}
	e := toInterruptionEvent(t.Notice)
	e.NodeName = node
	if len(r.events) >= maxNodeEvents {
		clear(r.events)
	}
	r.events[node] = e
	return e
}

// countAndFormat returns the tool's Events for a trigger, and counts its actions.
func (r *Reporter) countAndFormat(t agent.EventTrigger, e InterruptionEvent) []agent.FormattedEvent {
	normal := func(reason, message string) agent.FormattedEvent {
		return agent.FormattedEvent{Type: "Normal", Reason: reason, Message: message}
	}
	warning := func(reason, message string) agent.FormattedEvent {
		return agent.FormattedEvent{Type: "Warning", Reason: reason, Message: message}
	}
	count := func(action string, failed bool) { r.metrics.countAction(action, e.NodeName, e.EventID, failed) }
	switch t.Reason {
	case agent.NoticeReceived:
		action := r.options.actionForKind(Kind(e.Kind))
		if action == agent.Ignore {
			return nil
		}
		if r.options.DryRun {
			would := map[agent.Action]string{agent.Cordon: "cordoned"}[action]
			r.log.Info("dry run: the node would have been "+cmp.Or(would, "cordoned and drained"), "id", e.EventID, "node", e.NodeName)
		}
		return []agent.FormattedEvent{normal(r.interruptionReason(Kind(e.Kind)), e.Description)}
	case agent.NodeCordoned, agent.FoundCordoned:
		var all []agent.FormattedEvent
		if hasPreDrain(t.Notice, e) {
			count(actionPreDrain, false)
			all = append(all, normal("PreDrain", "Pre-drain task successfully executed"))
		}
		if r.options.actionForKind(Kind(e.Kind)) == agent.Cordon {
			count(actionCordon, false)
			all = append(all, normal("Cordon", "Node successfully cordoned"))
		}
		return all
	case agent.CordonFailed:
		count(actionPreDrain, true)
		return []agent.FormattedEvent{warning("CordonError", "There was a problem while trying to cordon the node: the change is retried")}
	case agent.DrainDone:
		count(actionCordonAndDrain, false)
		all := []agent.FormattedEvent{normal("CordonAndDrain", "Node successfully cordoned and drained")}
		if r.options.EnableSQSTerminationDraining {
			count(actionPostDrain, false)
			all = append(all, normal("PostDrain", "Post-drain task successfully executed"))
		}
		return all
	case agent.DrainFailed:
		count(actionCordonAndDrain, true)
		return []agent.FormattedEvent{warning("CordonAndDrainError", "There was a problem while trying to cordon and drain the node: "+t.Message)}
	case agent.NodeUncordoned:
		count(actionUncordon, false)
		return []agent.FormattedEvent{normal("Uncordon", "Node successfully uncordoned")}
	case agent.UncordonFailed:
		count(actionUncordon, true)
		return []agent.FormattedEvent{warning("UncordonError", "There was a problem while trying to uncordon the node: the change is retried")}
	}
	return nil
}

// interruptionReason returns the reason of the Event about an interruption. Version 1 had one reason for all messages of
// the queue.
func (r *Reporter) interruptionReason(kind Kind) string {
	if r.options.EnableSQSTerminationDraining && r.options.LogFormatVersion < 2 {
		return "SQSTermination"
	}
	if reason := interruptionReasons[kind]; reason != "" {
		return reason
	}
	return "UnknownInterruption"
}

// hasPreDrain reports whether the tool changed the node before it was cordoned.
func hasPreDrain(n notice.Notice, e InterruptionEvent) bool {
	switch Kind(e.Kind) {
	case StateChange:
		return false
	case ScheduledEvent:
		return n.Source == notice.AWSQueue || isRestart(n)
	}
	return true
}

// annotate returns the annotations of the tool's Events.
func (r *Reporter) annotate(node *kubeapi.Node) map[string]string {
	var metadata NodeMetadata
	if !r.options.EnableSQSTerminationDraining {
		metadata = r.identity.Get()
	}
	name := r.options.NodeName
	if node != nil {
		metadata, name = metadata.complete(node.Spec.ProviderID, node.Labels), node.Name
	}
	all := map[string]string{
		"account-id": metadata.AccountId, "availability-zone": metadata.AvailabilityZone, "instance-id": metadata.InstanceID,
		"instance-type": metadata.InstanceType, "local-hostname": metadata.LocalHostname, "region": metadata.Region,
	}
	if !r.options.EnableSQSTerminationDraining {
		maps.Copy(all, map[string]string{
			"instance-life-cycle": metadata.InstanceLifeCycle, "local-ipv4": metadata.LocalIP, "public-hostname": metadata.PublicHostname,
			"public-ipv4": metadata.PublicIP,
		})
	} else {
		all["local-hostname"] = name
	}
	for key, value := range r.options.ParseEventAnnotations() {
		if isAnnotationKey(key) {
			all[key] = value
		}
	}
	return all
}

// isAnnotationKey reports whether the API server accepts a key of an annotation. One that it refuses would lose the Event.
func isAnnotationKey(key string) bool {
	prefix, name, found := strings.Cut(key, "/")
	if !found {
		prefix, name = "", key
	}
	valid := func(s, more string) bool {
		return s != "" && toLabelValue(s) == s && !strings.ContainsFunc(s, func(r rune) bool { return strings.ContainsRune("-_.", r) && !strings.ContainsRune(more, r) })
	}
	return valid(name, "-_.") && (!found || strings.ToLower(prefix) == prefix && valid(prefix, "-."))
}
