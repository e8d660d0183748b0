package kubeapi

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
)

// podGroupVersions are the versions of scheduling.k8s.io with PodGroups, newest first: v1beta1 and v1alpha3 are in
// Kubernetes 1.37, and v1alpha2 is in 1.36.
var podGroupVersions = []string{"v1beta1", "v1alpha3", "v1alpha2"}

// PodGroup holds the fields of schedulingv1beta1.PodGroup that are read.
type PodGroup struct {
	ObjectMeta `json:"metadata"`

	Spec struct {
		DisruptionMode json.RawMessage `json:"disruptionMode,omitempty"`
	} `json:"spec"`
}

// GetPodGroup reads one PodGroup, in the newest version that the API server serves. If it serves none, it returns an error.
func (c *Client) GetPodGroup(ctx context.Context, namespace, name string) (*PodGroup, error) {
	for _, version := range podGroupVersions {
		path := []string{"apis", "scheduling.k8s.io", version, "namespaces", namespace, "podgroups", name}
		group, err := fetchObject[PodGroup](ctx, c, request{method: http.MethodGet, path: path})
		if err == nil || !hasCode(err, http.StatusNotFound) || IsNotFound(err) {
			return group, err
		}
	}
	return nil, fmt.Errorf("PodGroup %s/%s: the API server serves no podgroups of scheduling.k8s.io in a known version (%v)",
		namespace, name, podGroupVersions)
}
