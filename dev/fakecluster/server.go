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
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
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

	mu       sync.Mutex
	version  int64
	objects  map[key]client.Object // stored objects are immutable
	log      []change
	changed  chan struct{} // closed at the next change
	closed   chan struct{}
	playing  sync.WaitGroup
	deadline map[types.UID]time.Time // time at which a deleted pod has stopped
	renewals map[string]int          // number of renewals of a node's Lease since power-on
}

type key struct {
	resource        schema.GroupVersionResource
	namespace, name string
}

// change is a change of an object, as watches report it.
type change struct {
	key     key
	version int64
	kind    watch.EventType
	before  client.Object // nil if the object was created
	now     client.Object
}

// New starts a cluster without nodes. Call Close to stop it.
func New() (*Cluster, error) {
	c := &Cluster{
		scheme: runtime.NewScheme(), kinds: map[schema.GroupVersionResource]schema.GroupVersionKind{},
		objects: map[key]client.Object{}, changed: make(chan struct{}), closed: make(chan struct{}), version: 1,
		deadline: map[types.UID]time.Time{}, renewals: map[string]int{},
	}
	for _, add := range []func(*runtime.Scheme) error{
		corev1.AddToScheme, appsv1.AddToScheme, policyv1.AddToScheme, storagev1.AddToScheme, resourcev1.AddToScheme,
		coordinationv1.AddToScheme, eventsv1.AddToScheme, v1alpha1.AddToScheme,
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
	c.playing.Go(c.play)
	return c, nil
}

// Close ends the watches, kubelets and controllers.
func (c *Cluster) Close() {
	close(c.closed)
	c.playing.Wait()
}

// Resources without namespace.
var clusterScoped = []string{
	"nodes", "namespaces", "persistentvolumes", "nodegroups", "noderetirements", "storageclasses", "csinodes", "csidrivers",
	"volumeattachments", "deviceclasses", "resourceslices",
}

// request is a parsed request.
type request struct {
	*http.Request
	key
	subresource string
	kind        schema.GroupVersionKind
}

// parse parses the paths /api/v1/… and /apis/GROUP/VERSION/….
func (c *Cluster) parse(r *http.Request) (request, error) {
	parts := strings.Split(strings.Trim(r.URL.Path, "/"), "/")
	out := request{Request: r}
	switch {
	case parts[0] == "api" && len(parts) > 2:
		out.resource.Version, parts = parts[1], parts[2:]
	case parts[0] == "apis" && len(parts) > 3:
		out.resource.Group, out.resource.Version, parts = parts[1], parts[2], parts[3:]
	default:
		return out, unknownPath(r)
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
		return out, unknownPath(r)
	}
	return out, nil
}

func unknownPath(r *http.Request) error {
	return apierrors.NewNotFound(schema.GroupResource{Resource: "paths"}, r.URL.Path)
}

func (c *Cluster) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if found := c.discover(r.URL.Path); found != nil {
		write(w, http.StatusOK, found)
		return
	}
	asked, err := c.parse(r)
	if err == nil {
		err = c.serve(w, asked)
	}
	var status apierrors.APIStatus
	if err != nil && !errors.As(err, &status) {
		status = apierrors.NewBadRequest(err.Error())
	}
	if err != nil {
		said := status.Status()
		said.TypeMeta = metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}
		write(w, int(said.Code), &said)
	}
}

func write(w http.ResponseWriter, status int, body any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(body)
}

func (c *Cluster) serve(w http.ResponseWriter, r request) error {
	switch {
	case r.Method == http.MethodGet && r.name == "" && r.URL.Query().Get("watch") != "":
		return c.watch(w, r)
	case r.Method == http.MethodGet && r.name == "":
		return c.list(w, r)
	}
	c.mu.Lock()
	o, code, err := c.change(r)
	c.mu.Unlock()
	if err == nil {
		write(w, code, r.shown(o))
	}
	return err
}

// change serves a request for one object.
func (c *Cluster) change(r request) (o any, code int, err error) {
	code = http.StatusOK
	switch r.Method {
	case http.MethodGet:
		o, err = c.get(r.key)
	case http.MethodPost:
		code = http.StatusCreated
		if r.subresource == "eviction" {
			o, err = c.evict(r)
		} else {
			o, err = c.create(r)
		}
	case http.MethodPut:
		o, err = c.update(r)
	case http.MethodPatch:
		o, err = c.patch(r)
	case http.MethodDelete:
		o, err = c.remove(r)
	default:
		err = apierrors.NewMethodNotSupported(r.resource.GroupResource(), r.Method)
	}
	return o, code, err
}

