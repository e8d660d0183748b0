package kubeapi

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/slipway-dev/slipway/internal/testing/check"
	"github.com/slipway-dev/slipway/internal/testing/must"
)

func TestRequestsHaveTheExactShape(t *testing.T) {
	type shape struct {
		Method, URI, ContentType string
		Body                     any
	}
	grace := int64(30)
	at := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	removal := PodRemoval{Namespace: "shop", Name: "web-0", UID: "u-1"}
	limited, dry := removal, removal
	limited.GracePeriodSeconds, dry.DryRun = &grace, true
	deployment, two := ObjectRef{"apps/v1", "Deployment", "shop", "web"}, int32(2)
	controller := ObjectRef{"v1", "ReplicationController", "shop", "web"}

	tests := map[string]struct {
		call func(context.Context, *Client) error
		want shape
	}{
		"eviction": {
			func(ctx context.Context, c *Client) error { return c.EvictPod(ctx, removal) },
			shape{"POST", "/api/v1/namespaces/shop/pods/web-0/eviction", "application/json", decoded(`{"apiVersion":"policy/v1",
				"kind":"Eviction","metadata":{"name":"web-0","namespace":"shop"},"deleteOptions":{"preconditions":{"uid":"u-1"}}}`)},
		},
		"the condition of a pod that is deleted": {
			func(ctx context.Context, c *Client) error {
				return c.SetDisruptionTarget(ctx, PodDisruption{
					Namespace: "shop", Name: "web-0", UID: "u-1", Reason: "DeletionByNodeTermination", Message: "m", At: at,
				})
			},
			shape{
				"PATCH", "/api/v1/namespaces/shop/pods/web-0/status", "application/strategic-merge-patch+json",
				decoded(`{"metadata":{"uid":"u-1"},"status":{"conditions":[{"type":"DisruptionTarget","status":"True",
				"reason":"DeletionByNodeTermination","message":"m","lastTransitionTime":"2026-03-01T12:00:00Z"}]}}`),
			},
		},
		"a new lease": {
			func(ctx context.Context, c *Client) error {
				_, err := c.CreateLease(ctx, Lease{
					ObjectMeta: ObjectMeta{Name: "slot-0", Namespace: "slipway"},
					Spec:       LeaseSpec{HolderIdentity: "n1", LeaseDurationSeconds: 30, RenewTime: MicroTime{at}},
				})
				return err
			},
			shape{"POST", "/apis/coordination.k8s.io/v1/namespaces/slipway/leases", "application/json", decoded(`{
				"apiVersion":"coordination.k8s.io/v1","kind":"Lease","metadata":{"name":"slot-0","namespace":"slipway"},
				"spec":{"holderIdentity":"n1","leaseDurationSeconds":30,"renewTime":"2026-03-01T12:00:00.000000Z"}}`)},
		},
		"a released lease": {
			func(ctx context.Context, c *Client) error {
				_, err := c.UpdateLease(ctx, Lease{
					ObjectMeta: ObjectMeta{Name: "slot-0", Namespace: "slipway", ResourceVersion: "7"},
				})
				return err
			},
			shape{"PUT", "/apis/coordination.k8s.io/v1/namespaces/slipway/leases/slot-0", "application/json", decoded(`{
				"apiVersion":"coordination.k8s.io/v1","kind":"Lease",
				"metadata":{"name":"slot-0","namespace":"slipway","resourceVersion":"7"},"spec":{}}`)},
		},
		"eviction with a grace": {
			func(ctx context.Context, c *Client) error { return c.EvictPod(ctx, limited) },
			shape{"POST", "/api/v1/namespaces/shop/pods/web-0/eviction", "application/json", decoded(`{"apiVersion":"policy/v1",
				"kind":"Eviction","metadata":{"name":"web-0","namespace":"shop"},
				"deleteOptions":{"preconditions":{"uid":"u-1"},"gracePeriodSeconds":30}}`)},
		},
		"eviction as a dry run": {
			func(ctx context.Context, c *Client) error { return c.EvictPod(ctx, dry) },
			shape{"POST", "/api/v1/namespaces/shop/pods/web-0/eviction", "application/json", decoded(`{"apiVersion":"policy/v1",
				"kind":"Eviction","metadata":{"name":"web-0","namespace":"shop"},
				"deleteOptions":{"preconditions":{"uid":"u-1"},"dryRun":["All"]}}`)},
		},
		"an eviction request": {
			func(ctx context.Context, c *Client) error {
				r := EvictionRequest{ObjectMeta: ObjectMeta{Name: "r1", Namespace: "shop", OwnerReferences: []OwnerReference{{APIVersion: "v1", Kind: "Pod", Name: "web-0", UID: "u-1"}}}}
				r.Spec.Target.Pod.Name, r.Spec.Target.Pod.UID = "web-0", "u-1"
				r.Spec.Requester, r.Spec.Intent = "slipway.dev/drain", IntentEviction
				return c.CreateEvictionRequest(ctx, r, true)
			},
			shape{"POST", "/apis/lifecycle.k8s.io/v1alpha1/namespaces/shop/evictionrequests?dryRun=All", "application/json", decoded(`{
				"apiVersion":"lifecycle.k8s.io/v1alpha1","kind":"EvictionRequest","metadata":{"name":"r1","namespace":"shop",
				"ownerReferences":[{"apiVersion":"v1","kind":"Pod","name":"web-0","uid":"u-1"}]},"spec":{"target":{"pod":{"name":"web-0",
				"uid":"u-1"}},"requester":"slipway.dev/drain","intent":"Eviction"}}`)},
		},
		"a withdrawn eviction request": {
			func(ctx context.Context, c *Client) error {
				return c.SetEvictionRequestIntent(ctx, "shop", "r1", IntentWithdrawn)
			},
			shape{"PATCH", "/apis/lifecycle.k8s.io/v1alpha1/namespaces/shop/evictionrequests/r1", "application/merge-patch+json",
				decoded(`{"spec":{"intent":"Withdrawn"}}`)},
		},
		"a deleted eviction request": {
			func(ctx context.Context, c *Client) error { return c.DeleteEvictionRequest(ctx, "shop", "r1") },
			shape{"DELETE", "/apis/lifecycle.k8s.io/v1alpha1/namespaces/shop/evictionrequests/r1", "", nil},
		},
		"deletion with a grace": {
			func(ctx context.Context, c *Client) error { return c.DeletePod(ctx, limited) },
			shape{
				"DELETE", "/api/v1/namespaces/shop/pods/web-0", "application/json",
				decoded(`{"preconditions":{"uid":"u-1"},"gracePeriodSeconds":30}`),
			},
		},
		"deletion as a dry run": {
			func(ctx context.Context, c *Client) error { return c.DeletePod(ctx, dry) },
			shape{
				"DELETE", "/api/v1/namespaces/shop/pods/web-0", "application/json",
				decoded(`{"preconditions":{"uid":"u-1"},"dryRun":["All"]}`),
			},
		},
		"a node": {
			func(ctx context.Context, c *Client) error { _, err := c.GetNode(ctx, "n1"); return err },
			shape{"GET", "/api/v1/nodes/n1", "", nil},
		},
		"a name with a slash in it stays one segment": {
			func(ctx context.Context, c *Client) error { _, err := c.GetNode(ctx, "../pods?x=1"); return err },
			shape{"GET", "/api/v1/nodes/..%2Fpods%3Fx=1", "", nil},
		},
		"a patch of a node": {
			func(ctx context.Context, c *Client) error {
				_, err := c.PatchNode(ctx, "n1", []byte(`{"spec":{"unschedulable":true}}`))
				return err
			},
			shape{"PATCH", "/api/v1/nodes/n1", "application/merge-patch+json", decoded(`{"spec":{"unschedulable":true}}`)},
		},
		"a patch of a node's status": {
			func(ctx context.Context, c *Client) error {
				_, err := c.PatchNodeStatus(ctx, "n1", []byte(`{"status":{"conditions":[]}}`))
				return err
			},
			shape{
				"PATCH", "/api/v1/nodes/n1/status", "application/strategic-merge-patch+json",
				decoded(`{"status":{"conditions":[]}}`),
			},
		},
		"nodes by label": {
			func(ctx context.Context, c *Client) error { _, err := c.ListNodes(ctx, "a=b,c!=d"); return err },
			shape{"GET", "/api/v1/nodes?labelSelector=a%3Db%2Cc%21%3Dd&limit=200", "", nil},
		},
		"budgets of a namespace": {
			func(ctx context.Context, c *Client) error {
				once, enough := context.WithCancel(ctx)
				defer enough()
				_ = c.WatchPodDisruptionBudgets(once, "shop", Handler[PodDisruptionBudget]{
					Replaced: func([]PodDisruptionBudget) { enough() }, Failed: func(error) { enough() },
				})
				return ctx.Err()
			},
			shape{"GET", "/apis/policy/v1/namespaces/shop/poddisruptionbudgets?limit=200", "", nil},
		},
		"volume attachments": {
			func(ctx context.Context, c *Client) error { _, err := c.ListVolumeAttachments(ctx); return err },
			shape{"GET", "/apis/storage.k8s.io/v1/volumeattachments?limit=200", "", nil},
		},
		"a claim": {
			func(ctx context.Context, c *Client) error {
				_, err := c.GetPersistentVolumeClaim(ctx, "shop", "data")
				return err
			},
			shape{"GET", "/api/v1/namespaces/shop/persistentvolumeclaims/data", "", nil},
		},
		"an event": {
			func(ctx context.Context, c *Client) error {
				e := Event{
					Metadata: ObjectMeta{Name: "e1", Namespace: "default"}, Type: "Warning", Reason: "R", Message: "M",
					InvolvedObject: ObjectReference{Kind: "Node", Name: "n1", UID: "n1"}, FirstTimestamp: at, LastTimestamp: at,
					Count: 1,
				}
				e.Source.Component = "slipway"
				return c.CreateEvent(ctx, e)
			},
			shape{"POST", "/api/v1/namespaces/default/events", "application/json", decoded(`{"apiVersion":"v1","kind":"Event",
				"metadata":{"name":"e1","namespace":"default"},"involvedObject":{"kind":"Node","name":"n1","uid":"n1"},
				"type":"Warning","reason":"R","message":"M","source":{"component":"slipway"},
				"firstTimestamp":"2026-03-01T12:00:00Z","lastTimestamp":"2026-03-01T12:00:00Z","count":1}`)},
		},
		"a deployment": {
			func(ctx context.Context, c *Client) error { _, err := c.GetWorkload(ctx, deployment); return err },
			shape{"GET", "/apis/apps/v1/namespaces/shop/deployments/web", "", nil},
		},
		"a ReplicationController": {
			func(ctx context.Context, c *Client) error { _, err := c.GetWorkload(ctx, controller); return err },
			shape{"GET", "/api/v1/namespaces/shop/replicationcontrollers/web", "", nil},
		},
		"the size of a ReplicationController": {
			func(ctx context.Context, c *Client) error {
				return c.SetReplicas(ctx, SizeChange{Object: controller, UID: "u-1", ResourceVersion: "7", Size: &two, FieldManager: "m"})
			},
			shape{"PUT", "/api/v1/namespaces/shop/replicationcontrollers/web/scale?fieldManager=m", "application/json", decoded(`{
				"apiVersion":"autoscaling/v1","kind":"Scale","metadata":{"name":"web","namespace":"shop","uid":"u-1",
				"resourceVersion":"7"},"spec":{"replicas":2}}`)},
		},
		"a CloneSet": {
			func(ctx context.Context, c *Client) error {
				_, err := c.GetWorkload(ctx, ObjectRef{"apps.kruise.io/v1alpha1", "CloneSet", "shop", "web"})
				return err
			},
			shape{"GET", "/apis/apps.kruise.io/v1alpha1/namespaces/shop/clonesets/web", "", nil},
		},
		"the size of a deployment": {
			func(ctx context.Context, c *Client) error {
				return c.SetReplicas(ctx, SizeChange{Object: deployment, UID: "u-1", ResourceVersion: "7", Size: &two, FieldManager: "m"})
			},
			shape{"PUT", "/apis/apps/v1/namespaces/shop/deployments/web/scale?fieldManager=m", "application/json", decoded(`{
				"apiVersion":"autoscaling/v1","kind":"Scale","metadata":{"name":"web","namespace":"shop","uid":"u-1",
				"resourceVersion":"7"},"spec":{"replicas":2}}`)},
		},
		"the minimum of an autoscaler": {
			func(ctx context.Context, c *Client) error {
				hpa := ObjectRef{"autoscaling/v2", "HorizontalPodAutoscaler", "shop", "web"}
				return c.SetMinSize(ctx, SizeChange{Object: hpa, UID: "u-1", ResourceVersion: "7", Size: &two, FieldManager: "m"})
			},
			shape{
				"PATCH", "/apis/autoscaling/v2/namespaces/shop/horizontalpodautoscalers/web?fieldManager=m",
				"application/merge-patch+json", decoded(`{"metadata":{"uid":"u-1","resourceVersion":"7"},"spec":{"minReplicas":2}}`),
			},
		},
		"the minimum of a ScaledObject is removed": {
			func(ctx context.Context, c *Client) error {
				scaled := ObjectRef{"keda.sh/v1alpha1", "ScaledObject", "shop", "web"}
				return c.SetMinSize(ctx, SizeChange{Object: scaled, UID: "u-1", ResourceVersion: "7", FieldManager: "m"})
			},
			shape{
				"PATCH", "/apis/keda.sh/v1alpha1/namespaces/shop/scaledobjects/web?fieldManager=m",
				"application/merge-patch+json", decoded(`{"metadata":{"uid":"u-1","resourceVersion":"7"},"spec":{"minReplicaCount":null}}`),
			},
		},
		"autoscalers of a namespace": {
			func(ctx context.Context, c *Client) error {
				_, err := c.ListHorizontalPodAutoscalers(ctx, "shop")
				return err
			},
			shape{"GET", "/apis/autoscaling/v2/namespaces/shop/horizontalpodautoscalers?limit=200", "", nil},
		},
		"endpoint slices of a namespace": {
			func(ctx context.Context, c *Client) error { _, err := c.ListEndpointSlices(ctx, "shop"); return err },
			shape{"GET", "/apis/discovery.k8s.io/v1/namespaces/shop/endpointslices?limit=200", "", nil},
		},
		"a pod": {
			func(ctx context.Context, c *Client) error { _, err := c.GetPod(ctx, "shop", "web-0"); return err },
			shape{"GET", "/api/v1/namespaces/shop/pods/web-0", "", nil},
		},
		"pods by label": {
			func(ctx context.Context, c *Client) error { _, err := c.ListPods(ctx, "shop", "app=web"); return err },
			shape{"GET", "/api/v1/namespaces/shop/pods?labelSelector=app%3Dweb&limit=200", "", nil},
		},
		"an annotation of a pod is removed": {
			func(ctx context.Context, c *Client) error {
				return c.SetPodAnnotation(ctx, AnnotationChange{
					Namespace: "shop", Name: "web-0", UID: "u-1", ResourceVersion: "7", Key: "k/cost",
				})
			},
			shape{
				"PATCH", "/api/v1/namespaces/shop/pods/web-0", "application/merge-patch+json",
				decoded(`{"metadata":{"uid":"u-1","resourceVersion":"7","annotations":{"k/cost":null}}}`),
			},
		},
		"leases from the cache": {
			func(ctx context.Context, c *Client) error {
				_, err := c.ListCachedLeases(ctx, "slipway", "a=b")
				return err
			},
			shape{"GET", "/apis/coordination.k8s.io/v1/namespaces/slipway/leases?labelSelector=a%3Db&limit=200&resourceVersion=0", "", nil},
		},
		"a lease is deleted": {
			func(ctx context.Context, c *Client) error {
				return c.DeleteLease(ctx, Lease{ObjectMeta: ObjectMeta{Name: "l", Namespace: "slipway", UID: "u-1", ResourceVersion: "7"}})
			},
			shape{
				"DELETE", "/apis/coordination.k8s.io/v1/namespaces/slipway/leases/l", "application/json",
				decoded(`{"preconditions":{"uid":"u-1","resourceVersion":"7"}}`),
			},
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			var got shape
			c := serve(t, func(w http.ResponseWriter, r *http.Request) {
				raw, _ := io.ReadAll(r.Body)
				got = shape{r.Method, r.RequestURI, r.Header.Get("Content-Type"), decoded(string(raw))}
				if r.ProtoMajor != 2 {
					t.Errorf("request over %s, want HTTP/2", r.Proto)
				}
				if r.Header.Get("User-Agent") != "slipway-test" || r.Header.Get("Accept") != "application/json" {
					t.Errorf("headers %v", r.Header)
				}
				_, _ = io.WriteString(w, `{"metadata":{"name":"x","resourceVersion":"1"},"items":null}`)
			})
			must.NoError(t, tt.call(t.Context(), c))
			check.Equal(t, tt.want, got)
		})
	}
}

