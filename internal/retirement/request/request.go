// Package request builds NodeRetirements. It imports the API types only, so that every component may use it.
package request

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"maps"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/slipway-dev/slipway/api/v1alpha1"
)

// Request says which node is retired, and why.
type Request struct {
	// Name is the NodeRetirement's; see [Name]. Without one the API server derives it from the node's.
	Name string
	// Labels are those by which the manager of the node's group selects NodeRetirements.
	Labels map[string]string
	// Spec needs NodeName, NodeUID and Reason.
	Spec v1alpha1.NodeRetirementSpec
}

// New returns the NodeRetirement of a request. It has no finalizer: the controller sets it, so that a NodeRetirement that no
// manager selects can be deleted.
func New(r Request) *v1alpha1.NodeRetirement {
	rt := &v1alpha1.NodeRetirement{
		ObjectMeta: metav1.ObjectMeta{Name: r.Name, Labels: maps.Clone(r.Labels)},
		Spec:       r.Spec,
	}
	if r.Name == "" {
		rt.GenerateName = r.Spec.NodeName + "-"
	}
	return rt
}

// longestName is the API server's limit, in bytes.
const longestName = 253

// Name returns the name of a NodeRetirement that a rule asks for: the node's, the rule's, and a hash of what tells it from
// others, such as the Node's UID and the previous try. Two managers that decide the same use the same name, so that one
// NodeRetirement is created. The node's name is cut where the whole would be too long.
func Name(node, rule string, identity ...any) string {
	sum := sha256.Sum256(fmt.Appendln(nil, identity...))
	tail := "-" + rule + "-" + hex.EncodeToString(sum[:4])
	return strings.TrimRight(node[:min(len(node), longestName-len(tail))], ".-") + tail
}
