package live

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// NodeField is the field selector for the node of a Pod.
const NodeField = "spec.nodeName"

// Pods reads pods. The caller must not change them. It is safe for concurrent use.
type Pods interface {
	// Select returns the pods of a namespace with matching labels. An empty namespace means all namespaces.
	Select(ctx context.Context, namespace string, labels labels.Selector) ([]*corev1.Pod, error)
	// On returns the pods on a node.
	On(ctx context.Context, node string) ([]*corev1.Pod, error)
}

// nodeIndexName is the name of the index of pods by node.
const nodeIndexName = "slipway/node"

// CachedPods reads pods from an informer without copying them. A copy of very many pods would be as large as the
// cache.
func CachedPods(informers Informers) (Pods, error) {
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

func (c cachedPods) Select(_ context.Context, namespace string, selector labels.Selector) ([]*corev1.Pod, error) {
	var pods []*corev1.Pod
	err := cache.ListAllByNamespace(c.indexer, namespace, selector, func(o any) {
		if p, ok := o.(*corev1.Pod); ok {
			pods = append(pods, p)
		}
	})
	return pods, err
}

func (c cachedPods) On(_ context.Context, node string) ([]*corev1.Pod, error) {
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

// ListedPods reads pods from the API server on each call.
func ListedPods(reader client.Reader) Pods { return listedPods{reader} }

type listedPods struct{ reader client.Reader }

func (l listedPods) Select(ctx context.Context, namespace string, selector labels.Selector) ([]*corev1.Pod, error) {
	return l.list(ctx, client.InNamespace(namespace), client.MatchingLabelsSelector{Selector: selector})
}

func (l listedPods) On(ctx context.Context, node string) ([]*corev1.Pod, error) {
	return l.list(ctx, client.MatchingFields{NodeField: node})
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
