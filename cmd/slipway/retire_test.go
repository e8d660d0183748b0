package main

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/slipway-dev/slipway/api/v1alpha1"
	"github.com/slipway-dev/slipway/internal/testing/check"
	"github.com/slipway-dev/slipway/internal/testing/must"
)

// retireTest holds an API server with a NodeRetirement, and the output of a wait for it.
type retireTest struct {
	client        client.WithWatch
	retirement    *v1alpha1.NodeRetirement
	out, problems bytes.Buffer
}

func newRetireTest(t *testing.T, phase v1alpha1.Phase) *retireTest {
	t.Helper()
	scheme := runtime.NewScheme()
	must.NoError(t, v1alpha1.AddToScheme(scheme))
	rt := &v1alpha1.NodeRetirement{
		ObjectMeta: metav1.ObjectMeta{Name: "n-1", Labels: map[string]string{"team": "a"}},
		Spec:       v1alpha1.NodeRetirementSpec{NodeName: "n"},
		Status:     v1alpha1.NodeRetirementStatus{Phase: phase},
	}
	byName := func(o client.Object) []string { return []string{o.GetName()} }
	c := fake.NewClientBuilder().WithScheme(scheme).WithObjects(rt).WithIndex(rt, metav1.ObjectNameField, byName).Build()
	return &retireTest{client: c, retirement: rt}
}

// wait waits for the retirement with a client that may fail.
func (r *retireTest) wait(ctx context.Context, faults interceptor.Funcs) error {
	w := retirementWait{client: interceptor.NewClient(r.client, faults), retirement: r.retirement.DeepCopy(), out: &r.out, problems: &r.problems}
	return w.run(ctx)
}

// finish writes a phase, and deletes the NodeRetirement at once.
func (r *retireTest) finish(t *testing.T, phase v1alpha1.Phase) {
	t.Helper()
	var rt v1alpha1.NodeRetirement
	must.NoError(t, r.client.Get(t.Context(), client.ObjectKeyFromObject(r.retirement), &rt))
	rt.Status = v1alpha1.NodeRetirementStatus{Phase: phase, Message: "a message"}
	must.NoError(t, r.client.Update(t.Context(), &rt))
	must.NoError(t, r.client.Delete(t.Context(), &rt))
}

func TestUnclaimedRetirementIsReportedOnce(t *testing.T) {
	for phase, want := range map[v1alpha1.Phase]int{"": 1, v1alpha1.Pending: 0} {
		synctest.Test(t, func(t *testing.T) {
			r := newRetireTest(t, phase)
			late := errors.New("late")
			ctx, cancel := context.WithTimeoutCause(t.Context(), time.Hour, late)
			defer cancel()
			err := r.wait(ctx, interceptor.Funcs{})
			check.Not(t, !errors.Is(err, late), "%v", err)
			check.Contains(t, formatError(err), "NodeRetirement n-1 continues; to cancel it, run kubectl delete nr n-1")
			check.Is(t, want, strings.Count(r.problems.String(), "no manager has observed it within 10s"))
			check.Is(t, want, strings.Count(r.problems.String(), "the labels team=a"))
		})
	}
}

func TestDeletedRetirementHasItsLastPhase(t *testing.T) {
	for phase, want := range map[v1alpha1.Phase]string{
		v1alpha1.Succeeded: "",
		v1alpha1.Aborted:   "node n: Aborted: a message",
		v1alpha1.Draining:  "node n: NodeRetirement n-1 was deleted in phase Draining",
		"":                 "node n: NodeRetirement n-1 was deleted in phase Pending",
	} {
		synctest.Test(t, func(t *testing.T) {
			r := newRetireTest(t, "")
			time.AfterFunc(time.Hour, func() { r.finish(t, phase) })
			err := r.wait(t.Context(), interceptor.Funcs{})
			if want == "" {
				must.NoError(t, err)
				check.Is(t, "Succeeded: a message\n", r.out.String())
				return
			}
			check.Not(t, err == nil || err.Error() != want || toExitCode(err) != exitNotRetired, "%s: %v, exit code %d", phase, err, toExitCode(err))
		})
	}
}

func TestWaitOutlastsFailuresOfTheAPIServer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRetireTest(t, v1alpha1.Draining)
		time.AfterFunc(time.Hour, func() { r.finish(t, v1alpha1.Succeeded) })
		failures := []error{syscall.ECONNREFUSED, apierrors.NewServiceUnavailable("starting"), apierrors.NewTooManyRequests("busy", 1)}
		must.NoError(t, r.wait(t.Context(), interceptor.Funcs{
			Watch: func(ctx context.Context, c client.WithWatch, list client.ObjectList, o ...client.ListOption) (watch.Interface, error) {
				if len(failures) > 0 {
					err := failures[0]
					failures = failures[1:]
					return nil, err
				}
				return c.Watch(ctx, list, o...)
			},
		}))
		check.Is(t, 1, strings.Count(r.problems.String(), "cannot read NodeRetirement n-1, trying again"))
	})
}

