// Package request builds NodeRetirements. It imports the API types only, so that every component may use it.
package request

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"maps"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/rand"

	"github.com/slipway-dev/slipway/api/v1alpha1"
)

// Request says which node is retired, and why.
type Request struct {
	// Name is the name of the NodeRetirement; see [NewName]. If empty, New chooses one that begins with the node's name.
	Name string
	// Labels let the manager of the node's group select the NodeRetirement.
	Labels map[string]string
	// Spec needs NodeName, NodeUID and Reason.
	Spec v1alpha1.NodeRetirementSpec
}

// New returns the NodeRetirement of a request. The NodeRetirement has no finalizer, because the controller sets it. So
// users can delete a NodeRetirement that no manager selects. It always has a name: with a name from the API server, a
// client that gets no answer could not know which NodeRetirement it has created.
func New(r Request) *v1alpha1.NodeRetirement {
	if r.Name == "" {
		r.Name = appendToNodeName(r.Spec.NodeName, "-"+rand.String(randomLength))
	}
	return &v1alpha1.NodeRetirement{
		ObjectMeta: metav1.ObjectMeta{Name: r.Name, Labels: maps.Clone(r.Labels)},
		Spec:       r.Spec,
	}
}

// randomLength is how many random characters a name without an identity has, as many as a generateName of the API server.
const randomLength = 5

// maxNameLength is the limit of the API server, in bytes.
const maxNameLength = 253

// NewName returns the name of a NodeRetirement that a rule requests. The name contains the node's name, the rule, and a
// hash of identity, such as the Node's UID and the number of the attempt. Two managers that make the same decision get
// the same name, so that only one NodeRetirement is created. A long node name is cut.
func NewName(node, rule string, identity ...any) string {
	sum := sha256.Sum256(fmt.Appendln(nil, identity...))
	return appendToNodeName(node, "-"+rule+"-"+hex.EncodeToString(sum[:4]))
}

// appendToNodeName returns a node's name with a tail. It cuts a long node name.
func appendToNodeName(node, tail string) string {
	return strings.TrimRight(node[:min(len(node), maxNameLength-len(tail))], ".-") + tail
}
