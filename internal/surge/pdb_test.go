package surge

import (
	"encoding/json"
	"fmt"
	"testing"

	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/slipway-dev/slipway/internal/kubeapi"
	"github.com/slipway-dev/slipway/internal/testing/check"
	"github.com/slipway-dev/slipway/internal/testing/must"
)

// newPDB returns a PDB "web" as the disruption controller of Kubernetes 1.37 computes it (getExpectedPodCount and updatePdbStatus in
// pkg/controller/disruption), for owners with this many pods.
func newPDB(t *testing.T, minAvailable, maxUnavailable string, pods, healthy int32) *kubeapi.PodDisruptionBudget {
	t.Helper()
	b := &kubeapi.PodDisruptionBudget{ObjectMeta: kubeapi.ObjectMeta{Name: "web"}}
	scaled := func(text string) int32 {
		value := intstr.Parse(text)
		n, err := intstr.GetScaledValueFromIntOrPercent(&value, int(pods), true)
		must.NoError(t, err)
		return int32(n)
	}
	raw := func(text string) json.RawMessage {
		out, err := json.Marshal(intstr.Parse(text))
		must.NoError(t, err)
		return out
	}
	s := &b.Status
	if s.ExpectedPods, s.CurrentHealthy = pods, healthy; maxUnavailable != "" {
		b.Spec.MaxUnavailable = raw(maxUnavailable)
		s.DesiredHealthy = max(0, pods-scaled(maxUnavailable))
	} else {
		b.Spec.MinAvailable = raw(minAvailable)
		s.DesiredHealthy = scaled(minAvailable)
	}
	if s.ExpectedPods > 0 {
		s.DisruptionsAllowed = max(0, s.CurrentHealthy-s.DesiredHealthy)
	}
	return b
}

// isEvictable reports whether the eviction API evicts a pod, as EvictionREST.Create in pkg/registry/core/pod/storage does.
func isEvictable(b *kubeapi.PodDisruptionBudget, ready bool) bool {
	if !ready {
		if b.Spec.UnhealthyPodEvictionPolicy == "AlwaysAllow" {
			return true
		}
		if b.Status.CurrentHealthy >= b.Status.DesiredHealthy && b.Status.DesiredHealthy > 0 {
			return true
		}
	}
	return b.Status.DisruptionsAllowed > 0
}

func TestOneMorePodHelpsAsTheDisruptionControllerComputes(t *testing.T) {
	var values []string
	for n := range 7 {
		values = append(values, fmt.Sprint(n))
	}
	for percent := 0; percent <= 100; percent += 5 {
		values = append(values, fmt.Sprintf("%d%%", percent), fmt.Sprintf("%d%%", percent*2/3))
	}
	helped := map[bool]int{}
	for _, value := range values {
		for _, isMax := range []bool{false, true} {
			for pods := int32(1); pods <= 12; pods++ {
				for healthy := range pods + 1 {
					least, most := value, ""
					if isMax {
						least, most = "", value
					}
					now, raised := newPDB(t, least, most, pods, healthy), newPDB(t, least, most, pods+1, healthy+1)
					for n := range 4 {
						ready := n%2 == 0
						now.Spec.UnhealthyPodEvictionPolicy = []string{"", "AlwaysAllow"}[n/2]
						name := fmt.Sprintf("minAvailable %q maxUnavailable %q, %d of %d healthy, ready %t, %s", least, most, healthy, pods, ready,
							now.Spec.UnhealthyPodEvictionPolicy)
						check.Is(t, !isEvictable(now, ready), deniesEviction(now, ready), name)
						if isEvictable(now, ready) {
							continue
						}
						err := checkOneMoreHelps(now, ready)
						check.Is(t, isEvictable(raised, ready), err == nil, name, err)
						if err == nil {
							helped[isMax]++
						}
					}
				}
			}
		}
	}
	check.Not(t, helped[false] < 50 || helped[true] < 20, "one more pod helped in %v cases", helped)
}

func TestWhyOneMorePodDoesNotHelp(t *testing.T) {
	for name, c := range map[string]struct {
		least, most   string
		pods, healthy int32
		unready       bool
		change        func(b *kubeapi.PodDisruptionBudget)
		says          string // empty: it helps
	}{
		"minAvailable":                             {least: "2", pods: 3, healthy: 2},
		"minAvailable with too few healthy pods":   {least: "3", pods: 4, healthy: 2, says: "3 of 5 pods would be healthy, and 3 would have to be"},
		"minAvailable in percent":                  {least: "50%", pods: 3, healthy: 2},
		"minAvailable in percent that grows":       {least: "60%", pods: 3, healthy: 2, says: "3 of 4 pods would be healthy, and 3 would have to be"},
		"maxUnavailable":                           {most: "1", pods: 3, healthy: 2, says: "3 of 4 pods would be healthy, and 3 would have to be"},
		"maxUnavailable in percent":                {most: "30%", pods: 4, healthy: 2, says: "3 of 5 pods would be healthy, and 3 would have to be"},
		"maxUnavailable in percent that grows":     {most: "30%", pods: 3, healthy: 2},
		"unready pod":                              {least: "2", pods: 3, healthy: 1, unready: true},
		"unready pod with too few healthy ones":    {least: "3", pods: 4, healthy: 1, unready: true, says: "2 of 5 pods would be healthy"},
		"status that says nothing of the denial":   {least: "2", pods: 4, healthy: 3, says: "although 3 pods are healthy and 2 must be", change: func(b *kubeapi.PodDisruptionBudget) { b.Status.DisruptionsAllowed = 0 }},
		"neither minAvailable nor maxUnavailable":  {least: "2", pods: 3, healthy: 2, says: "no valid minAvailable or maxUnavailable", change: func(b *kubeapi.PodDisruptionBudget) { b.Spec.MinAvailable = nil }},
		"minAvailable that no controller can read": {least: "2", pods: 3, healthy: 2, says: `no valid minAvailable or maxUnavailable: "\"many\"" is neither`, change: func(b *kubeapi.PodDisruptionBudget) { b.Spec.MinAvailable = []byte(`"many"`) }},
	} {
		t.Run(name, func(t *testing.T) {
			b := newPDB(t, c.least, c.most, c.pods, c.healthy)
			if c.change != nil {
				c.change(b)
			}
			err := checkOneMoreHelps(b, !c.unready)
			if c.says == "" {
				check.NoError(t, err)
				return
			}
			check.ErrorContains(t, err, ReasonPDBStillDenies, c.says)
		})
	}
}
