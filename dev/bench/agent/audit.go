package agent

import (
	"fmt"
	"strings"
	"time"

	auditv1 "k8s.io/apiserver/pkg/apis/audit/v1"

	"github.com/slipway-dev/slipway/dev/controlplane"
	"github.com/slipway-dev/slipway/dev/testbed"
)

const (
	agentUser = "system:serviceaccount:" + testbed.AgentNamespace + ":" + testbed.AgentAccount
	userAgent = "slipway-agent/"
	// boundNode is where the API server says which node a token is bound to.
	boundNode = "authentication.kubernetes.io/node-name"
)

// requests lists everything that the agent of a node has asked of the API server since then, a watch once. An agent's
// request that cannot be told to be of one node is an error: it would be missing from somebody's count.
func (b *bench) requests(node string, since time.Time) ([]auditv1.Event, error) {
	all, err := b.Audit(controlplane.AuditFilter{Since: since})
	if err != nil {
		return nil, err
	}
	var its []auditv1.Event
	for _, e := range all {
		by := e.User.Extra[boundNode]
		switch ours := e.User.Username == agentUser; {
		case ours && len(by) == 1 && by[0] == node:
			its = append(its, e)
		case ours && len(by) == 0, !ours && strings.HasPrefix(e.UserAgent, userAgent):
			return nil, fmt.Errorf("audit log: %s %s by %s (%s) is an agent's, and of which node is not known", e.Verb,
				e.RequestURI, e.User.Username, e.UserAgent)
		}
	}
	return its, nil
}

// accepted tells when the API server had carried out a request, or that it did not.
func accepted(e auditv1.Event) (time.Time, bool) {
	done := e.Stage == auditv1.StageResponseComplete && e.ResponseStatus != nil && e.ResponseStatus.Code/100 == 2
	return e.StageTimestamp.Time, done
}

func is(e auditv1.Event, verb, resource, subresource string) bool {
	return e.Verb == verb && e.ObjectRef != nil && e.ObjectRef.Resource == resource && e.ObjectRef.Subresource == subresource
}
