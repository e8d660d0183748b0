// Package fakecluster is an API server in memory, with emulated kubelets and controllers. It needs no network and no
// process. Under testing/synctest it runs in virtual time, where minutes take milliseconds.
//
// It serves what a Slipway manager and its tests need: objects with preconditions, finalizers and the status
// subresource, lists with selectors, watches, and evictions under disruption budgets. It has no authorization, admission
// or validation; use dev/controlplane for these.
package fakecluster

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/google/uuid"
	appsv1 "k8s.io/api/apps/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	eventsv1 "k8s.io/api/events/v1"
	policyv1 "k8s.io/api/policy/v1"
	resourcev1 "k8s.io/api/resource/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/slipway-dev/slipway/api/v1alpha1"
)

// Cluster is an emulated cluster and its API server.
type Cluster struct {
	scheme *runtime.Scheme
	codecs serializer.CodecFactory
	kinds  map[schema.GroupVersionResource]schema.GroupVersionKind

	mu            sync.Mutex
	version       int64
	objects       map[objectKey]client.Object // stored objects are immutable
	changes       []change
	changed       chan struct{} // closed at the next change
	closed        chan struct{}
	controllers   sync.WaitGroup
	stopTimes     map[types.UID]time.Time // time at which a deleted pod has stopped
	startTimes    map[types.UID]time.Time // time at which a bound pod becomes Ready
	leaseRenewals map[string]int          // number of renewals of a node's Lease since power-on
}

type objectKey struct {
	resource        schema.GroupVersionResource
	namespace, name string
}

// change is one change of one object, with the object before and after it. Watches get their events from changes.
type change struct {
	key       objectKey
	version   int64
	eventType watch.EventType
	before    client.Object // nil if the object was created
	after     client.Object
}

// New starts a cluster that has no nodes. Call Close to stop it.
func New() (*Cluster, error) {
	c := &Cluster{
		scheme: runtime.NewScheme(), kinds: map[schema.GroupVersionResource]schema.GroupVersionKind{},
		objects: map[objectKey]client.Object{}, changed: make(chan struct{}), closed: make(chan struct{}), version: 1,
		stopTimes: map[types.UID]time.Time{}, startTimes: map[types.UID]time.Time{}, leaseRenewals: map[string]int{},
	}
	for _, add := range []func(*runtime.Scheme) error{
		corev1.AddToScheme, appsv1.AddToScheme, policyv1.AddToScheme, storagev1.AddToScheme, resourcev1.AddToScheme,
		coordinationv1.AddToScheme, eventsv1.AddToScheme, discoveryv1.AddToScheme, autoscalingv2.AddToScheme, v1alpha1.AddToScheme,
	} {
		if err := add(c.scheme); err != nil {
			return nil, err
		}
	}
	c.codecs = serializer.NewCodecFactory(c.scheme)
	for gvk := range c.scheme.AllKnownTypes() {
		o, err := c.scheme.New(gvk)
		if _, ok := o.(client.Object); err == nil && ok {
			plural, _ := meta.UnsafeGuessKindToResource(gvk)
			c.kinds[plural] = gvk
		}
	}
	c.controllers.Go(c.runControllers)
	return c, nil
}

// Close ends all watches, and stops the emulated kubelets and controllers.
func (c *Cluster) Close() {
	close(c.closed)
	c.controllers.Wait()
}

// clusterScoped lists the resources that have no namespace.
var clusterScoped = []string{
	"nodes", "namespaces", "persistentvolumes", "nodegroups", "noderetirements", "storageclasses", "csinodes", "csidrivers",
	"volumeattachments", "deviceclasses", "resourceslices",
}

// request is an API request with its parsed path: resource, namespace, name and subresource.
type request struct {
	*http.Request
	objectKey
	subresource string
	kind        schema.GroupVersionKind
}

