package live

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// NodeNameField is the field selector for the node of a Pod.
const NodeNameField = "spec.nodeName"

// PodReader reads pods. The caller must not change them. It is safe for concurrent use.
type PodReader interface {
	// ListSelected returns the pods of a namespace with matching labels. An empty namespace means all namespaces.
	ListSelected(ctx context.Context, namespace string, labels labels.Selector) ([]*corev1.Pod, error)
	// ListOnNode returns the pods on a node.
	ListOnNode(ctx context.Context, node string) ([]*corev1.Pod, error)
}

// nodeIndexName is the name of the index of pods by node.
const nodeIndexName = "slipway/node"

// NewCachedPodReader reads pods from an informer without copying them. A copy of very many pods would be as large as the
// cache.
func NewCachedPodReader(informers Informers) (PodReader, error) {
	informer, err := informers(corev1.SchemeGroupVersion.WithResource("pods"), &corev1.Pod{})
	if err != nil {
		return nil, fmt.Errorf("watch pods: %w", err)
	}
	if _, there := informer.GetIndexer().GetIndexers()[nodeIndexName]; !there {
		if err := informer.AddIndexers(cache.Indexers{nodeIndexName: indexByNode}); err != nil {
			return nil, fmt.Errorf("index pods by node: %w", err)
		}
	}
	return cachedPods{informer.GetIndexer()}, nil
}

func indexByNode(o any) ([]string, error) {
	p, ok := o.(*corev1.Pod)
	if !ok || p.Spec.NodeName == "" {
		return nil, nil
	}
	return []string{p.Spec.NodeName}, nil
}

type cachedPods struct{ indexer cache.Indexer }

func (c cachedPods) ListSelected(_ context.Context, namespace string, selector labels.Selector) ([]*corev1.Pod, error) {
	var pods []*corev1.Pod
	err := cache.ListAllByNamespace(c.indexer, namespace, selector, func(o any) {
		if p, ok := o.(*corev1.Pod); ok {
			pods = append(pods, p)
		}
	})
	return pods, err
}

func (c cachedPods) ListOnNode(_ context.Context, node string) ([]*corev1.Pod, error) {
	objects, err := c.indexer.ByIndex(nodeIndexName, node)
	if err != nil {
		return nil, err
	}
	pods := make([]*corev1.Pod, 0, len(objects))
	for _, o := range objects {
		if p, ok := o.(*corev1.Pod); ok {
			pods = append(pods, p)
		}
	}
	return pods, nil
}

// NewListingPodReader reads pods from the API server on each call.
func NewListingPodReader(reader client.Reader) PodReader { return listedPods{reader} }

type listedPods struct{ reader client.Reader }

func (l listedPods) ListSelected(ctx context.Context, namespace string, selector labels.Selector) ([]*corev1.Pod, error) {
	return l.list(ctx, client.InNamespace(namespace), client.MatchingLabelsSelector{Selector: selector})
}

func (l listedPods) ListOnNode(ctx context.Context, node string) ([]*corev1.Pod, error) {
	return l.list(ctx, client.MatchingFields{NodeNameField: node})
}

func (l listedPods) list(ctx context.Context, which ...client.ListOption) ([]*corev1.Pod, error) {
	var list corev1.PodList
	if err := l.reader.List(ctx, &list, which...); err != nil {
		return nil, err
	}
	pods := make([]*corev1.Pod, len(list.Items))
	for i := range list.Items {
		pods[i] = &list.Items[i]
	}
	return pods, nil
}
