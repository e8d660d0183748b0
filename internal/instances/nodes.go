// Package instances checks whether an instance has a Node, and deletes one without a Node.
package instances

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/slipway-dev/slipway/internal/cloud"
	"github.com/slipway-dev/slipway/internal/sharedread"
)

// NodeIdentityOf returns the fields of a Node that identify its instance.
func NodeIdentityOf(n *corev1.Node) cloud.NodeIdentity {
	return cloud.NodeIdentity{Name: n.Name, ProviderID: n.Spec.ProviderID, SystemUUID: n.Status.NodeInfo.SystemUUID}
}

// NodeReader reads the identities of all Nodes from the API server. Concurrent callers share a read.
type NodeReader struct {
	// List lists Nodes without a cache.
	List func(context.Context, metav1.ListOptions) (*corev1.NodeList, error)

	shared sharedread.Reader[[]cloud.NodeIdentity]
}

// NewNodeReader returns Nodes for a client without a cache.
func NewNodeReader(live client.Reader) *NodeReader {
	return &NodeReader{List: func(ctx context.Context, o metav1.ListOptions) (*corev1.NodeList, error) {
		var page corev1.NodeList
		return &page, live.List(ctx, &page, &client.ListOptions{Limit: o.Limit, Continue: o.Continue})
	}}
}

// nodePageSize is the page size for Nodes.
const nodePageSize = 500

// Read returns the identities as of the call or later. The result is shared: callers must not change it.
func (r *NodeReader) Read(ctx context.Context) ([]cloud.NodeIdentity, error) {
	return r.shared.Read(ctx, r.listNodeIdentities)
}

func (r *NodeReader) listNodeIdentities(ctx context.Context) ([]cloud.NodeIdentity, error) {
	var hosts []cloud.NodeIdentity
	for next := (metav1.ListOptions{Limit: nodePageSize}); ; {
		page, err := r.List(ctx, next)
		if err != nil {
			return nil, fmt.Errorf("listing Nodes: %w", err)
		}
		for i := range page.Items {
			hosts = append(hosts, NodeIdentityOf(&page.Items[i]))
		}
		if next.Continue = page.Continue; next.Continue == "" {
			break
		}
	}
	return hosts, nil
}
