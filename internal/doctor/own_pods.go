package doctor

import (
	"cmp"
	"context"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/selection"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// OwnPod is a pod of Slipway.
type OwnPod struct {
	Part                  PartKind
	Namespace, Name, Node string
	// Version is the tag of the image. For an image without a tag it is the digest, or "unknown".
	Version string
	Ready   bool
	// Container is the name of Slipway's container.
	Container string
}

// ListOwnPods returns the pods of Slipway in all namespaces, sorted by part, version and name. It finds them by the labels
// of the shipped manifests. Finished pods do not count.
func ListOwnPods(ctx context.Context, reader client.Reader) ([]OwnPod, error) {
	named, err := labels.NewRequirement(nameLabel, selection.In, []string{"slipway", "slipway-agent", "slipway-manager", "slipway-cloudpool"})
	if err != nil {
		return nil, err
	}
	var all corev1.PodList
	if err := reader.List(ctx, &all, client.MatchingLabelsSelector{Selector: labels.NewSelector().Add(*named)}); err != nil {
		return nil, err
	}
	var found []OwnPod
	for i := range all.Items {
		p := &all.Items[i]
		part := kindFromLabels(p.Labels)
		if part == "" || p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed || len(p.Spec.Containers) == 0 {
			continue
		}
		found = append(found, OwnPod{part, p.Namespace, p.Name, p.Spec.NodeName, parseImageVersion(p.Spec.Containers[0].Image), isPodReady(p), findContainer(p, part)})
	}
	slices.SortFunc(found, func(a, b OwnPod) int {
		return cmp.Or(cmp.Compare(a.Part, b.Part), cmp.Compare(a.Version, b.Version), cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
	})
	return found, nil
}

// findContainer returns the name of Slipway's container in a pod that may also have injected containers.
func findContainer(p *corev1.Pod, part PartKind) string {
	for _, want := range []string{string(part), p.Annotations["kubectl.kubernetes.io/default-container"]} {
		if slices.ContainsFunc(p.Spec.Containers, func(c corev1.Container) bool { return c.Name == want }) {
			return want
		}
	}
	return p.Spec.Containers[0].Name
}

// parseImageVersion returns the tag of an image, or its digest if it has no tag.
func parseImageVersion(image string) string {
	image, digest, _ := strings.Cut(image, "@")
	_, tag, _ := strings.Cut(image[strings.LastIndex(image, "/")+1:], ":")
	return cmp.Or(tag, digest, "unknown")
}
