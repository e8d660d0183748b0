package surge

import (
	"encoding/json"
	"fmt"
	"strconv"
	"strings"

	"github.com/slipway-dev/slipway/internal/kubeapi"
)

// pdbCounts are the numbers of pods that decide whether a PodDisruptionBudget allows an eviction.
type pdbCounts struct{ healthy, desired, expected int32 }

// allow reports whether the eviction API evicts one more pod, ready or not, by a status with these numbers. EvictionREST.Create in
// k8s.io/kubernetes/pkg/registry/core/pod/storage has the rule for unready pods.
func (c pdbCounts) allow(ready bool) bool {
	return c.expected > 0 && c.healthy > c.desired || !ready && c.desired > 0 && c.healthy >= c.desired
}

// deniesEviction reports whether the status of a PodDisruptionBudget denies the eviction of a ready or an unready pod.
func deniesEviction(b *kubeapi.PodDisruptionBudget, ready bool) bool {
	return b.Status.DisruptionsAllowed <= 0 && (ready || !b.ExemptsUnready())
}

func presentCounts(b *kubeapi.PodDisruptionBudget) pdbCounts {
	s := b.Status
	return pdbCounts{healthy: s.CurrentHealthy, desired: s.DesiredHealthy, expected: s.ExpectedPods}
}

// raisedCounts returns the numbers once the owner of a pod has a larger size by one, and one more healthy pod. It computes them as
// getExpectedPodCount in k8s.io/kubernetes/pkg/controller/disruption does.
func raisedCounts(b *kubeapi.PodDisruptionBudget) (pdbCounts, error) {
	c := presentCounts(b)
	c.healthy++
	c.expected++
	var err error
	if len(b.Spec.MaxUnavailable) > 0 {
		var unavailable int32
		unavailable, err = toPodCount(b.Spec.MaxUnavailable, c.expected)
		c.desired = max(0, c.expected-unavailable)
	} else {
		c.desired, err = toPodCount(b.Spec.MinAvailable, c.expected)
	}
	return c, err
}

// toPodCount returns a number of pods, or a percentage of all pods. The disruption controller rounds up both for minAvailable and for
// maxUnavailable.
func toPodCount(value json.RawMessage, all int32) (int32, error) {
	text, isPercentage := strings.CutSuffix(strings.Trim(string(value), `"`), "%")
	n, err := strconv.ParseInt(text, 10, 32)
	switch {
	case err != nil:
		return 0, fmt.Errorf("%q is neither a number nor a percentage", value)
	case isPercentage:
		return int32((n*int64(all) + 99) / 100), nil
	}
	return int32(n), nil
}

// checkOneMoreHelps returns a refusal if the PodDisruptionBudget still denies the eviction with one more healthy pod of the owner.
func checkOneMoreHelps(b *kubeapi.PodDisruptionBudget, ready bool) error {
	raised, err := raisedCounts(b)
	switch {
	case err != nil:
		return refuse(ReasonPDBStillDenies, "the PodDisruptionBudget %s has no valid minAvailable or maxUnavailable: %v", b.Name, err)
	case presentCounts(b).allow(ready):
		return refuse(ReasonPDBStillDenies, "the PodDisruptionBudget %s denies the eviction although %d pods are healthy and %d must be, "+
			"so one more does not help", b.Name, b.Status.CurrentHealthy, b.Status.DesiredHealthy)
	case !raised.allow(ready):
		return refuse(ReasonPDBStillDenies, "with one more healthy pod, the PodDisruptionBudget %s still denies the eviction: "+
			"%d of %d pods would be healthy, and %d would have to be", b.Name, raised.healthy, raised.expected, raised.desired)
	}
	return nil
}
