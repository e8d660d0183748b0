package main

import (
	"bytes"
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/slipway-dev/slipway/api/v1alpha1"
	"github.com/slipway-dev/slipway/internal/testing/must"
)

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
