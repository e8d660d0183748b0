package workload

import (
	"time"

	"k8s.io/apimachinery/pkg/runtime"

	"github.com/slipway-dev/slipway/dev/controlplane"
)

const (
	// SpotNodeNamespace is where SpotNode's objects are.
	SpotNodeNamespace = "spot"
	// SpotNodePods is how many pods SpotNode has.
	SpotNodePods = 40
)

// SpotNode is what runs on a Spot machine that is about to be taken away, all of which can end well within the 30
// seconds of its notice: a web server behind a budget, a database of several members of which one may be away, a pod
// that does not listen to SIGTERM, one that is slow to stop, and some that make no trouble. The pods go to the nodes
// that the selector picks.
func SpotNode(selector map[string]string) []runtime.Object {
	app := func(name string, replicas int32) App {
		return App{Namespace: SpotNodeNamespace, Name: name, Replicas: replicas, NodeSelector: selector}
	}
	web := app("web", 24)
	web.MaxUnavailable = "25%"
	database := app("database", 5)
	database.MaxUnavailable = "1"
	stubborn := app("stubborn", 1)
	stubborn.Stop, stubborn.Grace = controlplane.Never, 10*time.Second
	slow := app("slow", 1)
	slow.Stop, slow.Grace = "12", time.Minute
	plain := app("search", 9)
	plain.Stop = "2"
	return []runtime.Object{
		Namespace(SpotNodeNamespace), web.Deployment(), web.Budget(), database.StatefulSet(), database.Budget(),
		stubborn.Deployment(), slow.Deployment(), plain.Deployment(),
	}
}
