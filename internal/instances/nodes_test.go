package instances

import (
	"context"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// TestI4EachCallReadsNodesAgain adds a Node between reads.
func TestI4EachCallReadsNodesAgain(t *testing.T) {
	var nodes corev1.NodeList
	r := &NodeReader{List: func(context.Context, metav1.ListOptions) (*corev1.NodeList, error) { return &nodes, nil }}
	for want := range 3 {
		hosts, err := r.Read(t.Context())
		if err != nil || len(hosts) != want {
			t.Errorf("%d hosts, %v; want %d", len(hosts), err, want)
		}
		nodes.Items = append(nodes.Items, corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "a"}})
	}
}
