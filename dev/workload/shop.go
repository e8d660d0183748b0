package workload

import (
	"time"

	"k8s.io/apimachinery/pkg/runtime"

	"github.com/slipway-dev/slipway/dev/controlplane"
)

// ShopNamespace is the namespace of the objects of ShopObjects.
const ShopNamespace = "shop"

// ShopObjects returns the workload of a small web shop for about 20 nodes. It consists of the shop and its services,
// DaemonSets and batch Jobs. It has every kind of pod that a drain can meet. All pods except one stop within their
// grace period.
func ShopObjects() []runtime.Object {
	app := func(name string, replicas int32) App {
		return App{Namespace: ShopNamespace, Name: name, Replicas: replicas}
	}
	web := app("web", 24)
	web.MaxUnavailable = "25%"
	web.PriorityClass = "customer-facing"
	checkout := app("checkout", 8)
	checkout.MinAvailable = "6"
	checkout.PriorityClass = "customer-facing"
	checkout.StopSeconds = "3"
	search := app("search", 6)
	search.EmptyDir = true
	search.StartSeconds = "2"
	orders := app("orders-db", 3)
	orders.MaxUnavailable = "1"
	orders.StopSeconds, orders.GracePeriod = "5", time.Minute
	// It ignores SIGTERM, as many shell scripts do.
	legacy := app("legacy-invoices", 2)
	legacy.StopSeconds, legacy.GracePeriod = controlplane.Never, 20*time.Second
	collector := app("log-collector", 1)
	report, thumbnails := app("daily-report", 1), app("thumbnails", 6)
	report.RunSeconds, thumbnails.RunSeconds = "600", "3600"
	barePod := app("somebodys-debug-pod", 1)
	return []runtime.Object{
		NewNamespace(ShopNamespace), NewPriorityClass("customer-facing", 100_000),
		web.Deployment(), web.PodDisruptionBudget(), checkout.Deployment(), checkout.PodDisruptionBudget(), search.Deployment(),
		orders.StatefulSet(), orders.PodDisruptionBudget(), legacy.Deployment(), collector.DaemonSet(),
		report.Job(), thumbnails.Job(), barePod.Pod(),
	}
}
