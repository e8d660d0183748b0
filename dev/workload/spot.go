package workload

import (
	"time"

	"k8s.io/apimachinery/pkg/runtime"
)

// SpotPods is how many pods SpotApps has.
const SpotPods = 40

// SpotApps is what runs on a Spot machine that is about to be taken away, all of which can end well within the 30
// seconds of its notice.
type SpotApps struct {
	// Web has a budget that lets a few of its pods go at a time. The pods of Search have none.
	Web, Search App
	// Orders is one member of a StatefulSet, with a budget that allows it to go.
	Orders App
	// Invoices has one pod, and a budget that wants to keep it.
	Invoices App
	// Encoder has to finish what it has begun.
	Encoder App
}

// SpotNode makes the apps, whose pods go to the nodes that the selector picks.
func SpotNode(namespace string, selector map[string]string) SpotApps {
	on := func(a App) App {
		a.Namespace, a.NodeSelector = namespace, selector
		return a
	}
	return SpotApps{
		Web: on(App{
			Name: "web", Replicas: 30, MaxUnavailable: "6", Start: "0.5", Stop: "1", Grace: 8 * time.Second,
		}),
		Search:   on(App{Name: "search", Replicas: 7}),
		Orders:   on(App{Name: "orders-db", Stop: "4"}),
		Invoices: on(App{Name: "invoices", MinAvailable: "1", Stop: "3", Grace: 10 * time.Second}),
		Encoder:  on(App{Name: "encoder", Stop: "20"}),
	}
}

// Apps lists them.
func (s SpotApps) Apps() []App { return []App{s.Web, s.Search, s.Orders, s.Invoices, s.Encoder} }

// Objects are what runs them, but for their namespace.
func (s SpotApps) Objects() []runtime.Object {
	return []runtime.Object{
		s.Web.Deployment(), s.Web.Budget(), s.Search.Deployment(), s.Orders.StatefulSet(), s.Orders.Budget(),
		s.Invoices.Deployment(), s.Invoices.Budget(), s.Encoder.Deployment(),
	}
}
