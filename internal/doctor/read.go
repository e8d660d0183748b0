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
	// nodeLeaseNamespace is where kubelets renew their Leases.
	nodeLeaseNamespace = "kube-node-lease"
	extensions         = "apiextensions.k8s.io"
	// atOnce bounds the requests that are under way together.
	atOnce = 8
	// readWithin bounds one request, such as one page of a list, where the caller has set no bound; so that an API server
	// that answers nothing is told of too.
	readWithin = 30 * time.Second
)

// Options of Read. The zero value is good.
type Options struct {
	// AskAgents has the agents' metrics read, through the API server.
	AskAgents bool
}

// Read reads what the rules need. What cannot be read is in Facts.Unread; an error is returned only where there is nothing
// to work with: the configuration is of no use, the cluster was not seen at all, or ctx ended.
func Read(ctx context.Context, config *rest.Config, o Options) (*Facts, error) {
	r, err := newReader(config, &Facts{
		NodeLeases: map[string]*coordinationv1.Lease{}, LeaderLeases: map[Key]*coordinationv1.Lease{}, Marks: map[Key]bool{},
		CRDs: map[string]*unstructured.Unstructured{}, LastRead: map[Key]LastRead{}, Unread: map[Reading]error{},
	})
	if err != nil {
		return nil, err
	}
	r.objectsOfTheCluster(ctx)
	if err := r.f.unseen(); err != nil && ctx.Err() == nil {
		return nil, fmt.Errorf("nothing can be read from the API server %s: %w", config.Host, err)
	}
	r.whatPartsShow(ctx, o) // which parts there are is known by now
	r.f.Clock.Here = time.Now()
	r.readClock(ctx)
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	return r.f, nil
}

type reader struct {
	client  kubernetes.Interface
	objects dynamic.Interface
	web     *http.Client

	mu sync.Mutex // over f
	f  *Facts
}

func newReader(config *rest.Config, f *Facts) (*reader, error) {
	config = rest.CopyConfig(config)
	config.Timeout = cmp.Or(config.Timeout, readWithin)
	typed, plain := rest.CopyConfig(config), rest.CopyConfig(config)
	typed.ContentType = "application/vnd.kubernetes.protobuf"
	typed.AcceptContentTypes = typed.ContentType + ",application/json"
	plain.ContentType, plain.AcceptContentTypes = "", "" // custom resources come as JSON
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
	return &reader{client: client, objects: objects, web: web, f: f}, nil
}

// task is one thing to read.
type task struct {
	reading Reading
	read    func(context.Context) error
}

// run runs tasks side by side, and keeps why one failed.
func (r *reader) run(ctx context.Context, tasks []task) {
	var group errgroup.Group
	group.SetLimit(atOnce)
	for _, t := range tasks {
		group.Go(func() error {
			if err := t.read(ctx); err != nil {
				r.mu.Lock()
				defer r.mu.Unlock()
				r.f.Unread[t.reading] = err
			}
			return nil
		})
	}
	_ = group.Wait() // no task returns an error
}

func (r *reader) objectsOfTheCluster(ctx context.Context) {
	f, core, apps := r.f, r.client.CoreV1(), r.client.AppsV1()
	tasks := []task{
		{readNodes, func(ctx context.Context) error { return list(ctx, core.Nodes().List, &f.Nodes) }},
		{readPods, func(ctx context.Context) error { return list(ctx, core.Pods("").List, &f.Pods) }},
		{readBudgets, func(ctx context.Context) error {
			return list(ctx, r.client.PolicyV1().PodDisruptionBudgets("").List, &f.Budgets)
		}},
		{readDeployments, func(ctx context.Context) error { return list(ctx, apps.Deployments("").List, &f.Deployments) }},
		{readStatefulSets, func(ctx context.Context) error { return list(ctx, apps.StatefulSets("").List, &f.StatefulSets) }},
		{readDaemonSets, func(ctx context.Context) error { return list(ctx, apps.DaemonSets("").List, &f.DaemonSets) }},
		{readNodeLeases, r.nodeLeases},
		{readGroups, r.groups},
		{readNodeGroups, r.nodeGroups},
		{readCRDs, r.definitions},
	}
	for _, key := range marks() {
		tasks = append(tasks, task{readMarks, func(ctx context.Context) error {
			_, err := core.ConfigMaps(key.Namespace).Get(ctx, key.Name, metav1.GetOptions{})
			return r.there(err, func() { f.Marks[key] = true })
		}})
	}
	for _, right := range viewerRights() {
		tasks = append(tasks, task{readCaller, func(ctx context.Context) error { return r.mine(ctx, right) }})
	}
	r.run(ctx, tasks)
}

func (r *reader) whatPartsShow(ctx context.Context, o Options) {
	var tasks []task
	for _, p := range r.f.Parts() {
		for _, right := range needed(&p) {
			tasks = append(tasks, task{readAccess, func(ctx context.Context) error { return r.theirs(ctx, p, right.in(p.home())) }})
		}
		if key, ok := leaderLease(&p); ok {
			tasks = append(tasks, task{readLeaderLeases, func(ctx context.Context) error {
				lease, err := r.client.CoordinationV1().Leases(key.Namespace).Get(ctx, key.Name, metav1.GetOptions{})
				return r.there(err, func() { r.f.LeaderLeases[key] = lease })
			}})
		}
	}
	if o.AskAgents {
		tasks = append(tasks, r.agentMetrics()...)
	}
	r.run(ctx, tasks)
}

