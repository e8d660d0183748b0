package fakecluster

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	jsonpatch "gopkg.in/evanphx/json-patch.v4"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/strategicpatch"
	"k8s.io/apimachinery/pkg/watch"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

func readBody(r request) ([]byte, error) { return io.ReadAll(r.Body) }

// discoveryDocument returns the discovery document of a path, or nil for a path of objects.
func (c *Cluster) discoveryDocument(path string) any {
	parts := strings.Split(strings.Trim(path, "/"), "/")
	switch {
	case path == "/api":
		return &metav1.APIVersions{TypeMeta: metav1.TypeMeta{Kind: "APIVersions"}, Versions: []string{"v1"}}
	case path == "/apis":
		return c.apiGroups()
	case path == "/version":
		return map[string]string{"major": "1", "minor": "37", "gitVersion": "v1.37.0"}
	case parts[0] == "api" && len(parts) == 2:
		return c.apiResources(schema.GroupVersion{Version: parts[1]})
	case parts[0] == "apis" && len(parts) == 3:
		return c.apiResources(schema.GroupVersion{Group: parts[1], Version: parts[2]})
	}
	return nil
}

func (c *Cluster) apiGroups() *metav1.APIGroupList {
	all := &metav1.APIGroupList{TypeMeta: metav1.TypeMeta{Kind: "APIGroupList", APIVersion: "v1"}}
	for _, gv := range c.scheme.PrioritizedVersionsAllGroups() {
		if gv.Group == "" {
			continue
		}
		version := metav1.GroupVersionForDiscovery{GroupVersion: gv.String(), Version: gv.Version}
		all.Groups = append(all.Groups, metav1.APIGroup{
			Name: gv.Group, Versions: []metav1.GroupVersionForDiscovery{version}, PreferredVersion: version,
		})
	}
	return all
}

func (c *Cluster) apiResources(gv schema.GroupVersion) *metav1.APIResourceList {
	all := &metav1.APIResourceList{TypeMeta: metav1.TypeMeta{Kind: "APIResourceList", APIVersion: "v1"}, GroupVersion: gv.String()}
	for resource, kind := range c.kinds {
		if resource.GroupVersion() == gv {
			all.APIResources = append(all.APIResources, metav1.APIResource{
				Name: resource.Resource, SingularName: strings.ToLower(kind.Kind), Kind: kind.Kind,
				Namespaced: !slices.Contains(clusterScoped, resource.Resource),
				Verbs:      metav1.Verbs{"create", "delete", "deletecollection", "get", "list", "patch", "update", "watch"},
			})
		}
	}
	return all
}

// formatObject returns an object in the form that the client requested: complete, or only its metadata.
func (r request) formatObject(o any) any {
	object, ok := o.(client.Object)
	if !ok || !strings.Contains(r.Header.Get("Accept"), "as=PartialObjectMetadata;") {
		return o
	}
	raw, err := json.Marshal(object)
	if err != nil {
		return o
	}
	partial := &metav1.PartialObjectMetadata{}
	if err := json.Unmarshal(raw, partial); err != nil {
		return o
	}
	partial.TypeMeta = metav1.TypeMeta{Kind: "PartialObjectMetadata", APIVersion: "meta.k8s.io/v1"}
	return partial
}

// objectPredicate returns the predicate of a list or watch.
func (r request) objectPredicate() (func(client.Object) bool, error) {
	label, err := labels.Parse(r.URL.Query().Get("labelSelector"))
	if err != nil {
		return nil, err
	}
	field, err := fields.ParseSelector(r.URL.Query().Get("fieldSelector"))
	if err != nil {
		return nil, err
	}
	return func(o client.Object) bool {
		if r.namespace != "" && o.GetNamespace() != r.namespace || !label.Matches(labels.Set(o.GetLabels())) {
			return false
		}
		set := fields.Set{"metadata.name": o.GetName(), "metadata.namespace": o.GetNamespace()}
		if p, ok := o.(*corev1.Pod); ok {
			set["spec.nodeName"], set["status.phase"] = p.Spec.NodeName, string(p.Status.Phase)
		}
		if e, ok := o.(*corev1.Event); ok {
			set["involvedObject.name"], set["reason"] = e.InvolvedObject.Name, e.Reason
		}
		return field.Matches(set)
	}, nil
}

// selectObjects returns the objects of a list request, ordered by name.
func (c *Cluster) selectObjects(r request) (found []client.Object) {
	is, err := r.objectPredicate()
	if err != nil {
		return nil
	}
	for k, o := range c.objects {
		if k.resource == r.resource && is(o) {
			found = append(found, o)
		}
	}
	slices.SortFunc(found, func(a, b client.Object) int {
		return strings.Compare(a.GetNamespace()+"/"+a.GetName(), b.GetNamespace()+"/"+b.GetName())
	})
	return found
}

