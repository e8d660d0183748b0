package controller

import (
	"errors"
	"log/slog"
	"testing"

	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/slipway-dev/slipway/api/v1alpha1"
	"github.com/slipway-dev/slipway/internal/testing/must"
)

func TestCacheListsPoolUpdates(t *testing.T) {
	c := must.Get(NewCluster(&rest.Config{Host: "http://127.0.0.1:1"}, "slipway", slog.New(slog.DiscardHandler)))(t)
	var unstarted *cache.ErrCacheNotStarted // returned after the kind was found
	if err := c.cache.List(t.Context(), &v1alpha1.PoolUpdateList{}, client.InNamespace("slipway")); !errors.As(err, &unstarted) {
		t.Errorf("%v, want the list kind to be found", err)
	}
}