// parseRequest parses a request with a path of the form /api/v1/… or /apis/GROUP/VERSION/….
func (c *Cluster) parseRequest(r *http.Request) (request, error) {
	parts := strings.Split(strings.Trim(r.URL.Path, "/"), "/")
	out := request{Request: r}
	switch {
	case parts[0] == "api" && len(parts) > 2:
		out.resource.Version, parts = parts[1], parts[2:]
	case parts[0] == "apis" && len(parts) > 3:
		out.resource.Group, out.resource.Version, parts = parts[1], parts[2], parts[3:]
	default:
		return out, newUnknownPathError(r)
	}
	if parts[0] == "namespaces" && len(parts) > 2 {
		out.namespace, parts = parts[1], parts[2:]
	}
	out.resource.Resource, parts = parts[0], parts[1:]
	if len(parts) > 0 {
		out.name = parts[0]
	}
	if len(parts) > 1 {
		out.subresource = parts[1]
	}
	kind, ok := c.kinds[out.resource]
	out.kind = kind
	if !ok || len(parts) > 2 {
		return out, newUnknownPathError(r)
	}
	return out, nil
}

func newUnknownPathError(r *http.Request) error {
	return apierrors.NewNotFound(schema.GroupResource{Resource: "paths"}, r.URL.Path)
}

func (c *Cluster) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if found := c.discoveryDocument(r.URL.Path); found != nil {
		writeJSON(w, http.StatusOK, found)
		return
	}
	req, err := c.parseRequest(r)
	if err == nil {
		err = c.serveRequest(w, req)
	}
	var status apierrors.APIStatus
	if err != nil && !errors.As(err, &status) {
		status = apierrors.NewBadRequest(err.Error())
	}
	if err != nil {
		apiStatus := status.Status()
		apiStatus.TypeMeta = metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}
		writeJSON(w, int(apiStatus.Code), &apiStatus)
	}
}

func writeJSON(w http.ResponseWriter, status int, body any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(body)
}

func (c *Cluster) serveRequest(w http.ResponseWriter, r request) error {
	switch {
	case r.Method == http.MethodGet && r.name == "" && r.URL.Query().Get("watch") != "":
		return c.serveWatch(w, r)
	case r.Method == http.MethodGet && r.name == "":
		return c.serveList(w, r)
	}
	c.mu.Lock()
	o, code, err := c.serveObjectRequest(r)
	c.mu.Unlock()
	if err == nil {
		writeJSON(w, code, r.formatObject(o))
	}
	return err
}

// serveObjectRequest serves a request that names one object.
func (c *Cluster) serveObjectRequest(r request) (o any, code int, err error) {
	code = http.StatusOK
	if r.subresource == "scale" {
		o, err = c.serveScale(r)
		return o, code, err
	}
	switch r.Method {
	case http.MethodGet:
		o, err = c.getObject(r.objectKey)
	case http.MethodPost:
		code = http.StatusCreated
		if r.subresource == "eviction" {
			o, err = c.evictPodIfAllowed(r)
		} else {
			o, err = c.createObject(r)
		}
	case http.MethodPut:
		o, err = c.updateObject(r)
	case http.MethodPatch:
		o, err = c.patchObject(r)
	case http.MethodDelete:
		o, err = c.serveDelete(r)
	default:
		err = apierrors.NewMethodNotSupported(r.resource.GroupResource(), r.Method)
	}
	return o, code, err
}

func (c *Cluster) getObject(k objectKey) (client.Object, error) {
	if o := c.objects[k]; o != nil {
		return o, nil
	}
	return nil, apierrors.NewNotFound(k.resource.GroupResource(), k.name)
}

// decodeObject decodes the object in the body of a request.
func (c *Cluster) decodeObject(r request) (client.Object, error) {
	into, err := c.scheme.New(r.kind)
	if err != nil {
		return nil, err
	}
	raw, err := readBody(r)
	if err != nil {
		return nil, err
	}
	read, _, err := c.codecs.UniversalDeserializer().Decode(raw, &r.kind, into)
	if err != nil {
		return nil, err
	}
	o := read.(client.Object)
	if r.namespace != "" {
		o.SetNamespace(r.namespace)
	}
	return o, nil
}

