package manager

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/slipway-dev/slipway/internal/kubeapi"
	"github.com/slipway-dev/slipway/internal/surge"
)

// noGroups has no NodeGroups.
type noGroups struct{ client.Reader }

func (noGroups) List(context.Context, client.ObjectList, ...client.ListOption) error { return nil }

// recordLister counts the lists of records. It has none.
type recordLister struct {
	surge.API

	lists int
}

func (l *recordLister) ListCachedLeases(context.Context, string, string) ([]kubeapi.Lease, error) {
	l.lists++
	return nil, nil
}

func TestManagerRestoresSizesWithoutSurgingGroups(t *testing.T) {
	for name, c := range map[string]struct {
		err   error
		tries int
		lists bool
	}{
		"allowed":     {tries: 1, lists: true},
		"not allowed": {err: &kubeapi.StatusError{Code: 403, Reason: "Forbidden"}, tries: 1},
		"outage":      {err: context.DeadlineExceeded, tries: 10},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l := &recordLister{}
				surger, err := surge.New(surge.Options{API: l, Namespace: "slipway", Identity: "manager/1", Mode: surge.On})
				if err != nil {
					t.Fatal(err)
				}
				tries := 0
				s := &surges{
					groups: &GroupSource{Reader: noGroups{}}, interval: surgeCheckInterval, byMode: map[surge.Mode]*surge.Surger{surge.On: surger},
					listRecords: func(context.Context) error { tries++; return c.err },
				}
				ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute-time.Second)
				defer cancel()
				if err := s.Start(ctx); err != nil {
					t.Fatal(err)
				}
				if tries != c.tries || (l.lists > 0) != c.lists {
					t.Errorf("%d tries, %d lists, want %d tries and lists %t", tries, l.lists, c.tries, c.lists)
				}
			})
		})
	}
}
