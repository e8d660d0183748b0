package doctor

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	authorizationv1 "k8s.io/api/authorization/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/pager"

	"github.com/slipway-dev/slipway/api/v1alpha1"
)

const (
	// nodeLeaseNamespace is the namespace of the kubelets' Leases.
	nodeLeaseNamespace = "kube-node-lease"
	extensionsGroup    = "apiextensions.k8s.io"
	// maxConcurrentRequests limits the number of concurrent requests.
	maxConcurrentRequests = 8
	// requestTimeout limits one request, such as one page of a list, if the caller sets no timeout. So a silent API
	// server is reported too.
	requestTimeout = 30 * time.Second
)

// Options configures Read. The zero value is valid.
type Options struct {
	// AskAgents makes Read get the agents' metrics through the API server.
	AskAgents bool
}

// ReadFacts reads what the rules need. Errors of single readings are in Facts.Unread. It fails if the configuration is
// invalid, the API server cannot be reached, or ctx ends.
func ReadFacts(ctx context.Context, config *rest.Config, o Options) (*Facts, error) {
	r, err := newReader(config, &Facts{
		NodeLeases: map[string]*coordinationv1.Lease{}, LeaderLeases: map[Key]*coordinationv1.Lease{}, ToolConfigMaps: map[Key]bool{},
		CRDs: map[string]*unstructured.Unstructured{}, LastReads: map[Key]LastRead{}, ReadErrors: map[Reading]error{},
	})
	if err != nil {
		return nil, err
	}
	r.readClusterObjects(ctx)
	if err := r.facts.findConnectionError(); err != nil && ctx.Err() == nil {
		return nil, fmt.Errorf("cannot read from the API server %s: %w", config.Host, err)
	}
	r.readPartObjects(ctx, o) // the parts are known now
	r.facts.Clock.Local = time.Now()
	r.readServerVersionAndClock(ctx)
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	return r.facts, nil
}

type reader struct {
	client     kubernetes.Interface
	objects    dynamic.Interface
	httpClient *http.Client

	mu    sync.Mutex // guards facts
	facts *Facts
}

func newReader(config *rest.Config, f *Facts) (*reader, error) {
	config = rest.CopyConfig(config)
	config.Timeout = cmp.Or(config.Timeout, requestTimeout)
	typed, plain := rest.CopyConfig(config), rest.CopyConfig(config)
	typed.ContentType = "application/vnd.kubernetes.protobuf"
	typed.AcceptContentTypes = typed.ContentType + ",application/json"
	plain.ContentType, plain.AcceptContentTypes = "", "" // custom resources are served as JSON
	client, err := kubernetes.NewForConfig(typed)
	if err != nil {
		return nil, err
	}
	objects, err := dynamic.NewForConfig(plain)
	if err != nil {
		return nil, err
	}
	web, err := rest.HTTPClientFor(plain)
	if err != nil {
		return nil, err
	}
	return &reader{client: client, objects: objects, httpClient: web, facts: f}, nil
}

// task is one reading.
type task struct {
	reading Reading
	read    func(context.Context) error
}

// runTasks runs tasks concurrently and records their errors.
func (r *reader) runTasks(ctx context.Context, tasks []task) {
	var group errgroup.Group
	group.SetLimit(maxConcurrentRequests)
	for _, t := range tasks {
		group.Go(func() error {
			if err := t.read(ctx); err != nil {
				r.mu.Lock()
				defer r.mu.Unlock()
				r.facts.ReadErrors[t.reading] = err
			}
			return nil
		})
	}
	_ = group.Wait() // no task returns an error
}