func (c *Cluster) createObject(r request) (client.Object, error) {
	o, err := c.decodeObject(r)
	if err != nil {
		return nil, err
	}
	if o.GetName() == "" {
		o.SetName(o.GetGenerateName() + uuid.NewString()[:8])
	}
	recordSizeManager(nil, o, r.fieldManager(), "")
	return c.insertObject(r.resource, o)
}

// insertObject stores a new object. It returns an error if the object exists.
func (c *Cluster) insertObject(resource schema.GroupVersionResource, o client.Object) (client.Object, error) {
	k := objectKey{resource, o.GetNamespace(), o.GetName()}
	if c.objects[k] != nil {
		return nil, apierrors.NewAlreadyExists(resource.GroupResource(), k.name)
	}
	o.SetUID(types.UID(uuid.NewString()))
	o.SetCreationTimestamp(metav1.Now())
	o.SetGeneration(1)
	switch o := o.(type) {
	case *v1alpha1.NodeRetirement:
		o.Status = v1alpha1.NodeRetirementStatus{}
		if o.Spec.Reason == "" {
			o.Spec.Reason = v1alpha1.Requested
		}
	case *v1alpha1.NodeGroup:
		o.Status = v1alpha1.NodeGroupStatus{}
	case *corev1.Pod:
		setPodDefaults(o)
	}
	return c.storeAndNotify(k, o), nil
}

// storeAndNotify stores a new state of an object and wakes the watches. An object in deletion is removed instead,
// once it has no finalizers and nothing of it runs. The caller must not change the object afterwards.
func (c *Cluster) storeAndNotify(k objectKey, o client.Object) client.Object {
	before := c.objects[k]
	c.version++
	o.SetResourceVersion(strconv.FormatInt(c.version, 10))
	o.GetObjectKind().SetGroupVersionKind(c.kinds[k.resource])
	happened := change{key: k, version: c.version, eventType: watch.Added, before: before, after: o}
	if before != nil {
		happened.eventType = watch.Modified
	}
	if before != nil && o.GetDeletionTimestamp() != nil && len(o.GetFinalizers()) == 0 && c.hasStopped(o) {
		happened.eventType = watch.Deleted
		delete(c.objects, k)
	} else {
		c.objects[k] = o
	}
	c.changes = append(c.changes, happened)
	close(c.changed)
	c.changed = make(chan struct{})
	return o
}

// replaceObjectIfUnchanged stores a new state of an object. It returns a Conflict error if the request's
// resourceVersion or UID differs from the stored object's.
func (c *Cluster) replaceObjectIfUnchanged(r request, o client.Object) (client.Object, error) {
	before, err := c.getObject(r.objectKey)
	if err != nil {
		return nil, err
	}
	if v := o.GetResourceVersion(); v != "" && v != before.GetResourceVersion() {
		return nil, apierrors.NewConflict(r.resource.GroupResource(), r.name, errors.New("the object has been modified"))
	}
	if uid := o.GetUID(); uid != "" && uid != before.GetUID() {
		return nil, apierrors.NewConflict(r.resource.GroupResource(), r.name, fmt.Errorf("the UID is %s", before.GetUID()))
	}
	o.SetUID(before.GetUID())
	o.SetCreationTimestamp(before.GetCreationTimestamp())
	o.SetDeletionTimestamp(before.GetDeletionTimestamp())
	o.SetDeletionGracePeriodSeconds(before.GetDeletionGracePeriodSeconds())
	if o, err = c.mergeSubresource(r.subresource, before, o); err != nil {
		return nil, err
	}
	recordSizeManager(before, o, r.fieldManager(), r.subresource)
	if equalIgnoringVersion(before, o) {
		return before, nil
	}
	return c.storeAndNotify(r.objectKey, o), nil
}

