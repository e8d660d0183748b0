package autoscaler

import (
	"context"
	"fmt"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/slipway-dev/slipway/internal/cloud"
	"github.com/slipway-dev/slipway/internal/nodegroup/scaling"
	"github.com/slipway-dev/slipway/internal/retirement/budget"
)

// hostOf is what a Node says of its machine.
func hostOf(n *corev1.Node) cloud.Host {
	return cloud.Host{Name: n.Name, ProviderID: n.Spec.ProviderID, SystemUUID: n.Status.NodeInfo.SystemUUID}
}

// joined tells how far machines have come with joining, by provider ID, and the type of each Node's machine.
func joined(provider cloud.Provider, instances []cloud.Instance, nodes []*corev1.Node) (joins map[string]scaling.Join, types map[string]string) {
	hosts, ready := make([]cloud.Host, len(nodes)), make(map[string]bool, len(nodes))
	for i, n := range nodes {
		hosts[i], ready[n.Name] = hostOf(n), budget.Ready(n)
	}
	joins, types = map[string]scaling.Join{}, map[string]string{}
	on := cloud.NewHosts(provider.Normalize, hosts)
	for _, i := range instances {
		switch node, err := on.Of(i); {
		case err != nil:
			joins[i.ProviderID] = scaling.Unsure
		case ready[node]:
			joins[i.ProviderID], types[node] = scaling.NodeReady, i.Type
		case node != "":
			joins[i.ProviderID], types[node] = scaling.HasNode, i.Type
		}
	}
	return joins, types
}

// apiHosts reads from the API server itself what Nodes say of their machines. Those who ask at one time share an answer.
type apiHosts struct {
	list func(context.Context, metav1.ListOptions) (*corev1.NodeList, error)

	mu    sync.Mutex
	began time.Time
	hosts []cloud.Host
}

// hostPage is how many Nodes are read at once.
const hostPage = 500

// read gives the hosts as they were when it was called, or later.
func (r *apiHosts) read(ctx context.Context) ([]cloud.Host, error) {
	asked := time.Now()
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.began.After(asked) {
		return r.hosts, nil
	}
	began := time.Now()
	var hosts []cloud.Host
	for next := (metav1.ListOptions{Limit: hostPage}); ; {
		page, err := r.list(ctx, next)
		if err != nil {
			return nil, fmt.Errorf("nodes: %w", err)
		}
		for i := range page.Items {
			hosts = append(hosts, hostOf(&page.Items[i]))
		}
		if next.Continue = page.Continue; next.Continue == "" {
			break
		}
	}
	r.began, r.hosts = began, hosts
	return hosts, nil
}
