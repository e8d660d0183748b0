package live

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// NodeField is the field of a Pod that the API server selects by.
const NodeField = "spec.nodeName"

// Pods reads pods. Those that it returns must not be changed. It may be used concurrently.
type Pods interface {
	// Select reads the pods with these labels of a namespace, or of all when it is empty.
	Select(ctx context.Context, namespace string, labels labels.Selector) ([]*corev1.Pod, error)
	// On reads the pods on a node.
	On(ctx context.Context, node string) ([]*corev1.Pod, error)
}

// nodeIndexName is the index of pods by the node that they are on.
const nodeIndexName = "slipway/node"

// CachedPods reads the pods that an informer holds, without a copy: of very many, one would be as large as the cache.
func CachedPods(informers Informers) (Pods, error) {
	informer, err := informers(corev1.SchemeGroupVersion.WithResource("pods"), &corev1.Pod{})
	if err != nil {
		return nil, fmt.Errorf("watching Pods: %w", err)
	}
	if _, there := informer.GetIndexer().GetIndexers()[nodeIndexName]; !there {
		if err := informer.AddIndexers(cache.Indexers{nodeIndexName: indexByNode}); err != nil {
			return nil, fmt.Errorf("indexing Pods by node: %w", err)
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

// ListedPods asks the API server each time.
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
