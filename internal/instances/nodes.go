// Package instances finds out whether an instance has a Node, and deletes one that has none.
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

// HostOf returns what a Node says of its instance.
func HostOf(n *corev1.Node) cloud.Host {
	return cloud.Host{Name: n.Name, ProviderID: n.Spec.ProviderID, SystemUUID: n.Status.NodeInfo.SystemUUID}
}

// Nodes reads from the API server what Nodes say of their instances. Concurrent callers share an answer.
type Nodes struct {
	// List lists Nodes past all caches.
	List func(context.Context, metav1.ListOptions) (*corev1.NodeList, error)

	shared sharedread.Reader[[]cloud.Host]
}

// NewNodes returns Nodes for a client that reads past all caches.
func NewNodes(live client.Reader) *Nodes {
	return &Nodes{List: func(ctx context.Context, o metav1.ListOptions) (*corev1.NodeList, error) {
		var page corev1.NodeList
		return &page, live.List(ctx, &page, &client.ListOptions{Limit: o.Limit, Continue: o.Continue})
	}}
}

// nodePage is how many Nodes are read at once.
const nodePage = 500

// Read returns the hosts as they were when it was called, or later. The result is shared: callers must not change it.
func (r *Nodes) Read(ctx context.Context) ([]cloud.Host, error) {
	return r.shared.Read(ctx, r.read)
}

func (r *Nodes) read(ctx context.Context) ([]cloud.Host, error) {
	var hosts []cloud.Host
	for next := (metav1.ListOptions{Limit: nodePage}); ; {
		page, err := r.List(ctx, next)
		if err != nil {
			return nil, fmt.Errorf("nodes: %w", err)
		}
		for i := range page.Items {
			hosts = append(hosts, HostOf(&page.Items[i]))
		}
		if next.Continue = page.Continue; next.Continue == "" {
			break
		}
	}
	return hosts, nil
}
