package manager

import (
	"fmt"
	"log/slog"
	"maps"
	"slices"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/manager"

	"github.com/slipway-dev/slipway/internal/cloud"
	"github.com/slipway-dev/slipway/internal/cloud/advice"
	"github.com/slipway-dev/slipway/internal/nodegroup/advised"
)

// addAdvised adds what shows the plugins among the clouds the events of pods, and passes on what they wish for.
func addAdvised(m manager.Manager, c Config, kube *rest.Config, groups *Groups, clouds map[string]cloud.Provider, wishes advised.Wishes,
	metrics *advised.Metrics, log *slog.Logger,
) error {
	analyzers := analyzersOf(clouds)
	if len(analyzers) == 0 {
		return nil
	}
	client, err := kubernetes.NewForConfig(kube)
	if err != nil {
		return fmt.Errorf("client of what shows plugins pods: %w", err)
	}
	return m.Add(advised.New(advised.Options{
		Kube: client, Client: m.GetClient(), Groups: groups, Analyzers: analyzers, Wishes: wishes, Metrics: metrics, Log: log,
		Selector: c.parsedSelector,
	}))
}

// analyzersOf are the clouds that may want to see the events of pods, by name.
func analyzersOf(clouds map[string]cloud.Provider) (list []advice.Analyzer) {
	for _, name := range slices.Sorted(maps.Keys(clouds)) {
		if a, ok := clouds[name].(advice.Analyzer); ok {
			list = append(list, a)
		}
	}
	return list
}