func (c *Cluster) serveList(w http.ResponseWriter, r request) error {
	if _, err := r.objectPredicate(); err != nil {
		return err
	}
	c.mu.Lock()
	found, version := c.selectObjects(r), c.version
	c.mu.Unlock()
	items := make([]any, 0, len(found))
	kind, group := r.kind.Kind+"List", r.kind.GroupVersion().String()
	for _, o := range found {
		items = append(items, r.formatObject(o))
	}
	if strings.Contains(r.Header.Get("Accept"), "as=PartialObjectMetadataList;") {
		kind, group = "PartialObjectMetadataList", "meta.k8s.io/v1"
	}
	writeJSON(w, http.StatusOK, map[string]any{
		"kind": kind, "apiVersion": group, "items": items,
		"metadata": map[string]string{"resourceVersion": strconv.FormatInt(version, 10)},
	})
	return nil
}

// serveWatch serves events until the client disconnects or the timeout ends.
func (c *Cluster) serveWatch(w http.ResponseWriter, r request) error {
	is, err := r.objectPredicate()
	if err != nil {
		return err
	}
	w.Header().Set("Content-Type", "application/json")
	query := r.URL.Query()
	from, _ := strconv.ParseInt(query.Get("resourceVersion"), 10, 64)
	tell := func(kind watch.EventType, o any) {
		_ = json.NewEncoder(w).Encode(map[string]any{"type": kind, "object": o})
	}
	c.mu.Lock()
	initial, version := c.selectObjects(r), c.version
	c.mu.Unlock()
	if from == 0 || query.Get("sendInitialEvents") == "true" {
		from = version
		for _, o := range initial {
			tell(watch.Added, r.formatObject(o))
		}
		if query.Get("sendInitialEvents") == "true" {
			tell(watch.Bookmark, r.newBookmark(version))
		}
	}
	w.(http.Flusher).Flush()
	var timeout <-chan time.Time
	if seconds, _ := strconv.Atoi(query.Get("timeoutSeconds")); seconds > 0 {
		timer := time.NewTimer(time.Duration(seconds) * time.Second)
		defer timer.Stop()
		timeout = timer.C
	}
	for {
		news, changed := c.changesSince(from)
		for _, e := range news {
			from = e.version
			if kind := e.watchEventType(r, is); kind != "" {
				tell(kind, r.formatObject(e.after))
			}
		}
		select {
		case <-changed:
		case <-r.Context().Done():
			return nil
		case <-c.closed:
			return nil
		case <-timeout:
			return nil
		}
	}
}

// newBookmark returns the event that ends the initial events.
func (r request) newBookmark(version int64) any {
	group, kind := r.kind.GroupVersion().String(), r.kind.Kind
	if strings.Contains(r.Header.Get("Accept"), "as=PartialObjectMetadata;") {
		group, kind = "meta.k8s.io/v1", "PartialObjectMetadata"
	}
	return map[string]any{"kind": kind, "apiVersion": group, "metadata": map[string]any{
		"resourceVersion": strconv.FormatInt(version, 10),
		"annotations":     map[string]string{metav1.InitialEventsAnnotationKey: "true"},
	}}
}

func (c *Cluster) changesSince(version int64) (changes []change, changed <-chan struct{}) {
	c.mu.Lock()
	defer c.mu.Unlock()
	i, _ := slices.BinarySearchFunc(c.changes, version+1, func(e change, v int64) int { return int(e.version - v) })
	return c.changes[i:len(c.changes):len(c.changes)], c.changed
}

// watchEventType returns the event type of a change for a watch. It is empty if the change does not concern the watch.
func (e change) watchEventType(r request, matches func(client.Object) bool) watch.EventType {
	if e.key.resource != r.resource {
		return ""
	}
	was := e.before != nil && matches(e.before)
	now := matches(e.after) && e.eventType != watch.Deleted
	switch {
	case was && now:
		return watch.Modified
	case was:
		return watch.Deleted
	case now:
		return watch.Added
	}
	return ""
}

func (c *Cluster) patchObject(r request) (client.Object, error) {
	before, err := c.getObject(r.objectKey)
	if err != nil {
		return nil, err
	}
	diff, err := readBody(r)
	if err != nil {
		return nil, err
	}
	raw, err := json.Marshal(before)
	if err != nil {
		return nil, err
	}
	into, err := c.scheme.New(r.kind)
	if err != nil {
		return nil, err
	}
	switch kind := types.PatchType(r.Header.Get("Content-Type")); kind {
	case types.MergePatchType:
		raw, err = jsonpatch.MergePatch(raw, diff)
	case types.StrategicMergePatchType:
		raw, err = strategicpatch.StrategicMergePatch(raw, diff, into)
	default:
		return nil, apierrors.NewGenericServerResponse(http.StatusUnsupportedMediaType, r.Method, r.resource.GroupResource(), r.name, string(kind), 0, false)
	}
	if err != nil {
		return nil, fmt.Errorf("patch of %s: %w", r.name, err)
	}
	if err := json.Unmarshal(raw, into); err != nil {
		return nil, err
	}
	return c.replaceObjectIfUnchanged(r, into.(client.Object))
}