func (r *reader) readClusterObjects(ctx context.Context) {
	f, core, apps := r.facts, r.client.CoreV1(), r.client.AppsV1()
	tasks := []task{
		{nodesReading, func(ctx context.Context) error { return listAll(ctx, core.Nodes().List, &f.Nodes) }},
		{podsReading, func(ctx context.Context) error { return listAll(ctx, core.Pods("").List, &f.Pods) }},
		{pdbsReading, func(ctx context.Context) error {
			return listAll(ctx, r.client.PolicyV1().PodDisruptionBudgets("").List, &f.PDBs)
		}},
		{deploymentsReading, func(ctx context.Context) error { return listAll(ctx, apps.Deployments("").List, &f.Deployments) }},
		{statefulSetsReading, func(ctx context.Context) error { return listAll(ctx, apps.StatefulSets("").List, &f.StatefulSets) }},
		{daemonSetsReading, func(ctx context.Context) error { return listAll(ctx, apps.DaemonSets("").List, &f.DaemonSets) }},
		{nodeLeasesReading, r.readNodeLeases},
		{apiGroupsReading, r.readAPIGroups},
		{nodeGroupsReading, r.readNodeGroups},
		{crdsReading, r.readCRDs},
	}
	for _, key := range listToolConfigMaps() {
		tasks = append(tasks, task{toolConfigMapsReading, func(ctx context.Context) error {
			_, err := core.ConfigMaps(key.Namespace).Get(ctx, key.Name, metav1.GetOptions{})
			return r.storeIfFound(err, func() { f.ToolConfigMaps[key] = true })
		}})
	}
	for _, right := range listViewerRights() {
		tasks = append(tasks, task{callerAccessReading, func(ctx context.Context) error { return r.readCallerAccess(ctx, right) }})
	}
	r.runTasks(ctx, tasks)
}

func (r *reader) readPartObjects(ctx context.Context, o Options) {
	var tasks []task
	for _, p := range r.facts.FindParts() {
		for _, right := range listPartRights(&p) {
			tasks = append(tasks, task{partAccessReading, func(ctx context.Context) error {
				return r.readPartAccess(ctx, p, right.withPartNamespace(p.leaseNamespace()))
			}})
		}
		if key, ok := findLeaderLease(&p); ok {
			tasks = append(tasks, task{leaderLeasesReading, func(ctx context.Context) error {
				lease, err := r.client.CoordinationV1().Leases(key.Namespace).Get(ctx, key.Name, metav1.GetOptions{})
				return r.storeIfFound(err, func() { r.facts.LeaderLeases[key] = lease })
			}})
		}
	}
	if o.AskAgents {
		tasks = append(tasks, r.newAgentMetricsTasks()...)
	}
	r.runTasks(ctx, tasks)
}

// storeIfFound calls keep if a get has found its object. A missing object is not an error.
func (r *reader) storeIfFound(err error, keep func()) error {
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err == nil {
		r.mu.Lock()
		defer r.mu.Unlock()
		keep()
	}
	return err
}

// listAll appends all objects of one kind, page by page.
func listAll[L runtime.Object, T any](ctx context.Context, call func(context.Context, metav1.ListOptions) (L, error), into *[]T) error {
	pages := pager.New(func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) { return call(ctx, o) })
	return pages.EachListItem(ctx, metav1.ListOptions{}, func(o runtime.Object) error {
		item, ok := o.(T)
		if !ok {
			return fmt.Errorf("unexpected object of type %T", o)
		}
		*into = append(*into, item)
		return nil
	})
}

func (r *reader) readNodeLeases(ctx context.Context) error {
	var all []*coordinationv1.Lease
	err := listAll(ctx, r.client.CoordinationV1().Leases(nodeLeaseNamespace).List, &all)
	for _, l := range all {
		r.facts.NodeLeases[l.Name] = l
	}
	return err
}

// readAPIGroups does not use the discovery client, because that treats a missing permission as an empty list.
func (r *reader) readAPIGroups(ctx context.Context) error {
	var all metav1.APIGroupList
	if err := r.client.Discovery().RESTClient().Get().AbsPath("/apis").Do(ctx).Into(&all); err != nil {
		return err
	}
	for i := range all.Groups {
		r.facts.APIGroups = append(r.facts.APIGroups, all.Groups[i].Name)
	}
	return nil
}

// readNodeGroups reads NodeGroups if they are served. The rule about CRDs decides whether they must be.
func (r *reader) readNodeGroups(ctx context.Context) error {
	groups := r.objects.Resource(v1alpha1.GroupVersion.WithResource("nodegroups"))
	var all []*unstructured.Unstructured
	err := listAll(ctx, groups.List, &all)
	if apierrors.IsNotFound(err) {
		return nil
	}
	for _, u := range all {
		var g v1alpha1.NodeGroup
		if err := runtime.DefaultUnstructuredConverter.FromUnstructured(u.Object, &g); err != nil {
			return fmt.Errorf("NodeGroup %s: %w", u.GetName(), err)
		}
		r.facts.NodeGroups = append(r.facts.NodeGroups, g)
	}
	return err
}