func (c *Cluster) get(k key) (client.Object, error) {
	if o := c.objects[k]; o != nil {
		return o, nil
	}
	return nil, apierrors.NewNotFound(k.resource.GroupResource(), k.name)
}

// read decodes the object of a request.
func (c *Cluster) read(r request) (client.Object, error) {
	into, err := c.scheme.New(r.kind)
	if err != nil {
		return nil, err
	}
	raw, err := body(r)
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

func (c *Cluster) create(r request) (client.Object, error) {
	o, err := c.read(r)
	if err != nil {
		return nil, err
	}
	if o.GetName() == "" {
		o.SetName(o.GetGenerateName() + uuid.NewString()[:8])
	}
	return c.insert(r.resource, o)
}

// insert stores a new object.
func (c *Cluster) insert(resource schema.GroupVersionResource, o client.Object) (client.Object, error) {
	k := key{resource, o.GetNamespace(), o.GetName()}
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
		admit(o)
	}
	return c.store(k, o), nil
}

// store stores a new state of an object. The caller must not change the object afterwards.
func (c *Cluster) store(k key, o client.Object) client.Object {
	before := c.objects[k]
	c.version++
	o.SetResourceVersion(strconv.FormatInt(c.version, 10))
	o.GetObjectKind().SetGroupVersionKind(c.kinds[k.resource])
	happened := change{key: k, version: c.version, kind: watch.Added, before: before, now: o}
	if before != nil {
		happened.kind = watch.Modified
	}
	if before != nil && o.GetDeletionTimestamp() != nil && len(o.GetFinalizers()) == 0 && c.stopped(o) {
		happened.kind = watch.Deleted
		delete(c.objects, k)
	} else {
		c.objects[k] = o
	}
	c.log = append(c.log, happened)
	close(c.changed)
	c.changed = make(chan struct{})
	return o
}

// replace stores a new state of an object, if the request's resourceVersion and UID match.
func (c *Cluster) replace(r request, o client.Object) (client.Object, error) {
	before, err := c.get(r.key)
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
	if o, err = c.part(r.subresource, before, o); err != nil {
		return nil, err
	}
	if same(before, o) {
		return before, nil
	}
	return c.store(r.key, o), nil
}

// part merges a write into the stored object: only the status, or everything except the status.
func (c *Cluster) part(subresource string, before, o client.Object) (client.Object, error) {
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

func (c *Cluster) update(r request) (client.Object, error) {
	o, err := c.read(r)
	if err != nil {
		return nil, err
	}
	return c.replace(r, o)
}

// remove serves a DELETE of one object, or of all objects of a list.
func (c *Cluster) remove(r request) (any, error) {
	var o metav1.DeleteOptions
	raw, err := body(r)
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
		return c.discard(r.key, o)
	}
	for _, found := range c.listed(r) {
		k := r.key
		k.namespace, k.name = found.GetNamespace(), found.GetName()
		if _, err := c.discard(k, o); err != nil {
			return nil, err
		}
	}
	return &metav1.Status{TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}, Status: metav1.StatusSuccess}, nil
}

// discard deletes an object, or marks it as being deleted.
func (c *Cluster) discard(k key, o metav1.DeleteOptions) (client.Object, error) {
	before, err := c.get(k)
	if err != nil {
		return nil, err
	}
	if p := o.Preconditions; p != nil {
		if p.UID != nil && *p.UID != before.GetUID() || p.ResourceVersion != nil && *p.ResourceVersion != before.GetResourceVersion() {
			return nil, apierrors.NewConflict(k.resource.GroupResource(), k.name, errors.New("the precondition failed"))
		}
	}
	gone := before.DeepCopyObject().(client.Object)
	if gone.GetDeletionTimestamp() == nil {
		now := metav1.Now()
		gone.SetDeletionTimestamp(&now)
	}
	if pod, ok := gone.(*corev1.Pod); ok {
		c.stop(pod, o.GracePeriodSeconds)
	}
	if same(before, gone) {
		return before, nil
	}
	return c.store(k, gone), nil
}

func same(a, b client.Object) bool {
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
