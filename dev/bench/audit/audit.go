// Package audit reads the API server's audit log. It returns which requests the agents sent, and when the API server
// completed them. Reading the log does not affect a measurement.
package audit

import (
	"encoding/json"
	"fmt"
	"strings"
	"time"

	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/types"
	auditv1 "k8s.io/apiserver/pkg/apis/audit/v1"

	"github.com/slipway-dev/slipway/dev/controlplane"
	"github.com/slipway-dev/slipway/dev/testbed"
)

const (
	agentUser = "system:serviceaccount:" + testbed.AgentNamespace + ":" + testbed.AgentAccount
	userAgent = "slipway-agent/"
	// boundNode is the audit annotation with the node that a token is bound to.
	boundNode = "authentication.kubernetes.io/node-name"
)

// UnknownNode is the key in AgentRequestsByNode for requests without a node. They ended before the API server had
// authenticated the client.
const UnknownNode = ""

// AgentRequestsByNode returns the agents' requests since a time, by node. It counts a watch once. Requests that
// ended before authentication have the key UnknownNode. For any other request without a node it returns an error,
// because some node's count would lack this request.
func AgentRequestsByNode(cluster *controlplane.Cluster, since time.Time) (map[string][]auditv1.Event, error) {
	all, err := cluster.ReadAuditLog(controlplane.AuditFilter{Since: since})
	if err != nil {
		return nil, err
	}
	byNode := map[string][]auditv1.Event{}
	for _, e := range all {
		by := e.User.Extra[boundNode]
		switch isAgent := e.User.Username == agentUser; {
		case isAgent && len(by) == 1:
			byNode[by[0]] = append(byNode[by[0]], e)
		case e.User.Username == "" && strings.HasPrefix(e.UserAgent, userAgent):
			byNode[UnknownNode] = append(byNode[UnknownNode], e)
		case isAgent, strings.HasPrefix(e.UserAgent, userAgent):
			return nil, fmt.Errorf("audit log: %s %s by %s (%s) is a request of an agent without node: %v", e.Verb,
				e.RequestURI, e.User.Username, e.UserAgent, e.ResponseStatus)
		}
	}
	return byNode, nil
}

// AcceptedAt returns when the API server completed a request. It returns false if the request did not succeed.
func AcceptedAt(e auditv1.Event) (time.Time, bool) {
	done := e.Stage == auditv1.StageResponseComplete && e.ResponseStatus != nil && e.ResponseStatus.Code/100 == 2
	return e.StageTimestamp.Time, done
}

// MatchesRequest reports whether a request has the given verb, resource and subresource.
func MatchesRequest(e auditv1.Event, verb, resource, subresource string) bool {
	return e.Verb == verb && e.ObjectRef != nil && e.ObjectRef.Resource == resource && e.ObjectRef.Subresource == subresource
}

// nodePatch holds the fields of a patch of a Node that this package reads.
type nodePatch struct {
	Metadata struct{ Annotations map[string]any }
	Spec     struct{ Unschedulable bool }
}

// cordonPatch returns the patch of a request that cordoned a node, and when the API server completed it. It returns false for
// any other request.
func cordonPatch(r auditv1.Event) (patch nodePatch, at time.Time, cordons bool) {
	at, done := AcceptedAt(r)
	if !done || !MatchesRequest(r, "patch", "nodes", "") || r.RequestObject == nil || json.Unmarshal(r.RequestObject.Raw, &patch) != nil {
		return patch, at, false
	}
	return patch, at, patch.Spec.Unschedulable
}

// CordonTimes returns when a patch first cordoned a node and wrote an annotation. The result is by the key of the
// annotation, which can be a cordon claim.
func CordonTimes(requests []auditv1.Event) map[string]time.Time {
	cordoned := map[string]time.Time{}
	for _, r := range requests {
		patch, at, cordons := cordonPatch(r)
		if !cordons {
			continue
		}
		for key := range patch.Metadata.Annotations {
			if earlier, again := cordoned[key]; !again || at.Before(earlier) {
				cordoned[key] = at
			}
		}
	}
	return cordoned
}

// FirstCordon returns when a patch first cordoned a node after a time. It returns false if there was none.
func FirstCordon(requests []auditv1.Event, after time.Time) (first time.Time, found bool) {
	for _, r := range requests {
		_, at, cordons := cordonPatch(r)
		if cordons && at.After(after) && (!found || at.Before(first)) {
			first, found = at, true
		}
	}
	return first, found
}

// DeletionTimes returns when pods were deleted that had no accepted eviction before. The keys are NAMESPACE/NAME.
func DeletionTimes(requests []auditv1.Event) map[string]time.Time {
	evicted, deleted := map[string]bool{}, map[string]time.Time{}
	name := func(e auditv1.Event) string { return e.ObjectRef.Namespace + "/" + e.ObjectRef.Name }
	for _, r := range requests {
		at, done := AcceptedAt(r)
		switch {
		case !done:
		case MatchesRequest(r, "create", "pods", "eviction"):
			evicted[name(r)] = true
		case MatchesRequest(r, "delete", "pods", "") && !evicted[name(r)]:
			deleted[name(r)] = at
		}
	}
	return deleted
}

// EvictionTimes returns when the eviction of each pod was accepted. The keys are the pods' UIDs, from the
// precondition of the eviction.
func EvictionTimes(requests []auditv1.Event) (map[types.UID]time.Time, error) {
	evicted := map[types.UID]time.Time{}
	for _, r := range requests {
		at, done := AcceptedAt(r)
		if !done || !MatchesRequest(r, "create", "pods", "eviction") {
			continue
		}
		var eviction policyv1.Eviction
		if r.RequestObject == nil {
			return nil, fmt.Errorf("audit log: %s was logged without its body", r.RequestURI)
		}
		if err := json.Unmarshal(r.RequestObject.Raw, &eviction); err != nil {
			return nil, fmt.Errorf("audit log: %s: %w", r.RequestURI, err)
		}
		if o := eviction.DeleteOptions; o != nil && o.Preconditions != nil && o.Preconditions.UID != nil {
			evicted[*o.Preconditions.UID] = at
		}
	}
	return evicted, nil
}

// EvictionTimesByName returns when the eviction of each pod was first accepted. The keys are NAMESPACE/NAME. It also
// finds evictions without a UID as precondition.
func EvictionTimesByName(requests []auditv1.Event) map[string]time.Time {
	evicted := map[string]time.Time{}
	for _, r := range requests {
		at, done := AcceptedAt(r)
		if !done || !MatchesRequest(r, "create", "pods", "eviction") {
			continue
		}
		key := r.ObjectRef.Namespace + "/" + r.ObjectRef.Name
		if first, again := evicted[key]; !again || at.Before(first) {
			evicted[key] = at
		}
	}
	return evicted
}
