package manager

import (
	"fmt"
	"log/slog"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/manager"

	"github.com/slipway-dev/slipway/internal/cloud"
	"github.com/slipway-dev/slipway/internal/nodegroup/autoscaler"
)

// addAutoscaler adds what has machines come for pods without room, and underused nodes leave.
func addAutoscaler(m manager.Manager, c Config, kube *rest.Config, w watched, groups *Groups, providers map[string]cloud.Provider,
	wishes *autoscaler.Wishes, metrics *autoscaler.Metrics, log *slog.Logger,
) error {
	client, err := kubernetes.NewForConfig(kube)
	if err != nil {
		return fmt.Errorf("client of the autoscaler: %w", err)
	}
	var most *int
	if c.MaxNodes > 0 {
		most = &c.MaxNodes
	}
	return m.Add(autoscaler.New(autoscaler.Options{
		Client: m.GetClient(), Informers: w.informers, Pods: w.pods, Kube: client, Groups: groups, Clouds: providers,
		Events: m.GetEventRecorder("slipway"), Wishes: wishes, Metrics: metrics, Log: log, Selector: c.parsedSelector, Maximum: most,
		Debounce: c.ScaleUpDebounce, Every: c.ScalePoll, Settle: c.OrderSettle,
	}))
}