func TestRefusedWaitSaysThatRetirementContinues(t *testing.T) {
	r := newRetireTest(t, v1alpha1.Draining)
	err := r.wait(t.Context(), interceptor.Funcs{
		Watch: func(context.Context, client.WithWatch, client.ObjectList, ...client.ListOption) (watch.Interface, error) {
			return nil, apierrors.NewForbidden(schema.GroupResource{Group: "slipway.dev", Resource: "noderetirements"}, "n-1", nil)
		},
	})
	check.Not(t, !apierrors.IsForbidden(err), "%v", err)
	check.Contains(t, formatError(err), "NodeRetirement n-1 continues")
}

func TestWaitReadsRetirementWithoutEvents(t *testing.T) {
	expired := apierrors.NewResourceExpired("too old resource version")
	faults := interceptor.Funcs{
		Watch: func(context.Context, client.WithWatch, client.ObjectList, ...client.ListOption) (watch.Interface, error) {
			events := watch.NewFakeWithChanSize(1, false)
			events.Error(new(expired.Status()))
			return events, nil
		},
	}
	r := newRetireTest(t, v1alpha1.Succeeded)
	r.retirement.Status.Phase = v1alpha1.Draining // as the wait knows it
	must.NoError(t, r.wait(t.Context(), faults))

	r = newRetireTest(t, v1alpha1.Draining)
	r.finish(t, v1alpha1.Succeeded)
	err := r.wait(t.Context(), faults)
	check.Not(t, err == nil || toExitCode(err) != 1, "%v, exit code %d", err, toExitCode(err))
	check.Contains(t, err.Error(), "was deleted while it could not be read; its last known phase is Draining")
}

// TestWaitWatchesAgainAfterItsVersionHasExpired has a NodeRetirement that has not changed since an old version.
func TestWaitWatchesAgainAfterItsVersionHasExpired(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRetireTest(t, v1alpha1.Draining)
		time.AfterFunc(time.Hour, func() { r.finish(t, v1alpha1.Succeeded) }) // and its deletion is known only from the watch
		must.NoError(t, r.wait(t.Context(), interceptor.Funcs{
			List: func(ctx context.Context, c client.WithWatch, list client.ObjectList, o ...client.ListOption) error {
				err := c.List(ctx, list, o...)
				list.SetResourceVersion("2000")
				return err
			},
			Watch: func(ctx context.Context, c client.WithWatch, list client.ObjectList, o ...client.ListOption) (watch.Interface, error) {
				var options client.ListOptions
				if options.ApplyOptions(o).Raw.ResourceVersion != "2000" {
					return nil, apierrors.NewResourceExpired("too old resource version")
				}
				return c.Watch(ctx, list, o...)
			},
		}))
	})
}

func TestLostAnswerOfCreationIsResolved(t *testing.T) {
	for name, tt := range map[string]struct {
		lost   int  // the number of requests without an answer
		stored bool // they are carried out
		want   string
	}{
		"carried out":     {1, true, ""},
		"not carried out": {2, false, ""},
		"never answered":  {9, true, "it is unknown whether NodeRetirement n-2 was created; to see it, run kubectl get nr n-2"},
	} {
		synctest.Test(t, func(t *testing.T) {
			r := newRetireTest(t, "")
			tries := 0
			c := interceptor.NewClient(r.client, interceptor.Funcs{
				Create: func(ctx context.Context, c client.WithWatch, o client.Object, more ...client.CreateOption) error {
					if tries++; tries > tt.lost {
						return c.Create(ctx, o, more...)
					}
					if tt.stored {
						_ = c.Create(ctx, o.DeepCopyObject().(client.Object), more...)
					}
					return io.EOF
				},
				Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, into client.Object, o ...client.GetOption) error {
					if tries <= tt.lost {
						return io.EOF
					}
					return c.Get(ctx, key, into, o...)
				},
			})
			rt := &v1alpha1.NodeRetirement{ObjectMeta: metav1.ObjectMeta{Name: "n-2"}}
			err := createRetirement(t.Context(), c, rt)
			if tt.want != "" {
				check.Not(t, err == nil, "%s: no error", name)
				check.Contains(t, formatError(err), tt.want)
				return
			}
			must.NoError(t, err)
			check.Not(t, rt.ResourceVersion == "", "%s: the object is not known", name)
		})
	}
}