// mergeSubresource returns the object to store for a write. A write to the status changes only the status; another
// write changes everything except the status.
func (c *Cluster) mergeSubresource(subresource string, before, o client.Object) (client.Object, error) {
	was, err := runtime.DefaultUnstructuredConverter.ToUnstructured(before)
	if err != nil {
		return nil, err
	}
	is, err := runtime.DefaultUnstructuredConverter.ToUnstructured(o)
	if err != nil {
		return nil, err
	}
	generation := before.GetGeneration()
	if subresource == "status" {
		was["status"] = is["status"]
		is = was
	} else if status, ok := was["status"]; ok {
		is["status"] = status
	} else {
		delete(is, "status")
	}
	if a, b := fmt.Sprint(was["spec"]), fmt.Sprint(is["spec"]); a != b {
		generation++
	}
	out, err := c.scheme.New(c.kindOf(before))
	if err != nil {
		return nil, err
	}
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(is, out); err != nil {
		return nil, err
	}
	out.(client.Object).SetGeneration(generation)
	return out.(client.Object), nil
}

func (c *Cluster) kindOf(o client.Object) schema.GroupVersionKind {
	kinds, _, err := c.scheme.ObjectKinds(o)
	if err != nil {
		panic(err)
	}
	return kinds[0]
}

func (c *Cluster) updateObject(r request) (client.Object, error) {
	o, err := c.decodeObject(r)
	if err != nil {
		return nil, err
	}
	return c.replaceObjectIfUnchanged(r, o)
}

// serveDelete deletes one object, or all objects that a list request selects.
func (c *Cluster) serveDelete(r request) (any, error) {
	var o metav1.DeleteOptions
	raw, err := readBody(r)
	if err != nil {
		return nil, err
	}
	if len(raw) > 0 {
		if _, _, err := c.codecs.UniversalDeserializer().Decode(raw, new(metav1.SchemeGroupVersion.WithKind("DeleteOptions")), &o); err != nil {
			if err := json.Unmarshal(raw, &o); err != nil {
				return nil, err
			}
		}
	}
	if r.name != "" {
		return c.deleteOrStartDeletion(r.objectKey, o)
	}
	for _, found := range c.selectObjects(r) {
		k := r.objectKey
		k.namespace, k.name = found.GetNamespace(), found.GetName()
		if _, err := c.deleteOrStartDeletion(k, o); err != nil {
			return nil, err
		}
	}
	return &metav1.Status{TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}, Status: metav1.StatusSuccess}, nil
}

// deleteOrStartDeletion deletes an object. If the object has finalizers, or is a running pod, it only sets the
// deletion timestamp.
func (c *Cluster) deleteOrStartDeletion(k objectKey, o metav1.DeleteOptions) (client.Object, error) {
	before, err := c.getObject(k)
	if err != nil {
		return nil, err
	}
	if p := o.Preconditions; p != nil {
		if p.UID != nil && *p.UID != before.GetUID() || p.ResourceVersion != nil && *p.ResourceVersion != before.GetResourceVersion() {
			return nil, apierrors.NewConflict(k.resource.GroupResource(), k.name, errors.New("the precondition failed"))
		}
	}
	deleted := before.DeepCopyObject().(client.Object)
	if deleted.GetDeletionTimestamp() == nil {
		now := metav1.Now()
		deleted.SetDeletionTimestamp(&now)
	}
	if pod, ok := deleted.(*corev1.Pod); ok {
		c.startOrShortenTermination(pod, o.GracePeriodSeconds)
	}
	if equalIgnoringVersion(before, deleted) {
		return before, nil
	}
	return c.storeAndNotify(k, deleted), nil
}

func equalIgnoringVersion(a, b client.Object) bool {
	x, y := a.DeepCopyObject().(client.Object), b.DeepCopyObject().(client.Object)
	for _, o := range []client.Object{x, y} {
		o.SetResourceVersion("")
		o.GetObjectKind().SetGroupVersionKind(schema.GroupVersionKind{})
		o.SetManagedFields(nil)
	}
	one, err := json.Marshal(x)
	other, err2 := json.Marshal(y)
	return err == nil && err2 == nil && slices.Equal(one, other)
}