func (r *reader) readCRDs(ctx context.Context) error {
	wanted, err := ownCRDs()
	if err != nil {
		return err
	}
	there := r.objects.Resource(schema.GroupVersionResource{Group: extensionsGroup, Version: "v1", Resource: "customresourcedefinitions"})
	for _, want := range wanted {
		have, err := there.Get(ctx, want.GetName(), metav1.GetOptions{})
		if err := r.storeIfFound(err, func() { r.facts.CRDs[want.GetName()] = have }); err != nil {
			return err
		}
	}
	return nil
}

// toResourceAttributes converts a permission for an access review.
func (r Permission) toResourceAttributes() *authorizationv1.ResourceAttributes {
	resource, sub, _ := strings.Cut(r.Resource, "/")
	return &authorizationv1.ResourceAttributes{
		Namespace: r.Namespace, Verb: r.Verb, Group: r.Group, Version: "*", Resource: resource, Subresource: sub, Name: r.Name,
	}
}

// readCallerAccess asks whether the caller has a permission.
func (r *reader) readCallerAccess(ctx context.Context, right Permission) error {
	answer, err := r.client.AuthorizationV1().SelfSubjectAccessReviews().Create(ctx, &authorizationv1.SelfSubjectAccessReview{
		Spec: authorizationv1.SelfSubjectAccessReviewSpec{ResourceAttributes: right.toResourceAttributes()},
	}, metav1.CreateOptions{})
	if err != nil {
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.facts.CallerAccess = append(r.facts.CallerAccess, PermissionCheck{Permission: right, Allowed: answer.Status.Allowed})
	return nil
}

// readPartAccess asks whether the account of a part has a permission.
func (r *reader) readPartAccess(ctx context.Context, p Part, right Permission) error {
	namespace := p.namespace()
	answer, err := r.client.AuthorizationV1().SubjectAccessReviews().Create(ctx, &authorizationv1.SubjectAccessReview{
		Spec: authorizationv1.SubjectAccessReviewSpec{
			User:               "system:serviceaccount:" + namespace + ":" + p.ServiceAccount,
			Groups:             []string{"system:serviceaccounts", "system:serviceaccounts:" + namespace, "system:authenticated"},
			ResourceAttributes: right.toResourceAttributes(),
		},
	}, metav1.CreateOptions{})
	if err != nil {
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.facts.PartAccess = append(r.facts.PartAccess, PermissionCheck{p, right, answer.Status.Allowed})
	return nil
}

// readServerVersionAndClock reads the API server's time from the Date header, which has whole seconds, and also its version.
func (r *reader) readServerVersionAndClock(ctx context.Context) {
	version, err := r.client.Discovery().ServerVersion()
	if err == nil {
		r.facts.Server = version.GitVersion
	}
	if err := r.readClockFromDateHeader(ctx); err != nil {
		r.facts.ReadErrors[clockReading] = err
	}
}

func (r *reader) readClockFromDateHeader(ctx context.Context) error {
	url := r.client.CoreV1().RESTClient().Get().AbsPath("/version").URL()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url.String(), nil)
	if err != nil {
		return err
	}
	asked := time.Now()
	answer, err := r.httpClient.Do(req)
	if err != nil {
		return err
	}
	took := time.Since(asked)
	defer func() { _ = answer.Body.Close() }() // It was only read.
	_, _ = io.Copy(io.Discard, io.LimitReader(answer.Body, 1<<16))
	date, err := http.ParseTime(answer.Header.Get("Date"))
	if err != nil {
		return fmt.Errorf("parse the Date header of the API server: %w", err)
	}
	// On average, half of the second in the header has passed.
	r.facts.Clock = Clock{Server: date.Add(time.Second / 2), Local: asked.Add(took / 2), MaxError: took/2 + time.Second/2}
	return nil
}