// TestRepeatedCreationByAProxyIsResolved has a proxy that sends the first request twice, and answers only to the second one.
func TestRepeatedCreationByAProxyIsResolved(t *testing.T) {
	for name, tt := range map[string]struct {
		change func(*v1alpha1.NodeRetirement) // of the stored object
		get    error
		want   string
	}{
		"own":                      {func(*v1alpha1.NodeRetirement) {}, nil, ""},
		"of another Node":          {func(rt *v1alpha1.NodeRetirement) { rt.Spec.NodeUID = "other" }, nil, "already exists"},
		"of another person":        {func(rt *v1alpha1.NodeRetirement) { rt.Spec.RequestedBy = "bob" }, nil, "already exists"},
		"own, but not readable":    {func(*v1alpha1.NodeRetirement) {}, errors.New("no"), "it is unknown whether NodeRetirement n-2 was created"},
		"own, and deleted already": {func(*v1alpha1.NodeRetirement) {}, apierrors.NewNotFound(schema.GroupResource{}, "n-2"), "it is unknown whether NodeRetirement n-2 was created"},
	} {
		synctest.Test(t, func(t *testing.T) {
			r := newRetireTest(t, "")
			rt := &v1alpha1.NodeRetirement{ObjectMeta: metav1.ObjectMeta{Name: "n-2"}, Spec: v1alpha1.NodeRetirementSpec{NodeName: "n", NodeUID: "u", RequestedBy: "ann"}}
			stored := rt.DeepCopy()
			tt.change(stored)
			must.NoError(t, r.client.Create(t.Context(), stored))
			c := interceptor.NewClient(r.client, interceptor.Funcs{
				Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, into client.Object, o ...client.GetOption) error {
					return cmp.Or(tt.get, c.Get(ctx, key, into, o...))
				},
			})
			err := createRetirement(t.Context(), c, rt)
			if tt.want != "" {
				check.Not(t, err == nil, "%s: no error", name)
				check.Contains(t, formatError(err), tt.want)
				return
			}
			must.NoError(t, err)
			check.Is(t, stored.ResourceVersion, rt.ResourceVersion, name)
		})
	}
}

// retireResponses are the responses of an API server to slipway retire n1 until its watch.
var retireResponses = map[string]string{
	"/api":    `{"kind":"APIVersions","versions":["v1"]}`,
	"/apis":   `{"kind":"APIGroupList","apiVersion":"v1","groups":[{"name":"slipway.dev","versions":[{"groupVersion":"slipway.dev/v1alpha1","version":"v1alpha1"}]}]}`,
	"/api/v1": `{"kind":"APIResourceList","groupVersion":"v1","resources":[{"name":"nodes","kind":"Node"}]}`,
	"/apis/slipway.dev/v1alpha1": `{"kind":"APIResourceList","groupVersion":"slipway.dev/v1alpha1",
"resources":[{"name":"nodegroups","kind":"NodeGroup"},{"name":"noderetirements","kind":"NodeRetirement"}]}`,
	"/api/v1/nodes/n1":                      `{"kind":"Node","apiVersion":"v1","metadata":{"name":"n1","uid":"u"}}`,
	"/apis/slipway.dev/v1alpha1/nodegroups": `{"kind":"NodeGroupList","apiVersion":"slipway.dev/v1alpha1","metadata":{},"items":[]}`,
}

func TestInterruptedWaitSaysThatRetirementContinues(t *testing.T) {
	ctx, interrupt := context.WithCancel(t.Context())
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		switch {
		case r.URL.Query().Get("watch") != "":
			interrupt()
			<-r.Context().Done()
		case r.Method == http.MethodPost:
			_, _ = io.Copy(w, r.Body)
		default:
			_, _ = io.WriteString(w, retireResponses[r.URL.Path])
		}
	}))
	defer server.Close()
	cmd := newRootCommand()
	cmd.SetOut(io.Discard)
	cmd.SetErr(io.Discard)
	cmd.SetArgs([]string{"retire", "n1", "--wait", "-o", "name", "--server", server.URL})
	err := cmd.ExecuteContext(ctx)
	check.Not(t, toExitCode(err) != exitInterrupted, "%v, exit code %d", err, toExitCode(err))
	check.Contains(t, formatError(err), "error: node n1: interrupted\nNodeRetirement n1-", " continues; to cancel it, run kubectl delete nr n1-")
}
