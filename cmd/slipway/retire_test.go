package main

import (
	"bytes"
	"context"
	"errors"
	"io"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
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
	return &retireTest{client: fake.NewClientBuilder().WithScheme(scheme).WithObjects(rt).Build(), retirement: rt}
}

func TestUnclaimedRetirementIsReportedOnce(t *testing.T) {
	for phase, want := range map[v1alpha1.Phase]int{"": 1, v1alpha1.Pending: 0} {
		synctest.Test(t, func(t *testing.T) {
			scheme := runtime.NewScheme()
			must.NoError(t, v1alpha1.AddToScheme(scheme))
			rt := &v1alpha1.NodeRetirement{
				ObjectMeta: metav1.ObjectMeta{Name: "r", Labels: map[string]string{"team": "a"}},
				Status:     v1alpha1.NodeRetirementStatus{Phase: phase},
			}
			c := fake.NewClientBuilder().WithScheme(scheme).WithObjects(rt).Build()
			late := errors.New("late")
			ctx, cancel := context.WithTimeoutCause(t.Context(), time.Hour, late)
			defer cancel()
			var problems bytes.Buffer
			if err := waitForRetirement(ctx, c, rt, &bytes.Buffer{}, &problems); !errors.Is(err, late) {
				t.Errorf("%v", err)
			}
			if got := strings.Count(problems.String(), "no manager has observed it within 10s"); got != want {
				t.Errorf("%q, want it %d times", problems.String(), want)
			}
			if want > 0 && !strings.Contains(problems.String(), "the labels team=a") {
				t.Errorf("%q", problems.String())
			}
		})
	}
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
