package manager

import (
	"log/slog"

	"sigs.k8s.io/controller-runtime/pkg/manager"

	"github.com/slipway-dev/slipway/internal/cloud"
	"github.com/slipway-dev/slipway/internal/nodegroup"
	"github.com/slipway-dev/slipway/internal/placement/live"
)

// addNodeGroups adds what owns the NodeGroups.
func addNodeGroups(m manager.Manager, c Config, pods live.Pods, groups *Groups, providers map[string]cloud.Provider, api nodegroup.API,
	metrics *nodegroup.Metrics, log *slog.Logger,
) error {
	owner := nodegroup.New(nodegroup.Options{
		Client: m.GetClient(), Pods: pods, API: api, Groups: groups, Clouds: providers, Events: m.GetEventRecorder("slipway"),
		Metrics: metrics, Log: log, Selector: c.parsedSelector, Every: c.GroupPoll,
	})
	groups.Status = owner.Status
	return owner.Register(m)
}