// there keeps what a get has found. Nothing there is an answer too.
func (r *reader) there(err error, keep func()) error {
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

// list appends all objects of one kind, page by page.
func list[L runtime.Object, T any](ctx context.Context, call func(context.Context, metav1.ListOptions) (L, error), into *[]T) error {
	pages := pager.New(func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) { return call(ctx, o) })
	return pages.EachListItem(ctx, metav1.ListOptions{}, func(o runtime.Object) error {
		item, ok := o.(T)
		if !ok {
			return fmt.Errorf("a %T among them", o)
		}
		*into = append(*into, item)
		return nil
	})
}

func (r *reader) nodeLeases(ctx context.Context) error {
	var all []*coordinationv1.Lease
	err := list(ctx, r.client.CoordinationV1().Leases(nodeLeaseNamespace).List, &all)
	for _, l := range all {
		r.f.NodeLeases[l.Name] = l
	}
	return err
}

// groups are not read by the discovery client, which takes a right that is missing for an API server without groups.
func (r *reader) groups(ctx context.Context) error {
	var all metav1.APIGroupList
	if err := r.client.Discovery().RESTClient().Get().AbsPath("/apis").Do(ctx).Into(&all); err != nil {
		return err
	}
	for i := range all.Groups {
		r.f.Groups = append(r.f.Groups, all.Groups[i].Name)
	}
	return nil
}

// nodeGroups are read where they are served. Whether they have to be is up to the rule for the definitions.
func (r *reader) nodeGroups(ctx context.Context) error {
	groups := r.objects.Resource(v1alpha1.GroupVersion.WithResource("nodegroups"))
	var all []*unstructured.Unstructured
	err := list(ctx, groups.List, &all)
	if apierrors.IsNotFound(err) {
		return nil
	}
	for _, u := range all {
		var g v1alpha1.NodeGroup
		if err := runtime.DefaultUnstructuredConverter.FromUnstructured(u.Object, &g); err != nil {
			return fmt.Errorf("NodeGroup %s: %w", u.GetName(), err)
		}
		r.f.NodeGroups = append(r.f.NodeGroups, g)
	}
	return err
}

func (r *reader) definitions(ctx context.Context) error {
	wanted, err := own()
	if err != nil {
		return err
	}
	there := r.objects.Resource(schema.GroupVersionResource{Group: extensions, Version: "v1", Resource: "customresourcedefinitions"})
	for _, want := range wanted {
		have, err := there.Get(ctx, want.GetName(), metav1.GetOptions{})
		if err := r.there(err, func() { r.f.CRDs[want.GetName()] = have }); err != nil {
			return err
		}
	}
	return nil
}

// attributes are a right in the words of an access review.
func (r Right) attributes() *authorizationv1.ResourceAttributes {
	resource, sub, _ := strings.Cut(r.Resource, "/")
	return &authorizationv1.ResourceAttributes{
		Namespace: r.Namespace, Verb: r.Verb, Group: r.Group, Version: "*", Resource: resource, Subresource: sub, Name: r.Name,
	}
}

// mine asks whether the caller has a right.
func (r *reader) mine(ctx context.Context, right Right) error {
	answer, err := r.client.AuthorizationV1().SelfSubjectAccessReviews().Create(ctx, &authorizationv1.SelfSubjectAccessReview{
		Spec: authorizationv1.SelfSubjectAccessReviewSpec{ResourceAttributes: right.attributes()},
	}, metav1.CreateOptions{})
	if err != nil {
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.f.Caller = append(r.f.Caller, Access{Right: right, Allowed: answer.Status.Allowed})
	return nil
}

// theirs asks whether the account of a part has a right.
func (r *reader) theirs(ctx context.Context, p Part, right Right) error {
	namespace := p.namespace()
	answer, err := r.client.AuthorizationV1().SubjectAccessReviews().Create(ctx, &authorizationv1.SubjectAccessReview{
		Spec: authorizationv1.SubjectAccessReviewSpec{
			User:               "system:serviceaccount:" + namespace + ":" + p.ServiceAccount,
			Groups:             []string{"system:serviceaccounts", "system:serviceaccounts:" + namespace, "system:authenticated"},
			ResourceAttributes: right.attributes(),
		},
	}, metav1.CreateOptions{})
	if err != nil {
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.f.Access = append(r.f.Access, Access{p, right, answer.Status.Allowed})
	return nil
}

// readClock takes the API server's time from the Date of an answer, which has whole seconds, and its version on the way.
func (r *reader) readClock(ctx context.Context) {
	version, err := r.client.Discovery().ServerVersion()
	if err == nil {
		r.f.Server = version.GitVersion
	}
	if err := r.date(ctx); err != nil {
		r.f.Unread[readClock] = err
	}
}

func (r *reader) date(ctx context.Context) error {
	url := r.client.CoreV1().RESTClient().Get().AbsPath("/version").URL()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url.String(), nil)
	if err != nil {
		return err
	}
	asked := time.Now()
	answer, err := r.web.Do(req)
	if err != nil {
		return err
	}
	took := time.Since(asked)
	defer func() { _ = answer.Body.Close() }() // It was only read.
	_, _ = io.Copy(io.Discard, io.LimitReader(answer.Body, 1<<16))
	date, err := http.ParseTime(answer.Header.Get("Date"))
	if err != nil {
		return fmt.Errorf("the header Date of its answer: %w", err)
	}
	// The second that the header names is on average half over.
	r.f.Clock = Clock{Server: date.Add(time.Second / 2), Here: asked.Add(took / 2), Error: took/2 + time.Second/2}
	return nil
}
