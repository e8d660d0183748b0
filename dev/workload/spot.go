package workload

import (
	"time"

	"k8s.io/apimachinery/pkg/runtime"
)

// SpotPods is the total number of pods of the apps in SpotApps.
const SpotPods = 40

// SpotApps is a workload for one Spot machine. All its pods can stop within the 30 s of a Spot notice.
type SpotApps struct {
	// Web has a PDB that allows a few evictions at a time. Search has no PDB.
	Web, Search App
	// Orders is one member of a StatefulSet, with a PDB that allows its eviction.
	Orders App
	// Invoices has one pod, and a PDB that denies its eviction.
	Invoices App
	// Encoder needs a long time to stop.
	Encoder App
}

// NewSpotApps returns the apps in a namespace. Their pods run only on nodes that the selector matches.
func NewSpotApps(namespace string, selector map[string]string) SpotApps {
	on := func(a App) App {
		a.Namespace, a.NodeSelector = namespace, selector
		return a
	}
	return SpotApps{
		Web: on(App{
			Name: "web", Replicas: 30, MaxUnavailable: "6", StartSeconds: "0.5", StopSeconds: "1", GracePeriod: 8 * time.Second,
		}),
		Search:   on(App{Name: "search", Replicas: 7}),
		Orders:   on(App{Name: "orders-db", StopSeconds: "4"}),
		Invoices: on(App{Name: "invoices", MinAvailable: "1", StopSeconds: "3", GracePeriod: 10 * time.Second}),
		Encoder:  on(App{Name: "encoder", StopSeconds: "20"}),
	}
}

// Apps returns all apps.
func (s SpotApps) Apps() []App { return []App{s.Web, s.Search, s.Orders, s.Invoices, s.Encoder} }

// Objects returns the objects of the apps. It does not include the namespace.
func (s SpotApps) Objects() []runtime.Object {
	return []runtime.Object{
		s.Web.Deployment(), s.Web.PodDisruptionBudget(), s.Search.Deployment(), s.Orders.StatefulSet(), s.Orders.PodDisruptionBudget(),
		s.Invoices.Deployment(), s.Invoices.PodDisruptionBudget(), s.Encoder.Deployment(),
	}
}