// decoded parses JSON, so that spaces and order do not matter in a comparison; nothing is nil.
func decoded(raw string) any {
	if raw == "" {
		return nil
	}
	var v any
	if err := json.Unmarshal([]byte(raw), &v); err != nil {
		return "no JSON: " + raw
	}
	return v
}

func TestServerPathPrefixIsKept(t *testing.T) {
	var got string
	c := serve(t, func(w http.ResponseWriter, r *http.Request) {
		got = r.RequestURI
		_, _ = io.WriteString(w, `{"metadata":{"name":"n1"}}`)
	})
	c.base = c.base.JoinPath("k8s", "clusters", "c-1")
	if _, err := c.GetNode(t.Context(), "n1"); err != nil {
		t.Fatal(err)
	}
	if want := "/k8s/clusters/c-1/api/v1/nodes/n1"; got != want {
		t.Errorf("requested %s, want %s", got, want)
	}
}

func TestNameThatChangesThePathIsRefused(t *testing.T) {
	var asked atomic.Int32
	c := serve(t, func(http.ResponseWriter, *http.Request) { asked.Add(1) })
	for _, bad := range []string{"", ".", ".."} {
		for call, err := range map[string]error{
			"DeletePod name":      c.DeletePod(t.Context(), PodRemoval{Namespace: "shop", Name: bad, UID: "u"}),
			"DeletePod namespace": c.DeletePod(t.Context(), PodRemoval{Namespace: bad, Name: "web-0", UID: "u"}),
			"Evict name":          c.EvictPod(t.Context(), PodRemoval{Namespace: "shop", Name: bad, UID: "u"}),
			"CreateEvent":         c.CreateEvent(t.Context(), Event{Metadata: ObjectMeta{Namespace: bad}}),
			"GetNode":             errorOf(c.GetNode(t.Context(), bad)),
			"FollowBudgets":       firstFailure(t.Context(), bad, c),
		} {
			if err == nil || !strings.Contains(err.Error(), "want a name") {
				t.Errorf("%s %q: got %v", call, bad, err)
			}
		}
	}
	for call, err := range map[string]error{
		"DeletePod": c.DeletePod(t.Context(), PodRemoval{Namespace: "shop", Name: "web-0"}),
		"Evict":     c.EvictPod(t.Context(), PodRemoval{Namespace: "shop", Name: "web-0"}),
		"condition": c.SetDisruptionTarget(t.Context(), PodDisruption{Namespace: "shop", Name: "web-0"}),
	} {
		if err == nil || !strings.Contains(err.Error(), "shop/web-0: UID is empty") {
			t.Errorf("%s without a UID: got %v", call, err)
		}
	}
	check.Is(t, 0, asked.Load())
}

