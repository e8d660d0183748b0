package kubeapi

import (
	"encoding/json"
	"net/http"
	"testing"

	"github.com/slipway-dev/slipway/internal/testing/check"
	"github.com/slipway-dev/slipway/internal/testing/must"
)

func TestManagersOfSizeAreFound(t *testing.T) {
	const object = `{"metadata":{"name":"web","generation":3,"managedFields":[
		{"manager":"kubectl","operation":"Apply","fieldsV1":{"f:spec":{"f:template":{"f:spec":{"f:replicas":{}}}}}},
		{"manager":"slipway-surge","operation":"Update","subresource":"scale","fieldsV1":{"f:spec":{"f:replicas":{}}}},
		{"manager":"flux","operation":"Apply","fieldsV1":{"f:spec":{"f:replicas":{},"f:paused":{}}}},
		{"manager":"flux","operation":"Update","fieldsV1":{"f:spec":{"f:replicas":{}}}},
		{"manager":"controller","fieldsV1":{"f:status":{"f:replicas":{}}}}]},
		"spec":{"replicas":2},"status":{"observedGeneration":"3"}}`
	var w Workload
	must.NoError(t, json.Unmarshal([]byte(object), &w))
	check.Equal(t, []string{"slipway-surge", "flux"}, w.SpecFieldManagers("replicas"))
	check.Len(t, 0, w.SpecFieldManagers("minReplicas"))
	check.Is(t, 3, w.Generation)
}

func TestSizeChangeWithoutPreconditionsIsRefused(t *testing.T) {
	c := serve(t, func(http.ResponseWriter, *http.Request) { t.Error("a request was sent") })
	one := int32(1)
	deployment := ObjectRef{"apps/v1", "Deployment", "shop", "web"}
	check.ErrorContains(t, c.SetReplicas(t.Context(), SizeChange{Object: deployment, UID: "u", Size: &one}), "Deployment shop/web", "resourceVersion")
	check.ErrorContains(t, c.SetReplicas(t.Context(), SizeChange{Object: deployment, UID: "u", ResourceVersion: "1"}), "is nil")
	check.ErrorContains(t, c.SetMinSize(t.Context(), SizeChange{Object: deployment, ResourceVersion: "1"}), "UID")
	check.ErrorContains(t, c.SetPodAnnotation(t.Context(), AnnotationChange{Namespace: "shop", Name: "web-0", UID: "u"}), "resourceVersion")
	check.ErrorContains(t, c.DeleteLease(t.Context(), Lease{}), "UID")
	_, err := c.GetWorkload(t.Context(), ObjectRef{"apps/v1", "StatefulSet", "shop", "db"})
	check.ErrorContains(t, err, "StatefulSet shop/db")
	_, err = c.GetWorkload(t.Context(), ObjectRef{"", "Deployment", "shop", "web"})
	check.ErrorContains(t, err, "apiVersion")
}
