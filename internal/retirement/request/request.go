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
	// Name is the name of the NodeRetirement; see [Name]. If empty, the API server derives it from the node's name.
	Name string
	// Labels let the manager of the node's group select the NodeRetirement.
	Labels map[string]string
	// Spec needs NodeName, NodeUID and Reason.
	Spec v1alpha1.NodeRetirementSpec
}

// New returns the NodeRetirement of a request. The NodeRetirement has no finalizer, because the controller sets it. So
// users can delete a NodeRetirement that no manager selects.
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

// maxNameLength is the limit of the API server, in bytes.
const maxNameLength = 253

// NewName returns the name of a NodeRetirement that a rule requests. The name consists of the node's name, the rule, and
// a hash of the identity, such as the Node's UID and the number of the attempt. Two managers that decide the same use
// the same name, so that only one NodeRetirement is created. A long node name is cut.
func NewName(node, rule string, identity ...any) string {
	sum := sha256.Sum256(fmt.Appendln(nil, identity...))
	tail := "-" + rule + "-" + hex.EncodeToString(sum[:4])
	return strings.TrimRight(node[:min(len(node), maxNameLength-len(tail))], ".-") + tail
}