func errorOf[T any](_ T, err error) error { return err }

func TestRequestEndsAtItsTimeout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := serveInBubble(t, http.HandlerFunc(neverAnswer))
		began := time.Now()
		_, err := c.GetNode(t.Context(), "n1")
		if !errors.Is(err, context.DeadlineExceeded) || time.Since(began) != DefaultTimeout {
			t.Errorf("after %v: %v", time.Since(began), err)
		}
	})
}

func TestTimeoutOfHTTPClientLimitsRequestsButNoWatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := serveInBubble(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Query().Get("watch") != "" {
				_ = http.NewResponseController(w).Flush()
			}
			neverAnswer(w, r)
		}))
		limited := *c.http
		limited.Timeout = 3 * time.Second
		c = NewClient(c.base, &limited, "slipway-test")
		began := time.Now()
		_, err := c.GetNode(t.Context(), "n1")
		if !errors.Is(err, context.DeadlineExceeded) || time.Since(began) != 3*time.Second {
			t.Errorf("a request after %v: %v", time.Since(began), err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		began = time.Now()
		resp, err := c.send(ctx, request{method: http.MethodGet, path: []string{"api", "v1", "pods"}, query: url.Values{"watch": {"true"}}})
		must.NoError(t, err)
		_, err = io.ReadAll(resp.Body)
		_ = resp.Body.Close()
		if !errors.Is(err, context.DeadlineExceeded) || time.Since(began) != 10*time.Second {
			t.Errorf("a watch after %v: %v", time.Since(began), err)
		}
	})
}

func TestUnreachableServerIsNamedWithoutItsQuery(t *testing.T) {
	c := NewClient(&url.URL{Scheme: "http", Host: "127.0.0.1:1"}, &http.Client{}, "slipway-test")
	_, err := c.ListNodes(t.Context(), "secret=yes")
	if err == nil || !strings.HasPrefix(err.Error(), "GET /api/v1/nodes: ") || strings.Contains(err.Error(), "secret") {
		t.Errorf("got %v", err)
	}
	if ToStatusError(err) != nil {
		t.Errorf("%v counts as a response of the API server", err)
	}
}

// firstFailure returns the first failure of WatchPodDisruptionBudgets for a namespace.
func firstFailure(ctx context.Context, namespace string, c *Client) (failed error) {
	once, enough := context.WithCancel(ctx)
	defer enough()
	_ = c.WatchPodDisruptionBudgets(once, namespace, Handler[PodDisruptionBudget]{
		Failed: func(err error) { failed = err; enough() },
	})
	return failed
}
