package kubeapi

import (
	"encoding/json"
	"fmt"
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
	for _, apiVersion := range []string{"", "v1", "apps/"} {
		_, err = c.GetWorkload(t.Context(), ObjectRef{apiVersion, "Deployment", "shop", "web"})
		check.ErrorContains(t, err, fmt.Sprintf("apiVersion %q", apiVersion))
	}
}

func TestWorkloadsOfEachKindAreRead(t *testing.T) {
	const (
		controllerJSON = `{"metadata":{"name":"web","uid":"u-1"},"spec":{"replicas":2,"selector":{"app":"web","matchLabels":"x"}},
			"status":{"observedGeneration":1,"replicas":2,"readyReplicas":1}}`
		cloneSetJSON = `{"metadata":{"name":"web","uid":"u-1"},"spec":{"replicas":2,"selector":{"matchLabels":{"app":"web"}},
			"volumeClaimTemplates":[{"metadata":{"name":"data"}}],"lifecycle":{"preDelete":{"labelsHandler":{"a":"b"}}},
			"scaleStrategy":{"maxUnavailable":"20%","podsToDelete":["web-a"]},"updateStrategy":{"type":"InPlaceIfPossible"},
			"template":{"spec":{"topologySpreadConstraints":[{"maxSkew":1,"topologyKey":"zone","whenUnsatisfiable":"ScheduleAnyway"}]}}},
			"status":{"observedGeneration":1,"availableReplicas":1,"currentRevision":"web-1","updateRevision":"web-2"}}`
	)
	bodies := map[string]string{"/api/v1/namespaces/shop/replicationcontrollers/web": controllerJSON, "/apis/apps.kruise.io/v1alpha1/namespaces/shop/clonesets/web": cloneSetJSON}
	c := serve(t, func(w http.ResponseWriter, r *http.Request) { _, _ = w.Write([]byte(bodies[r.URL.Path])) })
	w, err := c.GetWorkload(t.Context(), ObjectRef{"v1", "ReplicationController", "shop", "web"})
	must.NoError(t, err)
	selector, err := w.Spec.Selector.ToSelector()
	must.NoError(t, err)
	check.Is(t, "app in (web),matchLabels in (x)", selector.String())
	check.Is(t, 2, *w.Spec.Replicas)
	check.Is(t, 1, w.Status.ReadyReplicas)
	check.Is(t, "u-1", w.UID)
	w, err = c.GetWorkload(t.Context(), ObjectRef{"apps.kruise.io/v1alpha1", "CloneSet", "shop", "web"})
	must.NoError(t, err)
	check.Is(t, 1, len(w.Spec.VolumeClaimTemplates))
	check.Not(t, w.Spec.Lifecycle.PreDelete == nil, "the hook is not read")
	check.Equal(t, []string{"web-a"}, w.Spec.ScaleStrategy.PodsToDelete)
	check.Equal(t, []TopologySpreadConstraint{{"zone", "ScheduleAnyway"}}, w.Spec.Template.Spec.TopologySpreadConstraints)
	check.Is(t, "web-1 web-2 1", fmt.Sprint(w.Status.CurrentRevision, " ", w.Status.UpdateRevision, " ", w.Status.AvailableReplicas))
}
